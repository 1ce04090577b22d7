"""What is checked before a job is made, and once more when it begins."""

from methods import METHODS
from speculoos.errors import Unsupported
from tracking.tables import Base


def require_method(base: Base, method: str) -> None:
    """Raises Unsupported when the base's card says that it cannot carry such a draft."""
    if reason := ((base.card or {}).get("methods") or {}).get(method):
        raise Unsupported(
            f"{METHODS[method].title} cannot be trained for “{base.name}”: {reason}",
            "Choose another base; a model's page says which drafts it can carry.",
        )
