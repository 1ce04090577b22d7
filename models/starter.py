"""Where the starter base and the head that is shipped for it lie. No torch."""

import os
import sys
from pathlib import Path

HEAD = Path(__file__).resolve().parent / "starter_head"


def starter_path() -> Path:
    """Folder of the starter base: SPECULOOS_STARTER, else one of this Python environment."""
    return Path(os.environ.get("SPECULOOS_STARTER") or Path(sys.prefix) / "share" / "speculoos" / "starter")
