"""Search models on the Hugging Face hub by name: size, licence, and whether drafts can be made for them.

Sends one request with `hub_ask`, since `HfApi.list_models` has no time or size limit and retries. Sends no token, since
users of the pages must not see private models of its owner.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from models import families
from models.hub import parse_id
from models.hub_ask import get_from_hub
from models.identity import SIZES
from speculoos.errors import BadInput, Unavailable

MOST_BYTES = 8 << 20
MAX_MODELS = 20
MAX_QUERY = 100
KINDS = ("text-generation", "safetensors")
"""Tags that a base must have; other models cannot be loaded (models.hub)."""
EXPANDED_FIELDS = ("safetensors", "config", "tags", "downloads", "gated")
NAME = "Search"
Value = TypeVar("Value")
ADAPTER = "It is an adapter, not a whole model; merge it into its base first."


@dataclass(frozen=True)
class HubModel:
    """A model on the hub; 0 and "" mean unknown. `why_not` is empty if drafts can be made for it."""

    repo: str
    parameters: int = 0
    size: int = 0
    licence: str = ""
    downloads: int = 0
    gated: bool = False
    architecture: str = ""
    why_not: str = ""


def search(words: str) -> list[HubModel]:
    """Models whose name contains `words`, most downloaded first. Raises BadInput or Unavailable (offline, unreachable,
    too slow, response too large)."""
    words = words.strip().removeprefix("https://huggingface.co/").strip("/")
    if not words or len(words) > MAX_QUERY:
        raise BadInput(f"{NAME}: type a part of a model's name, such as SmolLM2; at most {MAX_QUERY} characters.")
    params = {"search": words, "filter": KINDS, "sort": "downloads", "limit": MAX_MODELS, "expand": EXPANDED_FIELDS}
    content = get_from_hub(NAME, "api/models", MOST_BYTES, params=params)
    try:
        items = TypeAdapter(list[Any]).validate_json(content)
    except ValidationError:
        raise Unavailable(f"{NAME}: the hub's response is not a list of models; try again later.") from None
    return [model for model in map(_model, items) if model][:MAX_MODELS]


def _model(item: Any) -> HubModel | None:
    """The model in an item of the response, ignoring invalid values; None without a valid hub id."""
    repo = _get(item, "id", str)
    with suppress(BadInput):
        if "/" in repo and parse_id(repo) == (repo, None):
            return _valid_model(item, repo)
    return None


def _valid_model(item: dict[str, Any], repo: str) -> HubModel:
    config = _get(item, "config", dict)
    tags = [tag for tag in _get(item, "tags", list) if isinstance(tag, str)]
    architectures = [name[:100] for name in _get(config, "architectures", list) if isinstance(name, str)][:1]
    read = {
        "architectures": architectures,
        "model_type": _get(config, "model_type", str)[:100],
        "quantization_config": config.get("quantization_config"),
    }
    counts = {dtype: _count(n) for dtype, n in _get(_get(item, "safetensors", dict), "parameters", dict).items()}
    return HubModel(
        repo,
        parameters=sum(counts.values()),
        size=sum(count * SIZES.get(dtype, 1) for dtype, count in counts.items()),
        licence=next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")[:60],
        downloads=_count(item.get("downloads")),
        gated=item.get("gated") not in (None, False),
        architecture="".join(architectures),
        why_not=ADAPTER if "peft" in tags or "peft" in config else families.unsupported_reason(read),
    )


def _get(table: Any, key: str, kind: type[Value]) -> Value:
    """The value of a key in an object, if it has this type, else an empty one."""
    value = table.get(key) if isinstance(table, dict) else None
    return value if type(value) is kind else kind()


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0
