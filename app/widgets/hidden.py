"""Values a page carries without showing them: the open row's id, where to go next. Hidden by our style sheet.

Gradio's own `visible="hidden"` comes undone when the column around it is shown again.
"""

from typing import Any

import gradio as gr

CLASS = "sp-hidden"


def hidden(elem_id: str) -> gr.Textbox:
    """A text that no one sees."""
    return gr.Textbox(elem_id=elem_id, elem_classes=CLASS, container=False, show_label=False)


def hidden_json(elem_id: str, value: Any) -> gr.JSON:
    """The same for a table of values."""
    return gr.JSON(value, elem_id=elem_id, elem_classes=CLASS)
