"""The drafting methods, one record each. Every table that names methods is made of these; no torch.

A method of one's own is a module with a record called METHOD; its name goes into SPECULOOS_METHODS.
"""

import importlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from models.methods.record import Method
from models.methods.settings import Setting, TrainConfig, first_problem, settings_of
from speculoos.errors import BadInput, Unsupported

Record = TypeVar("Record")
BUILT_IN = ("models.methods.medusa", "models.methods.eagle", "models.methods.eagle3", "models.methods.standalone")


class _Table(Mapping[str, Record]):
    """A mapping that is made when it is first looked into."""

    def __init__(self, make: Callable[[], Mapping[str, Record]]):
        self._make = make

    def __getitem__(self, name: str) -> Record:
        return self._make()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._make())

    def __len__(self) -> int:
        return len(self._make())


def _read(modules: Iterable[str]) -> dict[str, Method]:
    return {record.name: record for record in (importlib.import_module(name).METHOD for name in modules)}


_known = _read(BUILT_IN)
_further = [name.strip() for name in os.environ.get("SPECULOOS_METHODS", "").split(",") if name.strip()]


def _records() -> dict[str, Method]:
    """Every record by its method's name. Those of SPECULOOS_METHODS (module names, comma-separated) are read when they
    are first asked for: a stranger's module may hold its classes too, and those import rooms that import this one."""
    further = [*_further]
    _further.clear()
    _known.update(_read(further))
    return _known


METHODS: Mapping[str, Method] = _Table(_records)


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
    schema = METHODS[method].config
    try:
        own = {name: value for name, value in settings.items() if name in schema.model_fields or name not in SETTINGS}
        return schema(method=method, **own)
    except ValidationError as error:
        raise first_problem(error, schema) from None


@cache
def _settings_of_all(methods: tuple[Method, ...]) -> dict[str, Setting]:
    """Every setting by name; `methods` names those it counts for, where it does not count for all."""
    settings: dict[str, Setting] = {}
    for method in methods:
        for setting in settings_of(method.config, (method.name,)):
            if setting.methods and setting.name in settings:
                setting = replace(setting, methods=(*settings[setting.name].methods, method.name))
            settings[setting.name] = setting
    return settings


SETTINGS: Mapping[str, Setting] = _Table(lambda: _settings_of_all(tuple(METHODS.values())))
