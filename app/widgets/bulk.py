"""Actions on rows of a list: a checkbox before each row, with a bar of buttons while some are ticked, and buttons of
single rows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.i18n import t
from app.widgets.elements import QUIET, notice
from app.widgets.problems import error_text
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError

MOST = 50
"""Maximum number of rows of one action: a page of the list."""
LONGEST = 200
"""Maximum number of characters of the bar's text field."""
MAX_REASONS = 3
"""Maximum number of different error messages in the result."""
BULK_SCRIPT = """
const ticked = new Set();
let typing = false;  // redrawing hides the bar briefly, so its field loses the focus
element.addEventListener('focusin', (event) => { typing = event.target.dataset?.bulkText !== undefined; });
element.addEventListener('focusout', (event) => { if (event.relatedTarget) typing = false; });
document.addEventListener('pointerdown', (event) => { if (!element.contains(event.target)) typing = false; });
const boxes = () => [...element.querySelectorAll('input[data-choose]')];
const chosen = () => boxes().filter((box) => ticked.has(box.dataset.choose)).map((box) => box.dataset.choose);
const calm = (button) => { button.dataset.sure = ''; button.textContent = button.dataset.text; };
const drawTicks = () => {
  for (const box of boxes()) box.checked = ticked.has(box.dataset.choose);
  const bar = element.querySelector('.sp-bulk');
  if (!bar) return;
  bar.hidden = !chosen().length;
  const count = bar.querySelector('.sp-bulk-count');
  count.textContent = count.dataset.text.replace('{n}', chosen().length);
  bar.querySelectorAll('button').forEach(calm);
  if (typing && document.activeElement === document.body) bar.querySelector('[data-bulk-text]')?.focus();
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
  if (button.dataset.row) return trigger('bulk', {action: button.dataset.bulk, ids: [button.dataset.row], text: ''});
  if (button.dataset.go) { location.href = button.dataset.go + chosen().join(','); return; }
  if (button.dataset.confirm && !button.dataset.sure) {
    button.dataset.sure = 'yes';
    button.textContent = button.dataset.confirm;
    return;
  }
  const field = button.parentElement.querySelector('input[data-bulk-text]');
  if (button.dataset.named && !field.value.trim()) return field.focus();
  trigger('bulk', {action: button.dataset.bulk, ids: chosen(), text: field ? field.value : ''});
  ticked.clear();
  drawTicks();
});
watch('value', drawTicks);
"""


@dataclass(frozen=True)
class Action:
    """Function `act(row_id)` of one row and the start of the message afterwards (`done`). `named`: `act` also receives
    the text of the bar's field."""

    done: str
    act: Callable[..., Any]
    named: bool = False


def row_checkbox(row_id: str, name: str) -> str:
    """Checkbox before a row."""
    label = t("Select {name}", name=name)
    return tag("input", type="checkbox", data_choose=row_id, aria_label=label).removesuffix("</input>")


def bulk_bar(actions: Mapping[str, tuple[str, str]], more: str = "") -> str:
    """The bar, hidden until a box is ticked; `actions`: name → (label, confirmation question); `more`: HTML at the
    end."""
    count = tag("span", "", class_="sp-bulk-count", role="status", data_text=t("{n} selected"))
    ticking = _button("all", t("Select page")) + _button("none", t("Clear"))
    acting = "".join(_button(name, *map(t, texts)) for name, texts in actions.items())
    return tag("div", count + ticking + acting + more, class_="sp-bulk", hidden=True)


def compare_button() -> str:
    """Button that opens the comparison of the selected trainings; enabled from two on."""
    return _button("go", t("Compare training runs"), go="/runs/compare?ids=", least=2)


def name_field(name: str, button: str, label: str, suggestions: Sequence[str]) -> str:
    """Text field with `suggestions`, and the button of the action `name` that receives its text."""
    options = "".join(tag("option", value=each) for each in suggestions)
    about = {"class_": "sp-bulk-text", "maxlength": LONGEST, "placeholder": label, "aria_label": label}
    field = tag("input", type="text", list=f"bulk-{name}", data_bulk_text=True, **about).removesuffix("</input>")
    return field + tag("datalist", options, id=f"bulk-{name}") + _button(name, button, named="yes")


def _button(name: str, label: str, confirmation: str = "", **data: object) -> str:
    more = {f"data_{key}": value for key, value in data.items()}
    common = {"type": "button", "class_": "sp-small-button", "data_bulk": name, "data_text": label}
    return tag("button", safe(label), **common, data_confirm=confirmation or None, **more)


def row_button(action: str, row_id: str, label: str) -> str:
    """Button of one row."""
    return _button(action, label, row=row_id)


def on_bulk(listed: gr.HTML, actions: Mapping[str, Action], outputs: list[Any]) -> Any:
    """Run the action of a pressed button; `outputs` receives the message."""

    def pressed(event: gr.EventData) -> str:
        ids = getattr(event, "ids", None)
        rows = [row_id for row_id in ids if isinstance(row_id, str)] if isinstance(ids, list) else []
        action = actions.get(str(getattr(event, "action", "")))
        text = str(getattr(event, "text", ""))[:LONGEST]
        return run_bulk_action(action, rows[:MOST], text) if action and rows else ""

    return listed.bulk(pressed, None, outputs, **QUIET)


def run_bulk_action(action: Action, row_ids: Sequence[str], text: str = "") -> str:
    """Run `action` on each row. The message as HTML: how many rows succeeded, and why others failed."""
    more = (text,) if action.named else ()
    reasons: list[str] = []
    for row_id in row_ids:
        try:
            action.act(row_id, *more)
        except SpeculoosError as error:
            reasons.append(error_text(error))
    good = len(row_ids) - len(reasons)
    message = notice(f"{action.done}: {good}.", "good") if good else ""
    distinct = list(dict.fromkeys(reasons))
    if not distinct:
        return message
    rest = [t("And {n} more reasons.", n=len(distinct) - MAX_REASONS)] if len(distinct) > MAX_REASONS else []
    problem = " ".join([t("Not done: {n}.", n=len(reasons)), *distinct[:MAX_REASONS], *rest])
    return message + notice(problem, "bad")
