"""Values that Gradio's components refuse: 400, no traceback, and a bounded number of log lines without the value."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from speculoos.errors import Unavailable
from speculoos.settings import Settings
from tests.app.test_canary import EVENT, Bench, bench
from tests.tools.asgi import Answer, ask
from tests.tools.loops import run_async

SECRET = "xyzzy-value"


def send(pages: Bench, fn: Any, data: list[Any]) -> Answer:
    body = json.dumps({"data": data, "fn_index": fn._id, "session_hash": "refused"}).encode()
    return run_async(ask(pages.app, "POST", EVENT, body, cookie=pages.cookie))


def event_with_input(pages: Bench, kind: str) -> tuple[Any, list[Any]]:
    """An event with an input of this kind, and data with a malformed value for it."""

    def refuses(block: Any) -> bool:
        return type(block).__name__ == kind and not getattr(block, "allow_custom_value", False)

    fn = next(f for f in pages.blocks.fns.values() if f.fn and any(map(refuses, f.inputs)))
    return fn, [SECRET if refuses(block) else None for block in fn.inputs]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    pages = bench(Path(tmp_path_factory.mktemp("refused")))
    pages.cookie = run_async(ask(pages.app, "GET", "/data")).cookies()
    return pages


@pytest.mark.parametrize("kind", ["Slider", "Radio", "Number"])
def test_a_value_that_a_component_refuses_is_400_without_a_traceback(
    pages: Bench, kind: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fn, data = event_with_input(pages, kind)
    with caplog.at_level(logging.WARNING, "app.refused_values"):
        responses = [send(pages, fn, data) for _ in range(20)]
    assert {response.status for response in responses} == {400}
    assert "does not accept" in json.loads(responses[0].body)["error"]
    output = "".join(capfd.readouterr())
    assert "Traceback" not in output + caplog.text and SECRET not in output + caplog.text
    assert len(caplog.records) <= 6


def test_a_fault_of_a_handler_is_one_line_that_says_where_and_no_value(
    pages: Bench, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = next(f for f in pages.blocks.fns.values() if f.name == "first_rows")

    def fails(*values: Any) -> None:
        raise ValueError(values)

    monkeypatch.setattr(fn, "fn", fails)
    with caplog.at_level(logging.WARNING, "app.refused_values"):
        responses = [send(pages, fn, [None, SECRET, *[None] * (len(fn.inputs) - 2)]) for _ in range(20)]
    assert {response.status for response in responses} == {500} and "bug" in json.loads(responses[0].body)["error"]
    output = "".join(capfd.readouterr())
    assert "Traceback" not in output + caplog.text and SECRET not in output + caplog.text
    assert "first_rows" in caplog.text and "ValueError at" in caplog.text and "test_refused_values.py" in caplog.text
    assert len(caplog.records) == 5


@pytest.mark.parametrize("page", ["playground", "compare"])
def test_a_page_whose_database_cannot_be_read_says_why(
    pages: Bench, page: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(settings: Settings) -> None:
        raise Unavailable("The database <b>x</b> is damaged.", "Put a copy back.")

    monkeypatch.setattr(f"app.pages.{page}.reading", fails)
    fn = next(f for f in pages.blocks.fns.values() if f.name == "load" and f.fn.__module__.endswith(page))
    response = send(pages, fn, [])
    message = json.loads(response.body)["error"]
    assert response.status == 500 and message == "The database &lt;b&gt;x&lt;/b&gt; is damaged. Put a copy back."
    assert not caplog.records


def test_an_unknown_choice_of_our_own_dropdowns_is_text_that_the_handler_looks_up(pages: Bench) -> None:
    """Gradio's own check needs the choices of the session, which a restarted web process has lost."""
    fn = next(f for f in pages.blocks.fns.values() if f.name == "review_now" and f.inputs[0].elem_id == "train-base")
    response = send(pages, fn, [SECRET, *[None] * (len(fn.inputs) - 1)])
    assert response.status == 200 and "sp-command" not in response.body.decode()


def test_an_event_without_a_function_is_400(pages: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    fn = next(f for f in pages.blocks.fns.values() if f.fn is None)
    response = send(pages, fn, [None] * len(fn.inputs))
    assert response.status == 400
    assert "Traceback" not in "".join(capfd.readouterr())
