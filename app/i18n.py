"""Languages of the pages: the browser's, or the one chosen on the Settings page.

English is the source: `t("Save")` translates an English text. `app/locale/` has a catalogue in gettext's format for
each other language. Messages of the packages below `app` (errors, logs) are in English.
"""

import gettext
import io
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from starlette.requests import HTTPConnection

LANGUAGES = {"en": "English", "de": "Deutsch", "zh-CN": "简体中文"}
"""Language tag → its name in that language."""
CATALOGUES = Path(__file__).parent / "locale"
COOKIE = "speculoos-language"
"""Cookie with the language chosen on the Settings page."""
_language: ContextVar[str] = ContextVar("language", default="en")


def t(text: str, **values: Any) -> str:
    """`text` in the language of the current request. `values` replace its `{names}`."""
    translation = _catalogue(_language.get()).gettext(text) if text else ""
    return translation.format(**values) if values else translation


def plural(one: str, many: str, n: int, **values: Any) -> str:
    """`one` or `many`, as `n` requires, in the language of the current request. `values` and `n` replace `{names}`."""
    return _catalogue(_language.get()).ngettext(one, many, n).format(n=n, **values)


def N_(text: str) -> str:
    """`text` unchanged: marks a constant for the catalogues; `t` translates it where it is shown."""
    return text


def language() -> str:
    """Language tag of the current request."""
    return _language.get()


@contextmanager
def in_language(tag: str) -> Iterator[None]:
    """Translate into the language `tag` inside this context."""
    token = _language.set(tag)
    try:
        yield
    finally:
        _language.reset(token)


def script_messages() -> dict[str, str]:
    """English text → translation, of the texts of the scripts (app/static/dom.js: t)."""
    translations: dict[str, str] = {}
    for message in _messages(language()) if language() != "en" else ():
        if message.id and any(file.startswith("app/static/") for file, _ in message.locations):
            texts, translated = ([value] if isinstance(value, str) else value for value in (message.id, message.string))
            translations |= {texts[0]: translated[0], texts[-1]: translated[-1]}  # a message may have plural forms
    return {text: translation for text, translation in translations.items() if translation}


@lru_cache(maxsize=1000)
def preferred(cookie: str, accepted: str) -> str:
    """The language of `cookie`, or the first in the header Accept-Language that has a catalogue; otherwise English."""
    for name in (cookie, *(part.partition(";")[0].strip() for part in accepted.split(","))):
        main = name.lower().partition("-")[0]
        if language_tag := next((tag for tag in LANGUAGES if tag.partition("-")[0] == main), ""):
            return language_tag
    return "en"


class RequestLanguage:
    """ASGI middleware: sets the language of each request."""

    def __init__(self, app: Any):
        self.app = app

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = HTTPConnection(scope)
        with in_language(preferred(request.cookies.get(COOKIE, ""), request.headers.get("accept-language", ""))):
            await self.app(scope, receive, send)


@cache
def _catalogue(tag: str) -> gettext.NullTranslations:
    if tag == "en":
        return gettext.NullTranslations()
    from babel.messages.mofile import write_mo

    compiled = io.BytesIO()
    write_mo(compiled, _messages(tag))
    compiled.seek(0)
    return gettext.GNUTranslations(compiled)


@cache
def _messages(tag: str) -> Any:
    """The catalogue of a language, read by Babel, which takes 30 ms to import."""
    from babel.messages.pofile import read_po

    locale = tag.replace("-", "_")
    with (CATALOGUES / f"{locale}.po").open(encoding="utf-8") as file:
        return read_po(file, locale=locale)
