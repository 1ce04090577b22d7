"""Shows an error message below its form field: a notice names the field, a script adds the message below the field.

The message starts with the field's name and a colon, as every BadInput of a form does.
"""

from collections.abc import Mapping

import gradio as gr

from app.widgets.elements import notice
from app.widgets.text import tag

FIELD_ERROR_SCRIPT = """
const mark = () => {
  for (const old of document.querySelectorAll('.sp-field-error')) {
    old.parentElement.querySelector('[aria-invalid]')?.removeAttribute('aria-invalid');
    old.remove();
  }
  const error = element.querySelector('[data-field]');
  const field = error && document.getElementById(error.dataset.field);
  if (!field) return;
  field.querySelector('input, textarea')?.setAttribute('aria-invalid', 'true');
  const words = document.createElement('p');
  words.className = 'sp-field-error';
  words.textContent = error.dataset.why;
  field.append(words);
};
watch('value', mark);
"""


def form_error_block(elem_id: str) -> gr.HTML:
    """Block for the error message of a form; one per form."""
    return gr.HTML(elem_id=elem_id, js_on_load=FIELD_ERROR_SCRIPT, apply_default_css=False)


def field_error_notice(sentence: str, fields: Mapping[str, str]) -> str:
    """A notice; `fields`: field name at the start of a message → element id of that field."""
    name, colon, why = sentence.partition(":")
    field = fields.get(name.strip()) if colon else None
    error = tag("span", "", data_field=field, data_why=f"{why.strip()[:1].upper()}{why.strip()[1:]}") if field else ""
    return notice(sentence, "warn") + error
