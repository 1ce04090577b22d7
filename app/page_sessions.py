"""Server state of each open page: only the components that differ from the page as built.

Gradio would copy the config of all components per open page (33 ms on the event loop, 0.7 MB, never freed). Only its
routes into a page's state read that, and app/gradio_gate.py blocks them.
"""

from collections import ChainMap
from types import SimpleNamespace
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.state_holder import SessionState, StateHolder
from starlette.routing import Mount

MOST = 500
"""Maximum number of open pages with state; the least recently used is dropped. A dropped page starts without state, as
after a restart of this process, which is harmless because choices of dropdowns are not checked (widgets/fields.py)."""


class PageSession(SessionState):
    """State of one open page."""

    def __init__(self, blocks: gr.Blocks):
        without_config: Any = SimpleNamespace(default_config=blocks.default_config, blocks={})
        super().__init__(without_config)
        self.blocks_config.blocks = ChainMap({}, blocks.default_config.blocks)  # type: ignore[assignment]
        self.blocks_config.fns = blocks.default_config.fns

    def __setitem__(self, key: int, value: Any) -> None:
        """Store a changed component without its config. No page has a `gr.State`, which would need more."""
        self.blocks_config.blocks[key] = value

    def _update_config(self, key: int) -> None:
        """Gradio's hook after a component has changed: there is no config to update."""

    def _update_value_in_config(self, key: int, value: Any) -> None:
        """Gradio's hook after a value was sent: only the browser stores it."""


class PageSessions(StateHolder):
    """All open pages by session id, which each browser page generates."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = PageSession(self.blocks)
        return super().__getitem__(session_id)


def use_page_sessions(app: FastAPI, blocks: gr.Blocks) -> None:
    """Make the Gradio application mounted in `app` use `PageSessions`."""
    blocks.state_session_capacity = MOST
    mounted = next(route.app for route in app.routes if isinstance(route, Mount) and hasattr(route.app, "state_holder"))
    mounted.state_holder = PageSessions()
    mounted.state_holder.set_blocks(blocks)
