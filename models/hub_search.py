"""Search models on the Hugging Face hub by name: size, licence, and whether drafts can be made for them.

Sends one request with `hub_ask`, since `HfApi.list_models` has no time or size limit and retries. Sends no token, since
users of the pages must not see private models of its owner.
"""

import json
from dataclasses import dataclass
from typing import Any

from models import families
from models.hub import parse_id
from models.hub_ask import HubRequest, send_hub_request
from models.identity import SIZES
from speculoos.errors import BadInput, Unavailable

MOST_BYTES = 8 << 20
MAX_MODELS = 20
MAX_QUERY = 100
KINDS = ("text-generation", "safetensors")
"""Tags that a base must have; other models cannot be loaded (models.hub)."""
EXPANDED_FIELDS = ("safetensors", "config", "tags", "downloads", "gated")
NAME = "Search"
INVALID_SEARCH = f"{NAME}: the hub's response is not a list of models; try again later."
ADAPTER = "It is an adapter, not a whole model; merge it into its base first."


@dataclass(frozen=True)
class HubModel:
    """A model on the hub; 0 and "" mean unknown. `unsupported_reason` is empty if drafts can be made for it."""

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
    return [model for model in map(_model, _request(words)) if model][:MAX_MODELS]


def _request(words: str) -> list[Any]:
    """The hub's response as JSON."""
    params = {"search": words, "filter": KINDS, "sort": "downloads", "limit": MAX_MODELS, "expand": EXPANDED_FIELDS}
    content = send_hub_request(HubRequest(NAME, "api/models", MOST_BYTES, params=params))
    try:
        models = json.loads(content)
    except (ValueError, RecursionError):
        models = None
    if not isinstance(models, list):
        raise Unavailable(INVALID_SEARCH)
    return models


def _model(item: Any) -> HubModel | None:
    """The model in an item of the response, ignoring invalid values; None without a valid hub id."""
    item = _table(item)
    repo = item.get("id")
    if not isinstance(repo, str) or "/" not in repo or not _is_name(repo):
        return None
    tags = [tag for tag in _list(item.get("tags")) if isinstance(tag, str)]
    config = _config(item.get("config"))
    counts = _counts(item.get("safetensors"))
    adapter = "peft" in tags or "peft" in _table(item.get("config"))
    return HubModel(
        repo,
        parameters=sum(counts.values()),
        size=sum(count * SIZES.get(dtype, 1) for dtype, count in counts.items()),
        licence=next((tag.removeprefix("license:") for tag in tags if tag.startswith("license:")), "")[:60],
        downloads=_count(item.get("downloads")),
        gated=item.get("gated") not in (None, False),
        architecture=config["architectures"][0] if config.get("architectures") else "",
        why_not=ADAPTER if adapter else families.unsupported_reason(config),
    )


def _is_name(repo: str) -> bool:
    try:
        return parse_id(repo) == (repo, None)
    except BadInput:
        return False


def _config(value: Any) -> dict[str, Any]:
    """The keys of a config.json that `unsupported_reason` reads and the hub returns, with valid types."""
    value = _table(value)
    names = [name[:100] for name in _list(value.get("architectures")) if isinstance(name, str)]
    config: dict[str, Any] = {"architectures": names[:1]} if names else {}
    if isinstance(value.get("model_type"), str):
        config["model_type"] = value["model_type"][:100]
    if value.get("quantization_config"):
        config["quantization_config"] = {"quant_method": ""}
    return config


def _counts(value: Any) -> dict[str, int]:
    """{dtype: number of weights}."""
    return {dtype: _count(count) for dtype, count in _table(_table(value).get("parameters")).items()}


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 2**53 else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _table(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
