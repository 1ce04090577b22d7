"""What can be asked for, as forms need it: methods, recipes and settings, from the rooms that know them. No torch."""

from speculoos.errors import Unsupported
from tracking.tables import Base
from training.config import METHODS, SETTINGS, Setting, TrainConfig, settings_for
from training.recipes import Recipe, config_for, list_recipes, read_recipe

METHOD_WORDS = {
    "medusa": "Medusa heads: several small heads guess the next tokens at once. The quickest to train.",
    "eagle": "EAGLE-1: one small layer continues the base's last features. Longer accepted runs than Medusa.",
    "eagle3": "EAGLE-3: fuses features of several base layers, trained on its own guesses. Best acceptance, slowest.",
    "draft": "Standalone draft: a small model made of some of the base's layers. Works where features cannot be had.",
}
"""One line of trade-offs for each method."""

METHOD_NAMES = {"medusa": "Medusa", "eagle": "EAGLE-1", "eagle3": "EAGLE-3", "draft": "Standalone draft"}


def require_method(base: Base, method: str) -> None:
    """Raises Unsupported when the base's card says that it cannot carry such a draft."""
    if reason := ((base.card or {}).get("methods") or {}).get(method):
        raise Unsupported(
            f"{METHOD_NAMES[method]} cannot be trained for “{base.name}”: {reason}",
            "Choose another base; a model's page says which drafts it can carry.",
        )


IMPORT_SHAPES = (
    "conversations with from/value or role/content, messages, prompt, question, "
    "Alpaca's instruction/input, MT-Bench's turns; as JSONL, JSON, CSV or parquet"
)

__all__ = [
    "IMPORT_SHAPES",
    "METHODS",
    "METHOD_NAMES",
    "METHOD_WORDS",
    "SETTINGS",
    "Recipe",
    "Setting",
    "TrainConfig",
    "config_for",
    "list_recipes",
    "read_recipe",
    "require_method",
    "settings_for",
]
