"""The Gradio theme: every theme variable refers to a design token of `static/tokens.css`: scales and two palettes."""

import hashlib
import json
import re
from functools import cache
from pathlib import Path

import gradio as gr
from fastapi.staticfiles import StaticFiles
from gradio.themes.utils import sizes
from starlette.responses import Response
from starlette.types import Scope

from app.i18n import script_messages
from app.widgets.terms import definitions

STATIC = Path(__file__).parent / "static"
STYLES = ("tokens.css", "style.css", "pages.css", "chat.css")
TEXT = ("xs", "xs", "sm", "md", "lg", "xl", "2xl")  # steps of the type scale for Gradio's sizes from `xxs` to `xxl`
VERSION = "v-"

VARIABLES = {
    "bg": "body_background_fill",
    "ink": "body_text_color block_title_text_color button_secondary_text_color",
    "muted": "body_text_color_subdued block_label_text_color input_border_color_hover input_placeholder_color",
    "surface": "background_fill_primary block_background_fill button_secondary_background_fill",
    "sunken": "background_fill_secondary button_secondary_background_fill_hover",
    "line": "border_color_primary",
    "accent": """
        border_color_accent link_text_color link_text_color_visited input_border_color_focus slider_color
        checkbox_background_color_selected checkbox_border_color_selected button_primary_background_fill
        button_primary_border_color
    """,
    "accent-soft": "color_accent_soft checkbox_label_background_fill_selected",
    "accent-strong": "link_text_color_hover link_text_color_active button_primary_background_fill_hover",
    "field": "input_background_fill input_background_fill_focus checkbox_background_color",
    "line-strong": "input_border_color checkbox_border_color button_secondary_border_color",
    "on-accent": "button_primary_text_color",
    "bad-soft": "button_cancel_background_fill_hover error_background_fill",
    "bad": """
        button_cancel_border_color button_cancel_text_color button_cancel_text_color_hover error_border_color
        error_text_color
    """,
}
"""Design token → the theme variables that have its color, in light and dark; others follow from these."""
PLAIN = {
    "block_label_text_weight": "500",
    "block_title_text_weight": "550",
    "block_title_text_size": "*text_sm",
    "button_border_width": "1px",
    "button_large_text_weight": "550",
    "button_large_padding": "var(--sp-2) var(--sp-4)",
    "button_large_text_size": "*text_md",
    "button_medium_padding": "6px var(--sp-3)",
    "button_medium_text_weight": "550",
    "button_small_padding": "var(--sp-1) var(--sp-2)",
    "button_secondary_shadow": "none",
    "input_border_width": "1px",
    "input_shadow_focus": "0 0 0 3px var(--sp-ring)",
    "layout_gap": "var(--sp-3)",
    "section_header_text_weight": "600",
}


def theme() -> gr.themes.Base:
    """The theme: design tokens as colors and sizes. `pages.css` sets the fonts, whose names Gradio would quote."""
    text = sizes.Size(*(f"var(--sp-text-{step})" for step in TEXT))
    base = gr.themes.Base(text_size=text, radius_size=sizes.radius_md, font="sans-serif", font_mono="monospace")
    values = {name: f"var(--sp-{token})" for token, names in VARIABLES.items() for name in names.split()}
    dark = {f"{name}_dark": value for name, value in values.items() if hasattr(base, f"{name}_dark")}
    return base.set(**values, **dark, **PLAIN)


def head() -> str:
    """Tags for every page's head: definitions, style sheets and scripts."""
    styles = f'<link rel="preload" href="{asset("inter.woff2")}" as="font" type="font/woff2" crossorigin>'
    styles += "".join(f'<link rel="stylesheet" href="{asset(name)}">' for name in STYLES)
    scripts = "".join(f'<script type="module" src="{asset(name)}"></script>' for name in modules())
    return (
        f'{styles}<link rel="icon" href="{asset("icon.svg")}"><script src="{asset("early.js")}"></script>'
        f'<script type="application/json" id="terms">{json.dumps(definitions())}</script>'
        f'<script type="application/json" id="messages">{json.dumps(script_messages(), ensure_ascii=False)}</script>'
        f"{scripts}"
    )


def template(name: str, /, **values: str) -> str:
    """A document of `static/` with `values`, which are HTML, in place of its `[[names]]`."""
    text = (STATIC / name).read_text(encoding="utf-8")
    return re.sub(r"\[\[(\w+)\]\]", lambda match: values[match[1]], text)


def modules() -> list[str]:
    """Names of the scripts that are ES modules; `early.js` runs before the page is rendered."""
    return sorted(path.name for path in STATIC.glob("*.js") if path.name != "early.js")


def asset(name: str) -> str:
    """URL of a file in `static/`. The hash of all files is a folder of the path, so relative imports contain it too."""
    return f"/ui/{_version()}/{name}"


@cache
def _version() -> str:
    content = b"".join(path.read_bytes() for path in sorted(STATIC.iterdir()))
    return VERSION + hashlib.sha256(content).hexdigest()[:8]


class Static(StaticFiles):
    """Serves `static/`, ignoring the version folder of a path; browsers cache files with that folder permanently."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        if f"/{VERSION}" in scope["path"]:
            response.headers["cache-control"] = "public, max-age=31536000, immutable"
        return response

    def get_path(self, scope: Scope) -> str:
        path = super().get_path(scope)
        first, _, rest = path.partition("/")
        return rest if rest and first.startswith(VERSION) else path
