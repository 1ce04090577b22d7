"""What is wrong, said at the field that is wrong: a notice names the field, a script puts its sentence below it.

The sentence begins with the field's name and a colon, as every BadInput of a form does.
"""

from collections.abc import Mapping

import gradio as gr

from app.widgets.elements import notice
from app.widgets.text import tag

MARK = """
const mark = () => {
  for (const old of document.querySelectorAll('.sp-field-error')) {
    old.parentElement.querySelector('[aria-invalid]')?.removeAttribute('aria-invalid');
    old.remove();
  }
  const said = element.querySelector('[data-field]');
  const field = said && document.getElementById(said.dataset.field);
  if (!field) return;
  field.querySelector('input, textarea')?.setAttribute('aria-invalid', 'true');
  const words = document.createElement('p');
  words.className = 'sp-field-error';
  words.textContent = said.dataset.why;
  field.append(words);
};
watch('value', mark);
"""


def reviewing(elem_id: str) -> gr.HTML:
    """A block that says what is wrong with a form; one for a form."""
    return gr.HTML(elem_id=elem_id, js_on_load=MARK, apply_default_css=False)


def wrong(sentence: str, fields: Mapping[str, str]) -> str:
    """A notice; `fields`: what a sentence begins with → the id of that field's box."""
    name, colon, why = sentence.partition(":")
    field = fields.get(name.strip()) if colon else None
    place = tag("span", "", data_field=field, data_why=f"{why.strip()[:1].upper()}{why.strip()[1:]}") if field else ""
    return notice(sentence, "warn") + place
