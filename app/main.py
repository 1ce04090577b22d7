"""The web server: pages, API routes and middleware. `python -m app.main` starts it; it does not import torch."""

import asyncio
import gc
import hmac
import os
import sys
import warnings
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

if __name__ == "__main__":
    gc.disable()  # until it serves: imports and pages create objects that stay, and searching them takes a second

import gradio as gr
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import RedirectResponse
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from app import auth, changes, downloads, events, find, metrics
from app.forms import PRIVATE
from app.gradio_gate import GradioGate
from app.i18n import RequestLanguage, language, t
from app.page_sessions import use_page_sessions
from app.paths import MOVED, PAGES
from app.theme import STATIC, Static, head, template, theme
from app.uploads import Uploads
from app.views import shell
from app.widgets.elements import block, loads
from app.widgets.text import tag
from ops.starter import ensure_starter
from ops.storage import storage_monitor
from speculoos import logs
from speculoos.connections import BoundedConnection, raise_open_file_limit
from speculoos.errors import SpeculoosError
from speculoos.guard import PAGES_POLICY, RequestGuard
from speculoos.private import set_private_umask
from speculoos.settings import Settings, load
from tracking.db import writing
from tracking.logins import session_key
from tracking.processes import heartbeats_during


def make_app(settings: Settings) -> FastAPI:
    """The web application for one home folder."""
    app = FastAPI(title="Speculoos", docs_url=None, redoc_url=None, openapi_url=None)
    app.mount("/ui", GZipMiddleware(Static(directory=STATIC)), name="ui")

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    routers = [part.routes(settings) for part in (events, downloads, changes, find)]
    for router in routers:
        app.include_router(router)
    app.add_exception_handler(SpeculoosError, events.answer_error)
    web_metrics = metrics.add_routes(app, settings, storage_monitor(settings))
    auth.add_login(app, settings)
    for name in MOVED:
        app.add_api_route(f"/{name}", partial(redirect, PAGES[name]))
    # after all other routes: Gradio handles every remaining path, including its own /login
    mount_gradio(app, settings)
    app.routes[-1].app = ByLanguage(app.routes[-1].app, settings)  # type: ignore[attr-defined]
    app.add_middleware(
        RequestGuard,
        port=settings.port,
        allowed_hosts=settings.page_hosts,
        max_body_bytes=(settings.max_upload_mb + 1) * 2**20,
        policy=PAGES_POLICY,
    )
    own_routes = [route for part in (app, *routers) for route in part.routes]
    app.add_middleware(RequestLanguage)
    route_name = metrics.route_names(PAGES.values(), own_routes)
    app.add_middleware(metrics.RequestTimes, metrics=web_metrics, route_name=route_name)
    return app


class ByLanguage:
    """ASGI app that serves each request in its language: one Gradio application per language, as Gradio translates
    only what is known when a page is built. All but English are created at the first request."""

    def __init__(self, english: Any, settings: Settings):
        self.apps, self._settings, self._lock = {"en": english}, settings, asyncio.Lock()

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if language() not in self.apps:
            async with self._lock:
                if language() not in self.apps:
                    self.apps[language()] = await asyncio.to_thread(self._make)
        await self.apps[language()](scope, receive, send)

    def _make(self) -> Any:
        mount_gradio(app := FastAPI(), self._settings)
        return app.routes[-1].app  # type: ignore[attr-defined]


def mount_gradio(app: FastAPI, settings: Settings) -> None:
    """Mount the Gradio pages at `/`, with all features disabled that the pages do not use."""
    folder = settings.home / "uploads"
    os.environ["GRADIO_TEMP_DIR"] = str(folder)
    pages = make_pages(settings)
    # A mounted app is never "launched"; Gradio would then skip its checks of paths.
    pages.has_launched = pages.is_running = True
    uploads = Uploads(folder, hmac.digest(session_key(settings), b"uploads", "sha256"))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="SSR mode")  # emitted even if SSR is off
        texts = {"title": t("Page not found"), "lead": t("There is no page at this address.")}
        texts |= {"home": t("Home"), "search": t("Search"), "bar": shell.bar("", settings.requires_login)}
        texts |= {"head": (tags := head()), "language": language()}
        missing = template("missing.html", **texts)
        gate = Middleware(GradioGate, blocks=pages, uploads=uploads, pages=PAGES.values(), head=tags, missing=missing)
        gr.mount_gradio_app(
            app,
            pages,
            path="/",
            app_kwargs={"middleware": [gate]},
            run_history=False,
            show_error=False,
            allowed_paths=[],
            blocked_paths=[str(settings.home / name) for name in PRIVATE],
            ssr_mode=False,
            footer_links=[],
            max_file_size=settings.max_upload_mb * 2**20,
            favicon_path=str(STATIC / "icon.svg"),
            theme=theme(),
        )
    use_page_sessions(app, pages)
    queue = pages._queue  # no event uses it, but by default it polls 1,100 times per second: 4 % of a core
    queue.sleep_when_free = queue.progress_update_sleep_when_free = 1.0


def make_pages(settings: Settings) -> gr.Blocks:
    """One Blocks with a route per page. Each page module's `build(settings)` creates its components and events.

    `Blocks.route` would build the configuration and the app again after each page: 1.5 s of CPU time."""
    with gr.Blocks(title="Speculoos", analytics_enabled=False, fill_width=True, delete_cache=(3600, 86400)) as demo:
        for name, path in PAGES.items():
            demo.current_page = path.strip("/")
            if name != "home":  # a Blocks has the page "" from the start
                demo.pages.append((demo.current_page, name, False))
            build_page(name, settings)
    return demo


def build_page(name: str, settings: Settings) -> None:
    """The header and the content of a page, inside the current Blocks. A script (static/changes.js) fills and updates
    the strip from `/api/changes`."""
    block(shell.bar(name, settings.requires_login))
    block(tag("div", "", data_sp="strip"), elem_id="strip")
    before = loads()
    with gr.Column(elem_classes=["sp-page"], elem_id=f"page-{name}") as page:
        if html := shell.tabs(name):
            block(html, elem_classes="sp-tab-row")
        import_module(f"app.pages.{name}").build(settings)
    if loads() > before:
        page.elem_classes.append("sp-curtain")  # hidden by the style sheet until its rows are loaded


def redirect(path: str, request: Request) -> Response:
    """Redirect to `path` with the query of the request."""
    return RedirectResponse(f"{path}?{request.url.query}".rstrip("?"), status_code=308)


def main() -> int:
    """Serve the pages at the configured address. Prints one sentence to standard error if that is not allowed."""
    set_private_umask()
    try:
        settings = load()
        logs.configure_logging(settings, "web")
        auth.check_bind(settings)
    except SpeculoosError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    with suppress(SpeculoosError), writing(settings) as session:
        ensure_starter(session, settings)
    raise_open_file_limit()
    with heartbeats_during(settings, "web"):
        app = make_app(settings)
        gc.freeze()
        gc.enable()
        uvicorn.run(
            app,
            host=settings.host,
            port=settings.port,
            http=BoundedConnection,
            log_config=None,
            log_level="warning",
            timeout_keep_alive=75,  # longer than clients and proxies, so that none sends into a closing connection
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
