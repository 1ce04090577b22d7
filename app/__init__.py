"""The web server. It imports Gradio without writing its stub files, which takes a second of CPU time at each start."""

import gc
import inspect
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def _no_source_file(_: object) -> str:
    raise OSError  # as for classes without a file, for which Gradio writes no stubs


_getfile, inspect.getfile = inspect.getfile, _no_source_file
gc.disable()  # imported objects stay, so searching them is useless
import gradio  # noqa: E402, F401

inspect.getfile = _getfile
gc.enable()
