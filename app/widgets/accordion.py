"""A part of a form that is folded until someone opens it."""

from typing import Any

import gradio as gr


def closed_accordion(title: str, **options: Any) -> gr.Accordion:
    """A closed accordion whose fields are on the page from the start.

    Gradio makes what is inside an accordion with `open=False` when it is opened, and a frame later sets every field
    to the value it had before: what was entered in between is lost. It looks for `false` and for nothing else, so 0,
    which is as closed, spares the fields this.
    """
    return gr.Accordion(title, open=0, **options)  # type: ignore[arg-type]
