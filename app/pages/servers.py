"""The Servers page: inference servers of other projects that serve a model of this home, alone or with its draft."""

import os
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import pair
from app.i18n import N_, t
from app.views import served
from app.views.job_forms import JobForm
from app.views.matrix_form import model_choices
from app.widgets.bulk import Action, on_bulk
from app.widgets.elements import block, closed_accordion, on_load, page_header, section
from app.widgets.fields import dropdown
from app.widgets.list_page import live_page
from app.widgets.picker import picker
from app.widgets.setting_fields import field_values, setting_control, setting_rows
from formats.engines import ENGINES
from speculoos import running_servers
from speculoos.errors import BadInput
from speculoos.servers import require_operator
from speculoos.settings import Settings, home_of
from tracking import listing
from tracking.db import reading
from workers.jobs import submit
from workers.jobs.requests import InstallServer, Serve

LEAD = N_(
    "Serve a model with llama.cpp, vLLM or SGLang. A running server is an endpoint for data, evaluations and chats."
)
PAGE = "servers"
MAIN = ("engine", "tokens")
"""Options that do not stand under “More settings”."""


def build(settings: Settings) -> None:
    page_header(t("Servers"), t(LEAD))
    form = _form(settings)
    message = block(elem_id="servers-message")
    listed = picker("servers-table", bulk=True)
    section(t("Installed servers"))
    engines = picker("servers-engines", bulk=True)
    for shown in (listed, engines):
        on_bulk(shown, actions(settings), [message])
    live_page(settings, PAGE, now, partial(draw, settings), [listed, engines])

    def opened(request: gr.Request) -> list[Any]:
        with reading(settings) as session:
            values = {"model": served.default_model(session), "engine": served.default_engine(settings)}
            return form.fill(dict(request.query_params), values, {"model": model_choices(session)})

    on_load(opened, form.outputs)


def _form(settings: Settings) -> JobForm:
    options = Serve.options()
    with gr.Row():
        model = dropdown([], label=t("Model"), elem_id="servers-model")
        engines = [(engine.title, engine.name) for engine in ENGINES.values()]
        engine = dropdown(engines, label=t("Server"), elem_id="servers-engine")
        tokens = setting_control(options["tokens"], "servers-tokens")
    with closed_accordion(t("More settings"), elem_id="servers-more"):
        more = setting_rows((o for name, o in options.items() if name not in MAIN), lambda name: f"servers-{name}")
    fields = {"model": model, "engine": engine, "tokens": tokens, **more}
    form = JobForm(settings, "servers", t("Start server"), fields, serve_request)
    form.keep_in_url()
    return form


def serve_request(model: str | None = None, **values: Any) -> Serve:
    """Request to serve a model of `model_choices`. Raises BadInput."""
    if not model:
        raise BadInput("Model: choose a base model or a draft.")
    base_id, checkpoint_id = pair(model)
    return Serve(base_id=base_id, checkpoint_id=checkpoint_id, **field_values(Serve, values))


def actions(settings: Settings) -> dict[str, Action]:
    def install(package: str) -> None:
        require_operator(settings)
        submit.submit(InstallServer(package=package), user=visitor.user(), settings=settings.current())

    return {
        "stop": Action(t("Stop requested"), lambda job_id: submit.request_cancel(job_id, settings)),
        "install": Action(t("Installation started"), install),
    }


def now(session: Session, row_id: str) -> str:
    """Changes with any job, and when a server becomes ready or ends."""
    return f"{listing.signature(session)} {[*running_servers.running(home_of(os.environ))]}"


def draw(settings: Settings, session: Session, row_id: str) -> list[str]:
    return [served.servers_table(session, settings), served.engines_table(session, settings)]
