"""The `speculoos` command that does what a form is about to do, and the key=value settings both understand. No torch.

Pages show `command_for(request, names)`; `speculoos/commands` parses the same words with `parse_settings`.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

from speculoos.errors import BadInput
from workers.ask.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Request,
    Train,
)

Words = list[str]


def command_for(request: Request, names: Mapping[str, str] | None = None, name: str = "") -> str:
    """The shell command that submits `request`. `names` maps the row ids in it to names; `name` is the output's.

    Ids without a name are shown as they are; the commands accept both.
    """
    named = {**(names or {})}
    words = _WORDS[type(request)](request, lambda row_id: named.get(row_id, row_id))
    return shlex.join(["speculoos", *words, *_option("name", name)])


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["lr=1e-3", "tree=[[0],[1]]", "name=x"]` as a dict: JSON where it parses, else text. Raises BadInput."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set {pair}: expected key=value.")
        settings[key.strip()] = _value(value.strip())
    return settings


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _text(value: Any) -> str:
    return value if isinstance(value, str) and isinstance(_value(value), str) else json.dumps(value, ensure_ascii=False)


def _option(key: str, value: Any, default: Any = None) -> Words:
    if value is None or value == "" or value == default:
        return []
    return [f"--{key.replace('_', '-')}", str(value)]


def _settings(flag: str, values: Mapping[str, Any]) -> Words:
    return [word for key, value in values.items() for word in (flag, f"{key}={_text(value)}")]


def _changed(request: Request, *keys: str) -> Words:
    """Flags for the fields that are not at their default."""
    fields = type(request).__dataclass_fields__
    return [word for key in keys for word in _option(key, getattr(request, key), fields[key].default)]


def _fetch(request: FetchModel, named: Callable[[str], str]) -> Words:
    return ["models", "add", *([request.location] if request.location else []), "--source", request.source]


def _import_draft(request: ImportDraft, named: Callable[[str], str]) -> Words:
    uploaded = request.source == "upload"  # from a folder of the visitor's own
    location = f"./{PurePath(request.location).name}" if uploaded else request.location
    words = ["models", "add-draft", location, *_option("model", named(request.base_id))]
    return [*words, "--source", "folder" if uploaded else request.source, *_option("format", request.layout)]


def _import(request: ImportPrompts, named: Callable[[str], str]) -> Words:
    return ["data", "import", request.original_name or request.path, *_changed(request, "limit")]


def _import_answered(request: ImportAnswered, named: Callable[[str], str]) -> Words:
    words = ["data", "import", request.original_name or request.path, "--answered", "--model", named(request.base_id)]
    return [*words, *_changed(request, "limit")]


def _generate_data(request: GenerateData, named: Callable[[str], str]) -> Words:
    keys = ("limit", "system_prompt", "max_tokens", "temperature", "top_p", "batch_size", "seed", "max_minutes")
    keys += ("samples", "shard_rows")
    who = _option("model", named(request.base_id)) if not request.endpoint else _changed(request, "endpoint")
    return [
        *("data", "generate", "--prompts", named(request.source_id)),
        *who,
        *_changed(request, "endpoint_model", *keys),
    ]


def _train(request: Train, named: Callable[[str], str]) -> Words:
    words = ["train", request.method, "--model", named(request.base_id), "--data", named(request.dataset_id)]
    return [*words, *_changed(request, "recipe"), *_settings("--set", request.settings)]


def _evaluate(request: Evaluate, named: Callable[[str], str]) -> Words:
    words = ["evaluate", "--model", named(request.base_id)]
    words += _option("checkpoint", named(request.checkpoint_id) if request.checkpoint_id else "")
    words += _option("questions", named(request.dataset_id) if request.dataset_id else "")
    words += ["--limit", str(request.limit), "--max-tokens", str(request.max_tokens)]
    return [*words, *_settings("--draft", request.drafting)]


def _export(request: Export, named: Callable[[str], str]) -> Words:
    return ["export", named(request.checkpoint_id), "--format", request.format]


_WORDS: dict[type[Request], Callable[[Any, Callable[[str], str]], Words]] = {
    FetchModel: _fetch,
    ImportDraft: _import_draft,
    ImportPrompts: _import,
    ImportAnswered: _import_answered,
    GenerateData: _generate_data,
    Train: _train,
    Evaluate: _evaluate,
    Export: _export,
}
