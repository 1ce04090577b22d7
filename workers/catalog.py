"""What can be asked for, as forms need it: methods, recipes and settings, from the rooms that know them. No torch."""

from methods import METHODS, SETTINGS, settings_for, train_config
from methods.settings import Setting, TrainConfig
from speculoos.errors import Unsupported
from tracking.tables import Base
from training.recipes import Recipe, config_for, list_recipes, read_recipe


def require_method(base: Base, method: str) -> None:
    """Raises Unsupported when the base's card says that it cannot carry such a draft."""
    if reason := ((base.card or {}).get("methods") or {}).get(method):
        raise Unsupported(
            f"{METHODS[method].title} cannot be trained for “{base.name}”: {reason}",
            "Choose another base; a model's page says which drafts it can carry.",
        )


IMPORT_SHAPES = (
    "conversations with from/value or role/content, messages, prompt, question, "
    "Alpaca's instruction/input, MT-Bench's turns; as JSONL, JSON, CSV or parquet"
)

__all__ = [
    "IMPORT_SHAPES",
    "METHODS",
    "SETTINGS",
    "Recipe",
    "Setting",
    "TrainConfig",
    "config_for",
    "list_recipes",
    "read_recipe",
    "require_method",
    "settings_for",
    "train_config",
]
