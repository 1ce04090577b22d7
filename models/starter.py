"""Paths of the starter base and the EAGLE-3 head shipped for it. No torch."""

import json
import os
import sys
from pathlib import Path

from speculoos.checksums import read_checksums

STARTER_HEAD = Path(__file__).resolve().parent / "starter_head"
STARTER_HUB_ID = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""The starter is a quantized copy of this model."""
STARTER_WEIGHTS_SHA256 = "2c8f5d3c60fe570b0671c4675f0dbca0ae607426fba913ed62f159320bec9de7"


def starter_path() -> Path:
    """Folder of the starter base: SPECULOOS_STARTER, else a folder in the Python environment."""
    return Path(os.environ.get("SPECULOOS_STARTER") or Path(sys.prefix) / "share" / "speculoos" / "starter")


def installed(sha256: str) -> Path | None:
    """Folder of the starter base or its head, by the sha256 of its weights; None for other models."""
    if read_checksums(STARTER_HEAD).get("model.safetensors") == sha256:
        return STARTER_HEAD
    try:
        card = json.loads((starter_path() / "card.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return starter_path() if card.get("weights_sha256") == sha256 else None
