"""Every text of the pages is in the catalogues, and each request is answered in its language."""

import gettext
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from app import i18n
from app.main import make_app, make_pages
from speculoos.settings import Settings
from tests.tools import catalogues
from tests.tools.asgi import HOST, Answer, ask
from tests.tools.loops import run_async
from tests.tools.page_client import PageClient

CODE = re.compile(r"<(style|svg|code)\b.*?</\1>", re.DOTALL)
TAGS = re.compile("<[^>]*>")
ATTRIBUTES = re.compile(r'(?:aria-label|title|placeholder|alt)="([^"]*)"')
TEXTS = ("label", "info", "placeholder", "value", "title", "text")
MARKED = re.compile("⟦[^⟦⟧]*⟧")


def fields(text: str | tuple[str, ...] | list[str]) -> set[str]:
    """Names of the placeholders in a message or in its plural forms."""
    forms = [text] if isinstance(text, str) else text
    return {name for form in forms for name in re.findall(r"{(\w+)[^}]*}", form)}


@pytest.mark.parametrize("locale", catalogues.LOCALES)
def test_a_catalogue_translates_every_text(locale: str) -> None:
    stored, used = catalogues.catalogue(locale), [message for message in catalogues.messages() if message.id]
    translated = {message.id: message.string for message in stored if message.id}
    assert set(translated) == {message.id for message in used}, (
        "`python -m tests.tools.catalogues` updates the catalogues"
    )
    missing = [text for text, translation in translated.items() if not translation or not all(translation)]
    assert not missing
    wrong = {
        text: translation
        for text, translation in translated.items()
        if fields(translation) - {"n"} != fields(text) - {"n"}
    }
    assert not wrong


def test_no_text_is_outside_the_catalogues() -> None:
    files = [*(catalogues.CLONE / "app").rglob("*.py"), *(catalogues.CLONE / "app" / "static").glob("*.js")]
    unmarked = {str(path.relative_to(catalogues.CLONE)): list(catalogues.unmarked(path)) for path in sorted(files)}
    assert not {name: texts for name, texts in unmarked.items() if texts}


class Marked(gettext.NullTranslations):
    """A language in which every text of the catalogues is in ⟦brackets⟧."""

    def gettext(self, message: str) -> str:
        return f"⟦{message}⟧"

    def ngettext(self, msgid1: str, msgid2: str, n: int) -> str:
        return f"⟦{msgid1 if n == 1 else msgid2}⟧"


def without_marked(text: str) -> str:
    """`text` without its marked parts, which may be nested."""
    while (rest := MARKED.sub("", text)) != text:
        text = rest
    return text


def texts_of(component: Any) -> Iterator[str]:
    """Texts that a component shows as built."""
    config = component.get_config()
    choices = config.get("choices") or ()
    for name in TEXTS:
        is_stored = name == "value" and (choices or config.get("name") in ("textbox", "code"))
        if isinstance(text := config.get(name), str) and not is_stored:
            yield from (*TAGS.sub("\n", CODE.sub("", text)).split("\n"), *ATTRIBUTES.findall(text))
    yield from (str(choice[0]) for choice in choices)


def test_pages_are_built_from_the_catalogues(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(i18n, "_catalogue", lambda _tag: Marked())  # without this no text is marked, and the test fails
    with i18n.in_language("marked"):
        texts = {text for block in make_pages(settings).blocks.values() for text in texts_of(block)}
    assert any(MARKED.search(text) for text in texts)
    assert not sorted(text for text in texts if catalogues.is_text(without_marked(text).strip()))


@pytest.mark.parametrize(
    ("cookie", "accepted", "language"),
    [
        ("", "", "en"),
        ("", "de-AT,de;q=0.9,en;q=0.8", "de"),
        ("", "fr-FR, zh-Hans-CN;q=0.5", "zh-CN"),
        ("", "tlh", "en"),
        ("en", "de", "en"),
        ("zh-CN", "de", "zh-CN"),
        ("../de", "*", "en"),
    ],
)
def test_the_language_of_a_request(cookie: str, accepted: str, language: str) -> None:
    assert i18n.preferred(cookie, accepted) == language


@pytest.fixture(scope="module")
def pages(settings: Settings) -> Any:
    return make_app(settings)


def get(pages: Any, path: str, **headers: str) -> Answer:
    return run_async(ask(pages, "GET", path, **headers))


async def open_page(pages: Any, path: str, accepted: str) -> PageClient:
    """Open a page with this Accept-Language header."""
    headers = {"accept-language": accepted, "accept": "text/html"}
    client = httpx.AsyncClient(transport=httpx.ASGITransport(pages), base_url=f"http://{HOST}", headers=headers)
    page = PageClient(client, path)
    await page.open()
    return page


@pytest.mark.parametrize(("tag", "title"), [("de", "Einstellungen"), ("en", "Settings"), ("zh-CN", "设置")])
def test_documents_events_and_routes_are_in_the_language_of_the_request(pages: Any, tag: str, title: str) -> None:
    document = get(pages, "/settings", accept_language=tag, accept="text/html")
    assert f'lang="{tag}"'.encode() in document.body
    assert "accept-language" in document.header("vary")
    components = run_async(open_page(pages, "/settings", tag)).values
    with i18n.in_language(tag):
        assert any(f">{i18n.t('Servers')}<" in str(value) for value in components.values())
    names = [row["name"] for row in json.loads(get(pages, "/api/find", accept_language=tag).body)]
    assert title in names
