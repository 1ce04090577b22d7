"""Conversion between form values and requests.

Raise BadInput with the label of the control in the message.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from app.i18n import N_
from app.widgets.setting_fields import box_value, field_values
from models.hub_data import Location
from models.methods import SETTINGS, train_config, trees
from models.methods.recipes import config_for, read_recipe
from speculoos.errors import BadInput
from speculoos.settings import Settings
from workers.jobs.evaluate import MAX_TEMPERATURE
from workers.jobs.requests import Evaluate, FetchModel, GenerateData, ImportAnswered, ImportPrompts, Matrix, Train

ENDPOINT = "endpoint:"
SOURCES = {"hub": N_("Hub id"), "folder": N_("Local folder"), "gguf": N_("GGUF file"), "starter": N_("Starter model")}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
PRIVATE = ("secrets", "logs", "broker", "speculoos.db", "settings.toml")
"""Internal entries of the home folder, which pages neither read by path nor serve."""
SYSTEM = ("/proc", "/sys", "/dev")
ENDPOINT_FIELDS = ("endpoint_model", "api")
"""Fields of a generation that apply to endpoints only."""
GENERATE_FIELDS = tuple(name for name in GenerateData.options() if name != "endpoint")
"""Fields with their own control in the generation form; the model and the endpoint share one control."""
OWN_SETTINGS = N_("No recipe: default settings")
BUILT_IN = "built-in"
"""Value of the built-in questions: a multiselect dropdown does not accept an empty value."""
PAIR = ":"
"""Separator of base id and checkpoint id in the value of a choice."""
MOST_VALUES = 50


def fetch_request(settings: Settings, kind: str, location: str) -> FetchModel:
    """Request to fetch a base model. Raises BadInput."""
    location = location.strip()
    if kind == "starter":
        return FetchModel(source="starter", location="starter")
    if not location:
        raise BadInput(f"{SOURCES[kind]}: the field is empty; enter the model to add.")
    if kind == "hub":
        return FetchModel(source=kind, location=hub_id(location))
    path = readable(settings, location)
    if kind == "folder" and not path.is_dir():
        raise BadInput(f"Local folder: there is no folder {path}.")
    if kind == "gguf" and not path.is_file():
        raise BadInput(f"GGUF file: there is no file {path}.")
    return FetchModel(source=kind, location=str(path))


def hub_id(text: str) -> str:
    """`owner/name` or `owner/name@revision`, also from the URL of the hub page. Raises BadInput for anything else."""
    name = text.removeprefix("https://").removeprefix("huggingface.co/").strip("/")
    if not HUB_ID.fullmatch(name) or ".." in name:
        raise BadInput(f"Hub id: expected owner/name, such as HuggingFaceTB/SmolLM2-135M-Instruct, got {text[:80]!r}.")
    return name


def import_request(
    settings: Settings,
    upload: str | None,
    path: str,
    limit: float | str | None,
    answered_by: str | None = None,
    hub: str = "",
    suite: str = "",
    fields: dict[str, str] | None = None,
) -> ImportPrompts | ImportAnswered:
    """Request to import prompts from a file or a hub dataset, conversations answered by base `answered_by` (an id; ""
    if none is selected), or the questions of a suite (from the hub if no file is set). Raises BadInput."""
    if answered_by == "":
        raise BadInput("Response model: choose the base model that generated the responses, or an equal one.")
    if hub.strip() and (upload or path.strip()):
        raise BadInput("Choose a file or a dataset on the Hub, not both.")
    if suite and hub.strip():
        raise BadInput("A suite has its own file, or is downloaded without one; leave the dataset on the Hub out.")
    if hub.strip():
        location = hub_location(hub)
        values: dict[str, Any] = {"path": str(location), "original_name": location.title}
    elif suite and not (upload or path.strip()):
        values = {"path": ""}
    else:
        file = import_file(settings, upload, path)
        values = {"path": str(file), "original_name": file.name, "delete_after": bool(upload)}
    columns = {name: column for name, column in (fields or {}).items() if column}
    if columns and not suite and not {"prompt", "messages"} & set(columns):
        raise BadInput("Fields: choose the column of the prompt or of the messages.")
    values |= {"limit": limit or None, "fields": {} if suite else columns}
    return ImportAnswered(base_id=answered_by, **values) if answered_by else ImportPrompts(**values, suite=suite)


def hub_location(text: str) -> Location:
    """Parse the text of the hub box. Raises BadInput."""
    if not text.strip():
        raise BadInput("Dataset on the Hub: the field is empty; enter owner/name.")
    return Location.parse(text)


def import_file(settings: Settings, upload: str | None, path: str) -> Path:
    """Path of the upload, or of a file on the server. Raises BadInput."""
    if upload:
        return Path(upload)
    if not path.strip():
        raise BadInput("Choose a file to upload, or enter the path of a file on this server, or a dataset on the Hub.")
    file = readable(settings, path.strip())
    if not file.is_file():
        raise BadInput(f"Path: there is no file {file}.")
    return file


def readable(settings: Settings, text: str) -> Path:
    """Resolve a path that pages may read: any path on a private server, only the home folder on a shared one; never
    internal entries of the home folder or uploads. Raises BadInput."""
    try:
        path = (settings.home / Path(text).expanduser()).resolve()
        path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, NUL byte, unknown user after ~
        raise BadInput(f"Path: {text[:80]!r} is not a valid path.") from None
    internal = [settings.home / name for name in (*PRIVATE, "uploads")]
    if any(path.is_relative_to(folder) for folder in (*internal, *SYSTEM)):
        raise BadInput(f"Path: {path} is not accessible from pages; use another file, or upload it.")
    if settings.is_shared and not path.is_relative_to(settings.home):
        raise BadInput(f"Path: only files under {settings.home} can be read; copy the file there, or upload it.")
    return path


def generate_request(source_id: str, model: str | None = "", served: str | None = "", **values: Any) -> GenerateData:
    """Request to generate answers for the prompts `source_id`. Raises BadInput.

    `model`: id of a base, or ENDPOINT + name of an endpoint that serves base `served`. `values`: controls by field.
    """
    if not model:
        raise BadInput("Model or endpoint: choose which one generates the responses.")
    endpoint = model.removeprefix(ENDPOINT) if model.startswith(ENDPOINT) else ""
    if not endpoint:
        values = {name: value for name, value in values.items() if name not in ENDPOINT_FIELDS}
    fields = field_values(GenerateData, values)
    return GenerateData(source_id=source_id, base_id=(served or "") if endpoint else model, endpoint=endpoint, **fields)


def generate_form(request: GenerateData) -> dict[str, Any]:
    """Form values for a request, used for cloning."""
    model = f"{ENDPOINT}{request.endpoint}" if request.endpoint else request.base_id
    fields = {name: box_value(getattr(request, name)) for name in GENERATE_FIELDS}
    return {"model": model, "served": request.base_id if request.endpoint else "", **fields}


def train_request(
    base_id: str,
    dataset_ids: str | list[str],
    method: str,
    recipe: str,
    values: dict[str, Any],
    options: Mapping[str, Any] = MappingProxyType({}),
) -> Train:
    """Request to train a draft on one or several datasets. Raises BadInput.

    `values`: controls of the advanced settings; only values that differ from the recipe are stored. `options`: controls
    of the job's options.
    """
    if not base_id:
        raise BadInput("Base model: choose the model of the draft.")
    first, *more = [dataset_ids] if isinstance(dataset_ids, str) else dataset_ids or [""]
    if not first:
        raise BadInput("Data: choose conversations to train on; generate them on the Data page.")
    recipe = "" if recipe == OWN_SETTINGS else recipe
    start = config_for(method, recipe, {}).to_json()
    # An empty box is the default.
    entered = {name: SETTINGS[name].default if value is None else value for name, value in values.items()}
    config = train_config(**{**start, **entered}).to_json()
    changed = {name: value for name, value in config.items() if name in values and value != start[name]}
    rows = {"base_id": base_id, "dataset_id": first, "more_dataset_ids": more}
    filled = {name: value for name, value in options.items() if value is not None}
    return Train(method=method, **rows, settings=changed, recipe=recipe, **filled)


def recipe_values(method: str, recipe: str) -> dict[str, Any]:
    """Values of the advanced settings for a recipe (or the defaults); settings of other methods at their default."""
    overrides = {} if not recipe or recipe == OWN_SETTINGS else read_recipe(recipe).settings
    config = train_config(**{**overrides, "method": method}).to_json()
    return {name: box_value(config.get(name, setting.default)) for name, setting in SETTINGS.items()}


def matrix_request(
    models: list[str] | None, suites: list[str] | None, temperatures: str, tree_lines: str, limit: Any, max_tokens: Any
) -> Matrix:
    """Request for every combination of the selected values. Raises BadInput."""
    if not models:
        raise BadInput("Models: choose one or more base models or drafts.")
    if not suites:
        raise BadInput("Suites: choose one or more sets of questions.")
    return Matrix(
        models=[dict(zip(("base_id", "checkpoint_id"), pair(model), strict=True)) for model in models],
        suites=[questions_of(suite) for suite in suites],
        temperatures=numbers("Temperatures", temperatures, 0, MAX_TEMPERATURE),
        drafting=[trees.parse(line) for line in lines("Trees", tree_lines) or [trees.CHECKPOINT_OPTIONS]],
        **field_values(Matrix, {"limit": limit, "max_tokens": max_tokens}),
    )


def served_request(
    endpoint: str | None,
    model: str,
    plain_model: str,
    serves: str | None,
    suite: str | None,
    limit: Any,
    max_tokens: Any,
    plain_endpoint: str | None = "",
    concurrency: str = "",
) -> Evaluate:
    """Request to evaluate an endpoint on a suite. Raises BadInput."""
    values = {"endpoint_model": model, "plain_model": plain_model, "limit": limit, "max_tokens": max_tokens}
    values |= {"plain_endpoint": plain_endpoint, "concurrency": concurrency}
    if not endpoint:
        raise BadInput("Server: choose an endpoint; they are defined in settings.toml.")
    base_id, checkpoint_id = pair(serves or "")
    return Evaluate(
        base_id=base_id,
        checkpoint_id=checkpoint_id,
        dataset_id=questions_of(suite),
        endpoint=endpoint,
        **field_values(Evaluate, values),
    )


def pair(choice: str) -> tuple[str, str]:
    """(base id, checkpoint id or "") of a choice's value."""
    base_id, _, checkpoint_id = choice.partition(PAIR)
    return base_id, checkpoint_id


def lines(label: str, text: str | None) -> list[str]:
    """Non-empty lines without duplicates. Raises BadInput if there are too many."""
    result = list(dict.fromkeys(line.strip() for line in (text or "").splitlines() if line.strip()))
    if len(result) > MOST_VALUES:
        raise BadInput(f"{label}: at most {MOST_VALUES} are allowed.")
    return result


def numbers(label: str, text: str | None, low: float, high: float) -> list[float]:
    """Parse `0, 0.7, 1`, without duplicates. Raises BadInput."""
    try:
        values = [float(value) for value in (text or "").replace(";", ",").split(",") if value.strip()]
    except ValueError:
        values = []
    if not 0 < len(values) <= MOST_VALUES or not all(low <= value <= high for value in values):
        raise BadInput(f"{label}: expected one or more numbers from {low:g} to {high:g}, such as 0, 1.")
    return list(dict.fromkeys(values))


def questions_of(suite: str | None) -> str:
    """Id of the dataset of a choice of questions; "" for the built-in ones."""
    return suite if suite and suite != BUILT_IN else ""


def whole_number(label: str, value: str | None) -> int | None:
    """Parse a whole number of 0 or more; None if the box is empty. Raises BadInput."""
    text = str(value or "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise BadInput(f"{label}: expected a whole number of 0 or more, got {text[:40]!r}.")
    return int(text)
