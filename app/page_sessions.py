"""What the server keeps of each page that someone has open: only what differs from the page as it was built.

Gradio would write a description of every component of every page for each opening (33 ms on the event loop, 0.7 MB that
nothing takes back), which only its links into a page's state read; app/gradio_gate.py shuts those.
"""

from collections import ChainMap
from types import SimpleNamespace
from typing import Any

import gradio as gr
from fastapi import FastAPI
from gradio.state_holder import SessionState, StateHolder
from starlette.routing import Mount

MOST = 500
"""Opened pages whose changes are kept. The one that was used longest ago goes first; used again it begins anew, as
after a restart of this process: the lists to pick from are of no weight here (widgets/fields.py)."""


class PageSession(SessionState):
    """One opened page."""

    def __init__(self, blocks: gr.Blocks):
        undescribed: Any = SimpleNamespace(default_config=blocks.default_config, blocks={})
        super().__init__(undescribed)
        self.blocks_config.blocks = ChainMap({}, blocks.default_config.blocks)  # type: ignore[assignment]
        self.blocks_config.fns = blocks.default_config.fns

    def __setitem__(self, key: int, value: Any) -> None:
        """Keep a component that has changed; Gradio would describe it too."""
        if isinstance(self.blocks_config.blocks.get(key), gr.State):
            super().__setitem__(key, value)
        else:
            self.blocks_config.blocks[key] = value

    def _update_config(self, key: int) -> None:
        """Gradio's hook after a component has changed: nothing to describe."""

    def _update_value_in_config(self, key: int, value: Any) -> None:
        """Gradio's hook after a value was shown: it stays in the browser."""


class PageSessions(StateHolder):
    """All of them, by the name each browser page gives itself."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = PageSession(self.blocks)
        return super().__getitem__(session_id)


def keep_little(app: FastAPI, blocks: gr.Blocks) -> None:
    """Have the Gradio application mounted in `app` keep its opened pages here."""
    blocks.state_session_capacity = MOST
    mounted = next(one.app for one in app.routes if isinstance(one, Mount) and hasattr(one.app, "state_holder"))
    mounted.state_holder = PageSessions()
    mounted.state_holder.set_blocks(blocks)
