"""What is in a form, as the request it means, and back. Pure functions: empty boxes, typed numbers, chosen names.

Raises BadInput with the control's name in the words of the page.
"""

import math
import re
from pathlib import Path
from typing import Any

from models.hub_data import Location
from models.methods import SETTINGS, train_config
from models.methods.recipes import config_for, read_recipe
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput
from speculoos.settings import Settings
from workers.ask.command_line import parse_numbers
from workers.ask.requests import FetchModel, GenerateData, ImportAnswered, ImportPrompts, Train

ENDPOINT = "endpoint:"
SOURCES = {"Hub id": "hub", "Local folder": "folder", "GGUF file": "gguf", "Starter model": "starter"}
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w./-]+)?", re.ASCII)
PRIVATE = ("secrets", "logs", "broker", "speculoos.db", "settings.toml")
"""What the home keeps for itself: pages neither read it by its path nor hand it out."""
SYSTEM = ("/proc", "/sys", "/dev")
OWN_SETTINGS = "No recipe: all settings at their default"


def fetch_request(settings: Settings, source: str, location: str) -> FetchModel:
    """A base model to bring here."""
    kind, location = SOURCES[source], location.strip()
    if kind == "starter":
        return FetchModel("starter", "starter")
    if not location:
        raise BadInput(f"{source}: say which one; the box is empty.")
    if kind == "hub":
        return FetchModel(kind, hub_id(location))
    path = readable(settings, location)
    if kind == "folder" and not path.is_dir():
        raise BadInput(f"Local folder: there is no folder {path}.")
    if kind == "gguf" and not path.is_file():
        raise BadInput(f"GGUF file: there is no file {path}.")
    return FetchModel(kind, str(path))


def hub_id(text: str) -> str:
    """`owner/name` or `owner/name@revision`, also out of the page's address. Raises BadInput for anything else."""
    name = text.removeprefix("https://").removeprefix("huggingface.co/").strip("/")
    if not HUB_ID.fullmatch(name) or ".." in name:
        raise BadInput(f"Hub id: expected owner/name, such as HuggingFaceTB/SmolLM2-135M-Instruct, got {text[:80]!r}.")
    return name


def import_request(
    settings: Settings,
    upload: str | None,
    path: str,
    limit: float | None,
    answered_by: str | None = None,
    hub: str = "",
    suite: str = "",
    fields: dict[str, str] | None = None,
) -> ImportPrompts | ImportAnswered:
    """Prompts of a file or of a data set on the hub, conversations that base `answered_by` (an id) answered ("" when
    none was chosen), or the questions of a suite; without a file the hub's."""
    if answered_by == "":
        raise BadInput("Answered by: choose the base model that wrote the answers, or one equal to it.")
    if hub.strip() and (upload or path.strip()):
        raise BadInput("Give a file or a data set on the hub, one of the two.")
    if suite and hub.strip():
        raise BadInput("A suite is read from its own file, or fetched where both boxes are empty; leave the hub's out.")
    if hub.strip():
        location = hub_location(hub)
        given: dict[str, Any] = {"path": str(location), "original_name": location.title}
    elif suite and not (upload or path.strip()):
        given = {"path": ""}
    else:
        file = import_file(settings, upload, path)
        given = {"path": str(file), "original_name": file.name, "delete_after": bool(upload)}
    said = {name: column for name, column in (fields or {}).items() if column}
    if said and not suite and not {"prompt", "messages"} & set(said):
        raise BadInput("Fields: say which one holds the prompt, or the messages.")
    given |= {"limit": whole("Rows at most", limit, low=1), "fields": {} if suite else said}
    return ImportAnswered(base_id=answered_by, **given) if answered_by else ImportPrompts(**given, suite=suite)


def hub_location(text: str) -> Location:
    """What was typed into the box for the hub. Raises BadInput."""
    if not text.strip():
        raise BadInput("Data set on the hub: say which one, as owner/name; the box is empty.")
    return Location.parse(text)


def import_file(settings: Settings, upload: str | None, path: str) -> Path:
    """An upload (ours to remove), or a file that lies on the server."""
    if upload:
        return Path(upload)
    if not path.strip():
        raise BadInput("Choose a file to upload, or give the path of one on this server, or a data set on the hub.")
    file = readable(settings, path.strip())
    if not file.is_file():
        raise BadInput(f"Path: there is no file {file}.")
    return file


def readable(settings: Settings, text: str) -> Path:
    """A path that pages may name: any on one's own machine, only the home folder where others may come in; never
    what the home keeps for itself, nor another's upload."""
    try:
        path = (settings.home / Path(text).expanduser()).resolve()
        path.exists()
    except (OSError, ValueError, RuntimeError):  # too long, a NUL, the home of nobody
        raise BadInput(f"Path: {text[:80]!r} cannot be the path of a file here.") from None
    own = [settings.home / name for name in (*PRIVATE, "uploads")]
    if any(path.is_relative_to(place) for place in (*own, *SYSTEM)):
        raise BadInput(f"Path: {path} is not for pages; give a file of yours, or upload it.")
    if settings.is_shared and not path.is_relative_to(settings.home):
        raise BadInput(f"Path: only files under {settings.home} can be named here; copy it there, or upload it.")
    return path


def generate_request(source_id: str, **form: Any) -> GenerateData:
    """Answers for the prompts `source_id`. `form`: who, endpoint_model, limit, system_prompt, max_tokens,
    temperature, top_p, batch_size, max_minutes, seed, samples, shard_rows, served, temperatures, replace_system, api,
    drop_cut, unique, hidden_states_store, as the controls hold them."""
    who = form.get("who") or ""
    if not who:
        raise BadInput("Who answers: choose a base model or an endpoint.")
    endpoint = who.removeprefix(ENDPOINT) if who.startswith(ENDPOINT) else ""
    return GenerateData(
        source_id=source_id,
        base_id=(form.get("served") or "") if endpoint else who,
        endpoint=endpoint,
        endpoint_model=(form.get("endpoint_model") or "").strip() if endpoint else "",
        limit=whole("Prompts at most", form.get("limit"), low=1),
        system_prompt=(form.get("system_prompt") or "").strip(),
        max_tokens=whole("Most tokens of an answer", form.get("max_tokens"), low=1, high=100_000, default=256),
        temperature=number("Temperature", form.get("temperature"), 0, 5, 0.0),
        top_p=number("Top-p", form.get("top_p"), 0.01, 1, 1.0),
        batch_size=whole("Answers at once", form.get("batch_size"), low=1, high=4096, default=16),
        seed=whole("Seed", form.get("seed"), low=0, default=0),
        max_minutes=number("Minutes at most", form.get("max_minutes"), 0, 10**6, 0.0) or None,
        samples=whole("Answers to each prompt", form.get("samples"), low=1, high=1000, default=1),
        shard_rows=whole("Prompts a shard", form.get("shard_rows"), low=1),
        temperatures=parse_numbers("Several temperatures", form.get("temperatures") or ""),
        replace_system=bool(form.get("replace_system")),
        api=(form.get("api") or "chat") if endpoint else "chat",
        drop_cut=bool(form.get("drop_cut")),
        unique=bool(form.get("unique")),
        hidden_states_store=(form.get("hidden_states_store") or "").strip(),
    )


def generate_form(request: dict[str, Any]) -> dict[str, Any]:
    """The form's values for a stored request: what cloning fills in."""
    who = f"{ENDPOINT}{request['endpoint']}" if request.get("endpoint") else request.get("base_id", "")
    keys = ("endpoint_model", "limit", "system_prompt", "max_tokens", "temperature", "top_p", "batch_size", "seed")
    keys += ("max_minutes", "samples", "shard_rows", "hidden_states_store")
    more = {key: bool(request.get(key)) for key in ("replace_system", "drop_cut", "unique")}
    more |= {"api": request.get("api") or "chat", "served": request.get("base_id") if request.get("endpoint") else ""}
    mix = ", ".join(map(str, request.get("temperatures") or ()))
    return {"who": who, **{k: request.get(k) for k in keys}, **more, "temperatures": mix}


def train_request(
    base_id: str, dataset_ids: str | list[str], method: str, recipe: str, values: dict[str, Any]
) -> Train:
    """A draft to train, on one data set or on several together. `values` are the advanced settings' boxes; only what
    differs from the recipe is kept."""
    if not base_id:
        raise BadInput("Base: choose the model to draft for.")
    first, *more = [dataset_ids] if isinstance(dataset_ids, str) else dataset_ids or [""]
    if not first:
        raise BadInput("Data: choose conversations to train on; generate some on the Data page.")
    recipe = "" if recipe == OWN_SETTINGS else recipe
    start = config_for(method, recipe, {}).to_json()
    config = train_config(**{**start, **box_values(values)}).to_json()
    changed = {name: value for name, value in config.items() if name in values and value != start[name]}
    data = {"dataset_id": first, "more_dataset_ids": more}
    return Train(method=method, base_id=base_id, settings=changed, recipe=recipe, **data)


def box_values(values: dict[str, Any]) -> dict[str, Any]:
    """Boxes as settings: an emptied number box means the default."""
    return {name: SETTINGS[name].default if value is None else value for name, value in values.items()}


def config_of(request: Train) -> TrainConfig:
    """Every setting a request comes to."""
    return config_for(request.method, request.recipe, request.settings)


def recipe_values(method: str, recipe: str) -> dict[str, Any]:
    """The advanced settings' boxes for a recipe (or for the defaults); those of other methods at their default."""
    named = {} if not recipe or recipe == OWN_SETTINGS else read_recipe(recipe).settings
    config = train_config(**{**named, "method": method}).to_json()
    return {name: box(config.get(name, setting.default)) for name, setting in SETTINGS.items()}


def box(value: Any) -> Any:
    """A setting as its box shows it: tuples are typed as `1, 14, 26`."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else value


def whole(
    label: str, value: float | str | None, low: int = 0, high: int | None = None, default: int | None = None
) -> int | None:
    """A whole number from a box, `default` when it is empty. Raises BadInput."""
    if value in (None, ""):
        return default
    try:
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise BadInput(f"{label}: expected a whole number, got {value!r}.") from None
    if not result.is_integer() or result < low or (high is not None and result > high):
        bounds = f"from {low} to {high}" if high is not None else f"of {low} or more"
        raise BadInput(f"{label}: expected a whole number {bounds}, got {result:g}.")
    return int(result)


def number(label: str, value: float | str | None, low: float, high: float, default: float) -> float:
    """A number from a box, `default` when it is empty. Raises BadInput."""
    if value in (None, ""):
        return default
    try:
        result = float(value)
    except ValueError:
        raise BadInput(f"{label}: expected a number, got {value!r}.") from None
    if not math.isfinite(result) or not low <= result <= high:
        raise BadInput(f"{label}: expected {low:g} to {high:g}, got {value}.")
    return result
