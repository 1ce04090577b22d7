"""Looking for models on the Hugging Face hub by name: how large they are, under which licence, whether drafts can be
made for them.

One request of `hub_ask`; `HfApi.list_models` has no limit of time or size and asks again by itself. No token goes
along: what is private to the token's owner is not for everybody who may open the pages.
"""

import json
from dataclasses import dataclass
from typing import Any

from models.families import why_not
from models.hub import parse_id
from models.hub_ask import Question, answer
from models.identity import SIZES
from speculoos.errors import BadInput, Unavailable

MOST_BYTES = 8 << 20
MOST = 20
LONGEST = 100
KINDS = ("text-generation", "safetensors")
"""Tags of models that may be a base: others cannot be loaded here (models.hub)."""
TOLD = ("safetensors", "config", "tags", "downloads", "gated")
NAME = "Search"
STRANGE = f"{NAME}: the hub answered with something that is no list of models; try again later."
ADAPTER = "It is an adapter, not a whole model; merge it into its base first."


@dataclass(frozen=True)
class HubModel:
    """A model of the hub; 0 and "" are what the hub does not say. `why_not` is empty where drafts can be made."""

    repo: str
    parameters: int = 0
    size: int = 0
    licence: str = ""
    downloads: int = 0
    gated: bool = False
    architecture: str = ""
    why_not: str = ""


def search(words: str) -> list[HubModel]:
    """Models whose name has `words` in it, those that are fetched most first. Raises BadInput, or Unavailable (offline,
    not reached, too slow, too large)."""
    words = words.strip().removeprefix("https://huggingface.co/").strip("/")
    if not words or len(words) > LONGEST:
        raise BadInput(f"{NAME}: type a part of a model's name, such as SmolLM2; at most {LONGEST} characters.")
    return [found for found in map(_found, _asked(words)) if found][:MOST]


def _asked(words: str) -> list[Any]:
    """The hub's answer as JSON."""
    asked = {"search": words, "filter": KINDS, "sort": "downloads", "limit": MOST, "expand": TOLD}
    content = answer(Question(NAME, "api/models", MOST_BYTES, asked=asked))
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list):
        raise Unavailable(STRANGE)
    return found


def _found(item: Any) -> HubModel | None:
    """What the hub says of a model, as far as it can be; None for what has no name that could be fetched."""
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
        why_not=ADAPTER if adapter else why_not(config),
    )


def _is_name(repo: str) -> bool:
    try:
        return parse_id(repo) == (repo, None)
    except BadInput:
        return False


def _config(given: Any) -> dict[str, Any]:
    """Of a config.json what `why_not` asks for and the hub tells, each of its kind."""
    given = _table(given)
    names = [name[:100] for name in _list(given.get("architectures")) if isinstance(name, str)]
    made: dict[str, Any] = {"architectures": names[:1]} if names else {}
    if isinstance(given.get("model_type"), str):
        made["model_type"] = given["model_type"][:100]
    if given.get("quantization_config"):
        made["quantization_config"] = {"quant_method": ""}
    return made


def _counts(given: Any) -> dict[str, int]:
    """Weights by their type."""
    return {dtype: _count(count) for dtype, count in _table(_table(given).get("parameters")).items()}


def _count(given: Any) -> int:
    return given if type(given) is int and 0 <= given < 2**53 else 0


def _list(given: Any) -> list[Any]:
    return given if isinstance(given, list) else []


def _table(given: Any) -> dict[str, Any]:
    return given if isinstance(given, dict) else {}
