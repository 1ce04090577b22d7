"""What is checked before a job is made, and once more when it begins."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.methods import METHODS
from models.methods.settings import TrainConfig, too_long
from speculoos.errors import BadInput, Unsupported
from tracking.tables import Base, Dataset
from workers.ask.requests import GenerateData


def require_method(base: Base, method: str) -> None:
    """Raises Unsupported when the base's card says that it cannot carry such a draft."""
    if reason := ((base.card or {}).get("methods") or {}).get(method):
        raise Unsupported(
            f"{METHODS[method].title} cannot be trained for “{base.name}”: {reason}",
            "Choose another base; a model's page says which drafts it can carry.",
        )


def require_tokenizer(base: Base, data: Dataset) -> None:
    """Raises BadInput when the data set's token ids are those of another tokenizer than the base's.

    Text alone can be tokenised again, so only sets that kept token ids are refused. Files that are on another machine
    are checked when the training begins (`training.batches.load_conversations`).
    """
    folder = Path(data.path)
    try:
        made_with = json.loads((folder / "dataset.json").read_text(encoding="utf-8")).get("tokenizer_sha256", "")
        with open(min(folder.glob("shard-*.jsonl")), encoding="utf-8") as shard:
            has_ids = bool(json.loads(shard.readline()).get("token_ids"))
    except (OSError, ValueError, AttributeError):
        return
    if has_ids and made_with and base.tokenizer_sha256 and made_with != base.tokenizer_sha256:
        raise BadInput(
            f"The data set “{data.name}” was made with another tokenizer than that of “{base.name}”.",
            "Generate the data with this base, or train the base that made the data.",
        )


def require_template(base: Base, request: GenerateData) -> None:
    """Raises Unsupported when the request has a system prompt and the base that renders it has no chat template.

    An endpoint that is asked for chats renders them itself.
    """
    rendered_here = not request.endpoint or request.api == "completions"
    if request.system_prompt and rendered_here and (base.card or {}).get("chat_template") is False:
        raise Unsupported(
            f"“{base.name}” has no chat template, so it cannot take a system prompt.",
            "Leave the system prompt out, or choose an instruct model.",
        )


def fit_length(config: TrainConfig, typed: Mapping[str, Any], base: Base) -> TrainConfig:
    """The settings with `max_length` cut to the base's positions where it is a default or a recipe's.

    Raises BadInput when `typed`, the settings that somebody chose, has a longer one. Does nothing for a base whose
    card does not say how many positions it has; the training checks the loaded base.
    """
    longest = (base.card or {}).get("max_length")
    if not longest or config.max_length <= longest:
        return config
    if "max_length" in typed:
        raise too_long(longest, config.max_length)
    return config.model_copy(update={"max_length": int(longest)})


def require_settings(base: Base, config: TrainConfig, typed: Mapping[str, Any]) -> None:
    """Raises BadInput for settings that do not fit the base."""
    fit_length(config, typed, base)
    if check := METHODS[config.method].check:
        check(base.card or {}, config)
