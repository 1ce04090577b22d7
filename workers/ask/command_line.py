"""The `speculoos` command that does what a form is about to do, and the key=value settings both understand. No torch.

Pages show `command_for(request, names)`; `cli/commands` parses the same words with `parse_settings`.
"""

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

from models.methods import trees
from speculoos.errors import BadInput
from speculoos.suites import BUILT_IN as BUILT_IN_SUITE
from workers.ask.builtin import PREFIX as BUILT_IN
from workers.ask.requests import (
    HUB,
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Request,
    Train,
    Tune,
)

Words = list[str]


class PositionalArgument(str):
    """A word that is no option and none of the program's own: a name or a path, whatever it begins with."""


PLAIN = re.compile(r"[0-9]{1,9}")
MOST_COUNTS = 12
MOST_BATCH, MOST_LAYERS = 64, 1000
"""Largest numbers that a plan takes."""


def command_for(
    request: Request, names: Mapping[str, str] | None = None, name: str = "", flags: Iterable[str] = ()
) -> str:
    """The shell command that submits `request`. `names` maps the row ids in it to names; `name` is the output's,
    `flags` what the command does beside.

    Ids without a name are shown as they are; the commands accept both.
    """
    named = {**(names or {})}
    words = _WORDS[type(request)](request, lambda row_id: named.get(row_id, row_id))
    return _joined([*words, *_option("name", name), *flags])


def extend_command(name: str, limit: int) -> str:
    """The shell command that answers further prompts into the data set called `name`."""
    return _joined(["data", "extend", PositionalArgument(name), "--limit", str(limit)])


def _joined(words: Words) -> str:
    """For a shell. Where something given begins with a dash it comes last, after what says that no option follows."""
    given = [word for word in words if isinstance(word, PositionalArgument)]
    if any(word.startswith("-") for word in given):
        words = [*(word for word in words if not isinstance(word, PositionalArgument)), "--", *given]
    return shlex.join(["speculoos", *words])


def parse_settings(pairs: Iterable[str]) -> dict[str, Any]:
    """`["lr=1e-3", "tree=[[0],[1]]", "name=x"]` as a dict: JSON where it parses, else text. Raises BadInput."""
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key.strip():
            raise BadInput(f"--set {pair}: expected key=value.")
        settings[key.strip()] = _value(value.strip())
    return settings


def parse_numbers(label: str, text: str) -> tuple[float, ...]:
    """Numbers from 0 to 5 with commas between them, none for an empty text. Raises BadInput."""
    try:
        numbers = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise BadInput(f"{label}: expected numbers such as 0.0,0.3,0.7, got {text!r}.") from None
    if not all(0 <= number <= 5 for number in numbers):
        raise BadInput(f"{label}: expected numbers from 0 to 5, got {text!r}.")
    return numbers


def parse_counts(label: str, text: str, most: int) -> list[int]:
    """`1, 4, 16` as whole numbers from 1 to `most`, rising, each once. Raises BadInput."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if len(parts) > MOST_COUNTS or not all(PLAIN.fullmatch(part) and 1 <= int(part) <= most for part in parts):
        raise BadInput(f"{label}: expected whole numbers from 1 to {most} with commas between, such as 1, 4, 16.")
    return sorted({int(part) for part in parts})


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
    return _valued(f"--{key.replace('_', '-')}", value)


def _valued(flag: str, value: Any) -> Words:
    """The option with its value, in one word where the value looks like an option."""
    return [f"{flag}={value}"] if str(value).startswith("-") else [flag, str(value)]


def _settings(flag: str, values: Mapping[str, Any]) -> Words:
    return [word for key, value in values.items() for word in _valued(flag, f"{key}={_text(value)}")]


def _changed(request: Request, *keys: str) -> Words:
    """Flags for the fields that are not at their default."""
    fields = type(request).__dataclass_fields__
    return [word for key in keys for word in _option(key, getattr(request, key), fields[key].default)]


def _fetch(request: FetchModel, named: Callable[[str], str]) -> Words:
    return [
        "models",
        "add",
        *([PositionalArgument(request.location)] if request.location else []),
        "--source",
        request.source,
    ]


def _import_draft(request: ImportDraft, named: Callable[[str], str]) -> Words:
    uploaded = request.source == "upload"  # from a folder of the visitor's own
    location = PositionalArgument(f"./{PurePath(request.location).name}" if uploaded else request.location)
    words = ["models", "add-draft", location, *_option("model", named(request.base_id))]
    return [*words, "--source", "folder" if uploaded else request.source, *_option("format", request.layout)]


def _import(request: ImportPrompts, named: Callable[[str], str]) -> Words:
    if request.path.startswith(BUILT_IN):
        return ["data", "add-builtin", request.path.removeprefix(BUILT_IN)]
    file = [PositionalArgument(name)] if (name := _file(request)) else []
    return ["data", "import", *file, *_changed(request, "suite", "limit"), *_settings("--field", request.fields)]


def _file(request: ImportPrompts | ImportAnswered) -> str:
    """What people call it: an upload by its name, a data set on the hub by its id; nothing for a suite of the hub."""
    return request.path if request.path.startswith(HUB) else request.original_name or request.path


def _import_answered(request: ImportAnswered, named: Callable[[str], str]) -> Words:
    words = [
        "data",
        "import",
        PositionalArgument(_file(request)),
        "--answered",
        *_option("model", named(request.base_id)),
    ]
    return [*words, *_changed(request, "limit"), *_settings("--field", request.fields)]


def _generate_data(request: GenerateData, named: Callable[[str], str]) -> Words:
    keys = ("limit", "system_prompt", "max_tokens", "temperature", "top_p", "batch_size", "seed", "max_minutes")
    keys += ("samples", "shard_rows", "api", "hidden_states_store")
    who = [*_changed(request, "endpoint"), *_option("model", named(request.base_id))]
    mix = _option("temperatures", ",".join(map(str, request.temperatures)))
    flags = [f"--{key.replace('_', '-')}" for key in ("replace_system", "drop_cut", "unique") if getattr(request, key)]
    return [
        *("data", "generate", *_option("prompts", named(request.source_id))),
        *who,
        *_changed(request, "endpoint_model", *keys),
        *mix,
        *flags,
    ]


def _train(request: Train, named: Callable[[str], str]) -> Words:
    words = ["train", request.method, *_option("model", named(request.base_id))]
    words += [word for row_id in request.dataset_ids for word in _option("data", named(row_id))]
    return [*words, *_changed(request, "recipe"), *_settings("--set", request.settings)]


def _evaluate(request: Evaluate, named: Callable[[str], str]) -> Words:
    words = ["evaluate", *_option("model", named(request.base_id))]
    words += _option("checkpoint", named(request.checkpoint_id))
    words += _changed(request, "endpoint", "endpoint_model", "plain_model")
    words += _option("questions", named(request.dataset_id))
    words += ["--limit", str(request.limit), "--max-tokens", str(request.max_tokens)]
    words += _changed(request, "temperature", "top_p", "seed", "dtype")
    return [*words, *_settings("--draft", request.drafting)]


def _matrix(request: Matrix, named: Callable[[str], str]) -> Words:
    words = ["matrix"]
    for model in request.models:
        base, checkpoint = named(model["base_id"]), model.get("checkpoint_id")
        words += _option("model", f"{base}@{named(checkpoint)}" if checkpoint else base)
    words += [word for suite in request.suites for word in _option("suite", named(suite) if suite else BUILT_IN_SUITE)]
    words += _each("temperature", request.temperatures, [0.0]) + _each("top-p", request.top_ps, [1.0])
    words += _each("dtype", request.dtypes, [""])
    words += _each("tree", [trees.typed(drafting) for drafting in request.drafting], [trees.OWN])
    return [*words, "--limit", str(request.limit), "--max-tokens", str(request.max_tokens), *_changed(request, "seed")]


def _each(key: str, values: Sequence[Any], default: Sequence[Any]) -> Words:
    """The option once for each value; nothing where they are as if it was not given."""
    return [] if list(values) == list(default) else [word for value in values for word in _valued(f"--{key}", value)]


def _plan(request: PlanRequest, named: Callable[[str], str]) -> Words:
    model = named(request.base_id) + (f"@{named(request.checkpoint_id)}" if request.checkpoint_id else "")
    words = ["plan", PositionalArgument(model), *(["--machine", "FILE"] if request.costs else [])]
    words += _option("questions", named(request.dataset_id))
    numbers = (_option(key, ",".join(map(str, getattr(request, key)))) for key in ("batches", "layers"))
    words += _changed(request, "limit", "max_tokens", "draft_hidden_size")
    return [*words, *(word for pair in numbers for word in pair)]


def _replay(request: ReplayRequest, named: Callable[[str], str]) -> Words:
    draft = f"{named(request.base_id)}@{named(request.checkpoint_id)}"
    words = ["replay", "run", PositionalArgument(named(request.dataset_id)), *_option("draft", draft)]
    return [*words, "--limit", str(request.limit), *_changed(request, "show"), *_settings("--set", request.drafting)]


def _tune(request: Tune, named: Callable[[str], str]) -> Words:
    words = ["tune", PositionalArgument(f"{named(request.base_id)}@{named(request.checkpoint_id)}")]
    words += _option("questions", named(request.dataset_id))
    return [*words, *_changed(request, "limit", "max_tokens", "dtype"), *([] if request.keep else ["--no-keep"])]


def _export(request: Export, named: Callable[[str], str]) -> Words:
    return ["export", PositionalArgument(named(request.checkpoint_id)), "--format", request.format]


_WORDS: dict[type[Request], Callable[[Any, Callable[[str], str]], Words]] = {
    FetchModel: _fetch,
    ImportDraft: _import_draft,
    ImportPrompts: _import,
    ImportAnswered: _import_answered,
    GenerateData: _generate_data,
    Train: _train,
    Evaluate: _evaluate,
    Matrix: _matrix,
    PlanRequest: _plan,
    ReplayRequest: _replay,
    Tune: _tune,
    Export: _export,
}
