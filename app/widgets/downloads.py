"""A list with buttons that create a file and links to download it; the download starts when the file is ready."""

from collections.abc import Callable
from typing import Any

import gradio as gr

from app.widgets.elements import QUIET

EXPORT_SCRIPT = """
let wanted = '';
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-make]');
  if (!button) return;
  wanted = button.dataset.make;
  trigger('make', {wanted});
});
watch('value', () => {
  const link = wanted && element.querySelector(`a[data-made="${CSS.escape(wanted)}"]`);
  if (!link) return;
  wanted = '';
  link.click();
});
"""


def export_list(elem_id: str) -> gr.HTML:
    """A list with `<button data-make="x">`; the script follows `<a data-made="x" href>` once the value contains it."""
    return gr.HTML(elem_id=elem_id, js_on_load=EXPORT_SCRIPT, apply_default_css=False)


def on_export(listed: gr.HTML, chosen: gr.Textbox, fn: Callable[[str, str], Any], outputs: list[Any]) -> Any:
    """Call `fn(name, row_id)` when a button of the list is pressed; `chosen` is the hidden text with the row's id."""

    def on_click(row_id: str, event: gr.EventData) -> Any:
        return fn(str(getattr(event, "wanted", ""))[:64], row_id)

    return listed.make(on_click, chosen, outputs, **QUIET)
