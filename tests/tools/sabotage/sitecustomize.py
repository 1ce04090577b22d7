"""With this folder on PYTHONPATH, generation fails once for each order (a file) in the folder that SABOTAGE names.

`panic` raises an error that `except Exception` does not catch, like a panic in Rust code; `hang` never returns.
"""

import importlib.abc
import importlib.machinery
import os
import sys
import time
from pathlib import Path

MODULE, NAME = "decoding.generate", "generate"
ORDERS = Path(os.environ.get("SABOTAGE", "/nonexistent"))


class Panic(BaseException):
    """Like pyo3's PanicException, not a subclass of Exception."""


def misbehave():
    for order in ("panic", "hang"):
        try:
            (ORDERS / order).unlink()
        except OSError:
            continue
        if order == "panic":
            raise Panic("called `Option::unwrap()` on a `None` value")
        while True:
            time.sleep(60)


class Loader(importlib.abc.Loader):
    def __init__(self, real):
        self.real = real

    def create_module(self, spec):
        return self.real.create_module(spec)

    def exec_module(self, module):
        self.real.exec_module(module)
        original = getattr(module, NAME)

        def generate(*args, **kwargs):
            misbehave()
            yield from original(*args, **kwargs)

        setattr(module, NAME, generate)


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname != MODULE:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        spec.loader = Loader(spec.loader)
        return spec


if ORDERS.is_dir():
    sys.meta_path.insert(0, Finder())
