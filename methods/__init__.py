"""The drafting methods, one record each. Every table that names methods is made of these; no torch.

A method of one's own is a module with a record called METHOD; its name goes into SPECULOOS_METHODS.
"""

import importlib
import os
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import Any, TypeVar

from pydantic import ValidationError

from methods.record import Method
from methods.settings import Setting, TrainConfig, first_problem, settings_of
from speculoos.errors import BadInput, Unsupported

Record = TypeVar("Record")
BUILT_IN = ("methods.medusa", "methods.eagle", "methods.eagle3", "methods.standalone")


class _Table(Mapping[str, Record]):
    """A mapping that is made when it is first looked into."""

    @abstractmethod
    def _all(self) -> Mapping[str, Record]: ...

    def __getitem__(self, name: str) -> Record:
        return self._all()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._all())

    def __len__(self) -> int:
        return len(self._all())


class _Records(_Table[Method]):
    """Every record by its method's name. Those of SPECULOOS_METHODS (module names, comma-separated) are read when they
    are first asked for: a stranger's module may hold its classes too, and those import rooms that import this one."""

    def __init__(self) -> None:
        self._known = _read(BUILT_IN)
        self._further = [name.strip() for name in os.environ.get("SPECULOOS_METHODS", "").split(",") if name.strip()]

    def _all(self) -> dict[str, Method]:
        further, self._further = self._further, []
        if further:
            self._known |= _read(further)
        return self._known


def _read(modules: Iterable[str]) -> dict[str, Method]:
    return {record.name: record for record in (importlib.import_module(name).METHOD for name in modules)}


METHODS: Mapping[str, Method] = _Records()


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


class _Settings(_Table[Setting]):
    """Every setting by name; `methods` names those it counts for, where it does not count for all."""

    def _all(self) -> dict[str, Setting]:
        return _all_settings(tuple(METHODS.values()))


@cache
def _all_settings(methods: tuple[Method, ...]) -> dict[str, Setting]:
    settings: dict[str, Setting] = {}
    for method in methods:
        for setting in settings_of(method.config, (method.name,)):
            if setting.methods and setting.name in settings:
                setting = replace(setting, methods=(*settings[setting.name].methods, method.name))
            settings[setting.name] = setting
    return settings


SETTINGS: Mapping[str, Setting] = _Settings()
