"""Registry of drafting methods: one Method record each. No torch. To add a method, write a module with a record METHOD
and list the module in SPECULOOS_METHODS."""

import importlib
import os
from collections import UserDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from models.methods.record import Method
from models.methods.settings import Setting, TrainConfig, settings_error, settings_of
from speculoos.errors import BadInput, Unsupported

Record = TypeVar("Record")
BUILT_IN = tuple(f"models.methods.{name}" for name in ("medusa", "eagle", "eagle3", "peagle", "dflash", "standalone"))


class _Table(UserDict[str, Record]):
    """A mapping computed on access."""

    def __init__(self, make: Callable[[], dict[str, Record]]):
        self._make = make

    @property
    def data(self) -> dict[str, Record]:
        return self._make()


def _read(modules: Iterable[str]) -> dict[str, Method]:
    return {record.name: record for record in (importlib.import_module(name).METHOD for name in modules)}


_known = _read(BUILT_IN)
_extra_modules = [name.strip() for name in os.environ.get("SPECULOOS_METHODS", "").split(",") if name.strip()]


def _records() -> dict[str, Method]:
    """All records by name. Modules in SPECULOOS_METHODS (comma-separated) are imported on first access, since they may
    import packages that import this one."""
    modules = [*_extra_modules]
    _extra_modules.clear()
    _known.update(_read(modules))
    return _known


METHODS: Mapping[str, Method] = _Table(_records)


def find_method(name: str) -> Method:
    """The record of a method. Raises Unsupported for an unknown one."""
    if name not in METHODS:
        raise Unsupported(f"Unknown draft method {name!r}; choose one of {', '.join(METHODS)}.")
    return METHODS[name]


def train_config(method: str = "medusa", **settings: Any) -> TrainConfig:
    """Settings of a training run; strings are converted to the field's type. Settings of other methods are ignored.
    Raises BadInput naming the invalid field."""
    if method not in METHODS:
        raise BadInput(f"method: expected one of {', '.join(METHODS)}, got {method!r}.")
    schema = METHODS[method].config
    try:
        own = {name: value for name, value in settings.items() if name in schema.model_fields or name not in SETTINGS}
        return schema(method=method, **own)
    except ValidationError as error:
        raise settings_error(error, schema) from None


@cache
def _settings_of_all(methods: tuple[Method, ...]) -> dict[str, Setting]:
    """All settings by name; `Setting.methods` is empty for settings of all methods."""
    settings: dict[str, Setting] = {}
    for method in methods:
        for setting in settings_of(method.config, (method.name,)):
            if setting.methods and setting.name in settings:
                setting = replace(setting, methods=(*settings[setting.name].methods, method.name))
            settings[setting.name] = setting
    return settings


SETTINGS: Mapping[str, Setting] = _Table(lambda: _settings_of_all(tuple(METHODS.values())))
