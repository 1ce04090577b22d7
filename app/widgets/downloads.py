"""A list with buttons that start something by its name, such as the creation of a file that is then downloaded."""

import gradio as gr

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


def export_list(elem_id: str, script: str = "") -> gr.HTML:
    """A list with `<button data-make="x">`; the script follows `<a data-made="x" href>` once the value contains it."""
    return gr.HTML(elem_id=elem_id, js_on_load=EXPORT_SCRIPT + script, apply_default_css=False)


def pressed(event: gr.EventData) -> str:
    """The name on the button whose event this is."""
    return str(getattr(event, "wanted", ""))[:64]
