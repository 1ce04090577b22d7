"""The Compare page: one prompt on two to four targets, each measured alone, side by side."""

from typing import Any

import gradio as gr
from sqlalchemy import select

from app import turns
from app.drafting import TurnOptions
from app.i18n import t
from app.views import targets
from app.widgets.elements import QUIET, block, hidden, notice, on_load, page_header, stop_button
from app.widgets.fields import dropdown, option_values, options_of, settings_drawer
from app.widgets.formatting import ago
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from models.methods import trees
from speculoos.settings import Settings
from tracking import runs
from tracking.db import reading
from tracking.tables import Run

MOST = 4
RECENT = 8


def recent(settings: Settings) -> str:
    """Links to the last comparisons, newest first; "" without any."""
    rows = ""
    with reading(settings) as session:
        heads = select(Run).where(Run.kind == "compare", Run.group_id.is_not(None), Run.position == 0)
        latest = session.scalars(heads.order_by(Run.created_at.desc()).limit(4 * RECENT)).all()
        compared = [run for run in latest if len(runs.group_runs(session, str(run.group_id))) > 1]
        for run in compared[:RECENT]:
            prompt = run.request["messages"][-1]["content"][:90] or "…"
            link = tag("a", safe(prompt), href=f"/playground/compare?comparison={run.group_id}")
            rows += tag("li", link + " " + tag("span", safe(ago(run.created_at)), class_="sp-hint"))
    heading = tag("h2", t("Earlier comparisons"), class_="sp-section")
    return heading + tag("ul", rows, class_="sp-recent") if rows else ""


def build(settings: Settings) -> None:
    page_header(t("Compare"), t("Run one prompt on two to four targets, one after another, each alone on the device."))
    with gr.Row():
        chosen = dropdown([], multiselect=True, max_choices=MOST, label=t("Targets (two to four)"), elem_id="targets")
    hint = t("Enter a prompt…   Ctrl+Enter compares, Esc stops")
    prompt = gr.Textbox(label=t("Prompt"), lines=2, max_lines=8, elem_id="compare-prompt", placeholder=hint)
    with gr.Row(elem_classes="sp-actions"):
        run = gr.Button(t("Compare"), variant="primary", elem_id="compare-run", scale=0, min_width=110, size="md")
        stop = stop_button("compare-stop")
        options = settings_drawer()
    problem = block(elem_id="problem")
    group = hidden("comparison-id")
    block('<div data-sp="compare" class="sp-compare"></div>', elem_id="stage")
    earlier = block(elem_id="recent")
    stop.click(None, js="() => { window.speculoos.compare.stop(); }", api_visibility="private")

    def load(request: gr.Request):
        with reading(settings) as session:
            choices = targets.all_targets(session) + targets.servers(settings)
        query, models = dict(request.query_params), request.query_params.getlist("models")
        values, text, options_in_url = opening(settings, query, models, choices)
        dropdown = gr.Dropdown(choices=choices, value=values)
        return dropdown, text, recent(settings), *option_values(options_in_url)

    @show_errors("")
    def started(values: list[str] | None, text: str, *fields: Any) -> tuple[str, str]:
        """Plain targets come first, so that the others are compared with them."""
        chosen = sorted(map(targets.parse, values or []), key=lambda each: (bool(each.drafter), "@" in each.model))
        group, error = turns.new_comparison(settings, chosen, text, options_of(*fields))
        return notice(error, "bad") if error else "", group

    on_load(load, [chosen, prompt, earlier, *options])
    step = run.click(started, [chosen, prompt, *options], [problem, group], **QUIET)
    step.then(None, group, None, js="(id) => { window.speculoos.compare.open(id); }", api_visibility="private")


def opening(
    settings: Settings, query: dict[str, str], models: list[str], choices: list[tuple[str, str]]
) -> tuple[list[str], str, TurnOptions]:
    """Initial targets, prompt and options: those of the comparison or of `models` and `query` of the URL; by
    default the first two targets, which are plain decoding of the first base and its best draft or prompt lookup."""
    known_values = [value for _, value in choices]
    with reading(settings) as session:
        columns = runs.group_runs(session, query.get("comparison", ""))
    if not columns:
        chosen = [value for value in models if value in known_values]
        options_in_url = TurnOptions(tree=query.get("tree", "")[: trees.MAX_CHARACTERS])
        return chosen or known_values[:2], query.get("prompt", "")[:2000], options_in_url
    values = [value for run in columns if (value := targets.value_of(run)) in known_values]
    used = [TurnOptions.of(run.request) for run in columns]
    prompt = columns[0].request["messages"][-1]["content"]
    return values, prompt, next((options for options in used if options.speculation()), used[0])
