"""Section of the Settings page: access to the pages, and the visitor's name on jobs."""

import gradio as gr

from app.sessions import Sessions, Visitor
from app.views.manage import SMALL
from app.visitor import visitor_of
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from speculoos.people import access_warning
from speculoos.settings import Settings
from tracking.names import LONGEST_USER, check_user


def build(settings: Settings) -> None:
    section("Access")
    state = block(elem_id="settings-access")

    def opened(request: gr.Request) -> str:
        return access_notice(settings, visitor_of(request))

    on_load(opened, state)
    if settings.asks_login:
        _name(Sessions(settings))


def access_notice(settings: Settings, visitor: Visitor | None) -> str:
    """How people log in, or a warning that access is not protected."""
    if warning := access_warning(settings):
        return notice(warning, "warn")
    if settings.asks_login:
        until = f" Your login is valid until {visitor.ends_at:%d %B %Y}, or until you log out." if visitor else ""
        who = "everyone with the password" if settings.password else "everyone with a link of `speculoos login-link`"
        return notice(f"Open to {who}.{until}", "good")
    return notice(
        f"Open without login at {settings.host}:{settings.port}; no other user has an account on this machine.", "good"
    )


def _name(sessions: Sessions) -> None:
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        name = one_line("Your name on jobs", "settings-user", max_length=LONGEST_USER)
    save = gr.Button("Save name", elem_id="settings-user-save", **SMALL)
    message = block(elem_id="settings-user-said")

    def shown(request: gr.Request) -> str:
        visitor = visitor_of(request)
        return visitor.user if visitor else ""

    def keep(text: str, request: gr.Request) -> str:
        return rename(sessions, visitor_of(request), text)

    on_load(shown, name)
    save.click(keep, name, message, **QUIET)


@show_errors()
def rename(sessions: Sessions, visitor: Visitor | None, text: str) -> str:
    user = check_user(text)
    if visitor:
        sessions.rename(visitor, user)
    return notice(f"Your next jobs show “{user}”." if user else "Your next jobs show no name.", "good")
