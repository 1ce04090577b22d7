"""The drafting methods, one record each. Every table that names methods is made of these; no torch.

A method of one's own is a module with a record called METHOD; its name goes into SPECULOOS_METHODS.
"""

import importlib
import os
from typing import Any

from pydantic import ValidationError

from methods.record import Method
from methods.settings import Setting, TrainConfig, first_problem, settings_of
from speculoos.errors import BadInput, Unsupported

BUILT_IN = ("methods.medusa", "methods.eagle", "methods.eagle3", "methods.standalone")
FURTHER = tuple(filter(None, (name.strip() for name in os.environ.get("SPECULOOS_METHODS", "").split(","))))
"""SPECULOOS_METHODS: modules with further methods, comma-separated."""

METHODS: dict[str, Method] = {
    record.name: record for record in (importlib.import_module(name).METHOD for name in (*BUILT_IN, *FURTHER))
}


def find_method(name: str) -> Method:
    """The record of a method. Raises Unsupported for an unknown one."""
    if name not in METHODS:
        raise Unsupported(f"Unknown draft method {name!r}; known are {', '.join(METHODS)}.")
    return METHODS[name]


def train_config(method: str = "medusa", **settings: Any) -> TrainConfig:
    """The settings of one run, stored or typed: texts are read as the field's type. Those of other methods are left
    out, so that one set of settings may serve several. Raises BadInput naming the field that is wrong."""
    if method not in METHODS:
        raise BadInput(f"method: expected one of {', '.join(METHODS)}, got {method!r}.")
    made = METHODS[method].config
    try:
        own = {name: value for name, value in settings.items() if name in made.model_fields or name not in SETTINGS}
        return made(method=method, **own)
    except ValidationError as error:
        raise first_problem(error, made) from None


def settings_for(method: str) -> list[Setting]:
    """The settings that count for `method`, in order."""
    return [SETTINGS[found.name] for found in settings_of(METHODS[method].config)]


def _all_settings() -> dict[str, Setting]:
    """Every setting by name; `methods` names those it counts for, where it does not count for all."""
    owners: dict[str, tuple[str, ...]] = {}
    for method in METHODS.values():
        for name in method.config.model_fields:
            owners[name] = (*owners.get(name, ()), method.name)
    return {
        found.name: found
        for method in METHODS.values()
        for found in (
            s if not s.methods else Setting(s.name, s.default, s.help, owners[s.name], s.choices, s.low, s.high)
            for s in settings_of(method.config, (method.name,))
        )
    }


SETTINGS: dict[str, Setting] = _all_settings()
