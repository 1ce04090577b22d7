"""Who may open the pages, on the Settings page: how that is guarded, and one's own name on jobs."""

import gradio as gr

from app.sessions import Sessions, Visitor
from app.views.manage import SMALL
from app.visitor import visitor_of
from app.widgets.elements import QUIET, block, notice, on_load, section
from app.widgets.fields import one_line
from app.widgets.problems import saying_errors
from speculoos.people import access_warning
from speculoos.settings import Settings
from tracking.names import LONGEST_USER, check_user


def build(settings: Settings) -> None:
    """The section, inside the current Blocks."""
    section("Access")
    state = block(elem_id="settings-access")

    def opened(request: gr.Request) -> str:
        return access_notice(settings, visitor_of(request))

    on_load(opened, state)
    if settings.asks_login:
        _name(Sessions(settings))


def access_notice(settings: Settings, visitor: Visitor | None) -> str:
    """How people get in, and whether that will do here."""
    if warning := access_warning(settings):
        return notice(warning, "warn")
    if settings.asks_login:
        until = f" Your login holds until {visitor.ends_at:%d %B %Y}, or until you log out." if visitor else ""
        way = "who knows the password" if settings.password else "who has a link of `speculoos login-link`"
        return notice(f"Open to {way}.{until}", "good")
    return notice(f"Open to who reaches {settings.host}:{settings.port}; nobody else has an account here.", "good")


def _name(sessions: Sessions) -> None:
    """The box with one's name, and what became of changing it."""
    with gr.Row(equal_height=True, elem_classes="sp-manage"):
        name = one_line("Your name on jobs", "settings-user", max_length=LONGEST_USER)
    save = gr.Button("Save name", elem_id="settings-user-save", **SMALL)
    said = block(elem_id="settings-user-said")

    def shown(request: gr.Request) -> str:
        visitor = visitor_of(request)
        return visitor.user if visitor else ""

    def keep(text: str, request: gr.Request) -> str:
        return rename(sessions, visitor_of(request), text)

    on_load(shown, name)
    save.click(keep, name, said, **QUIET)


@saying_errors()
def rename(sessions: Sessions, visitor: Visitor | None, text: str) -> str:
    """Keep the name; says so, or why not."""
    user = check_user(text)
    if visitor:
        sessions.rename(visitor, user)
    return notice(f"Your next jobs show “{user}”." if user else "Your next jobs show no name.", "good")
