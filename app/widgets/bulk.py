"""Doing one thing to several rows of a list: a box before each, and a bar of buttons while some are ticked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.widgets.elements import QUIET, notice
from app.widgets.problems import sentence
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError

MOST = 50
"""Rows at once: a page of the list."""
LONGEST = 200
"""Letters of a name that is typed into the bar."""
SAID = 3
"""Reasons that are named when some rows could not be done."""
CHOOSE = """
const ticked = new Set();
let typing = false;  // a bar that is drawn anew is hidden for a moment, which takes the focus from its field
element.addEventListener('focusin', (event) => { typing = event.target.dataset?.bulkWords !== undefined; });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) typing = false; });
document.addEventListener('pointerdown', (event) => { if (!element.contains(event.target)) typing = false; });
const boxes = () => [...element.querySelectorAll('input[data-choose]')];
const chosen = () => boxes().filter((box) => ticked.has(box.dataset.choose)).map((box) => box.dataset.choose);
const calm = (button) => { button.dataset.sure = ''; button.textContent = button.dataset.words; };
const drawTicks = () => {
  for (const box of boxes()) box.checked = ticked.has(box.dataset.choose);
  const bar = element.querySelector('.sp-bulk');
  if (!bar) return;
  bar.hidden = !chosen().length;
  bar.querySelector('.sp-bulk-count').textContent = `${chosen().length} chosen`;
  bar.querySelectorAll('button').forEach(calm);
  if (typing && document.activeElement === document.body) bar.querySelector('[data-bulk-words]')?.focus();
  for (const button of bar.querySelectorAll('[data-least]')) button.disabled = chosen().length < button.dataset.least;
};
element.addEventListener('change', (event) => {
  const id = event.target.dataset?.choose;
  if (id === undefined) return;
  if (event.target.checked) ticked.add(id); else ticked.delete(id);
  drawTicks();
});
element.addEventListener('click', (event) => {
  const button = event.target.closest('button[data-bulk]');
  if (!button) return;
  if (button.dataset.bulk === 'all') { for (const box of boxes()) ticked.add(box.dataset.choose); return drawTicks(); }
  if (button.dataset.bulk === 'none') { ticked.clear(); return drawTicks(); }
  if (button.dataset.go) { location.href = button.dataset.go + chosen().join(','); return; }
  if (button.dataset.ask && !button.dataset.sure) {
    button.dataset.sure = 'yes';
    button.textContent = button.dataset.ask;
    return;
  }
  const field = button.parentElement.querySelector('input[data-bulk-words]');
  if (button.dataset.named && !field.value.trim()) return field.focus();
  trigger('bulk', {action: button.dataset.bulk, ids: chosen(), words: field ? field.value : ''});
  ticked.clear();
  drawTicks();
});
watch('value', drawTicks);
"""


@dataclass(frozen=True)
class Action:
    """What is done to one row, and how the sentence afterwards begins. `named`: what was typed into the bar's field
    comes along."""

    done: str
    act: Callable[..., Any]
    named: bool = False


def box(row_id: str, name: str) -> str:
    """The box before a row."""
    return tag("input", type="checkbox", data_choose=row_id, aria_label=f"Choose {name}").removesuffix("</input>")


def bar(actions: Mapping[str, tuple[str, str]], more: str = "") -> str:
    """The bar, unseen until a box is ticked; `actions`: name → (words, what is asked first); `more` of it as HTML."""
    count = tag("span", "", class_="sp-bulk-count", role="status")
    ticking = _button("all", "All on this page") + _button("none", "None")
    acting = "".join(_button(name, *words) for name, words in actions.items())
    return tag("div", count + ticking + acting + more, class_="sp-bulk", hidden=True)


def comparing() -> str:
    """A button that leads to the page that compares the chosen trainings, once there are two."""
    return _button("go", "Compare trainings", go="/trainings?ids=", least=2)


def naming(name: str, words: str, label: str, known: Sequence[str]) -> str:
    """A field for a name, of those that are `known` or a new one, and the button of the action `name` that takes it."""
    options = "".join(tag("option", value=each) for each in known)
    given = {
        "type": "text",
        "class_": "sp-bulk-words",
        "maxlength": LONGEST,
        "list": f"bulk-{name}",
        "placeholder": label,
    }
    field = tag("input", **given, data_bulk_words=True, aria_label=label).removesuffix("</input>")
    return field + tag("datalist", options, id=f"bulk-{name}") + _button(name, words, named="yes")


def _button(name: str, words: str, ask: str = "", **data: object) -> str:
    given = {"type": "button", "class_": "sp-small-button", "data_bulk": name, "data_words": words}
    return tag("button", safe(words), **given, data_ask=ask or None, **{f"data_{key}": of for key, of in data.items()})


def on_bulk(listed: gr.HTML, actions: Mapping[str, Action], outputs: list[Any]) -> Any:
    """Do what was pressed; `outputs` is where the sentence goes."""

    def pressed(event: gr.EventData) -> str:
        ids = getattr(event, "ids", None)
        rows = [row_id for row_id in ids if isinstance(row_id, str)] if isinstance(ids, list) else []
        action = actions.get(str(getattr(event, "action", "")))
        words = str(getattr(event, "words", ""))[:LONGEST]
        return do(action, rows[:MOST], words) if action and rows else ""

    return listed.bulk(pressed, None, outputs, **QUIET)


def do(action: Action, row_ids: Sequence[str], words: str = "") -> str:
    """Do it to each row; how many went well, and why others did not."""
    more = (words,) if action.named else ()
    reasons: list[str] = []
    for row_id in row_ids:
        try:
            action.act(row_id, *more)
        except SpeculoosError as error:
            reasons.append(sentence(error))
    good = len(row_ids) - len(reasons)
    said = notice(f"{action.done}: {good}.", "good") if good else ""
    left = list(dict.fromkeys(reasons))
    rest = f" And {len(left) - SAID} more reasons." if len(left) > SAID else ""
    return said + (notice(f"Not done: {len(reasons)}. {' '.join(left[:SAID])}{rest}", "bad") if left else "")
