"""The web server. It imports Gradio without writing its stub files, which takes a second of CPU time at each start."""

import gc
import inspect
import os

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


def _import_gradio() -> None:
    def no_source_file(_: object) -> str:
        raise OSError  # as for classes without a file, for which Gradio writes no stubs

    collecting, find = gc.isenabled(), inspect.getfile
    inspect.getfile = no_source_file
    gc.disable()  # what is imported stays
    try:
        import gradio  # noqa: F401
    finally:
        inspect.getfile = find
        if collecting:
            gc.enable()


_import_gradio()
