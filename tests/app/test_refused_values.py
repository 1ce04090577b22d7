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


def send(made: Bench, fn: Any, data: list[Any]) -> Answer:
    body = json.dumps({"data": data, "fn_index": fn._id, "session_hash": "refused"}).encode()
    return run_async(ask(made.app, "POST", EVENT, body, cookie=made.cookie))


def taking(made: Bench, kind: str) -> tuple[Any, list[Any]]:
    """An event with an input of this kind, and its data with the malformed value there."""

    def refuses(block: Any) -> bool:
        return type(block).__name__ == kind and not getattr(block, "allow_custom_value", False)

    fn = next(f for f in made.blocks.fns.values() if f.fn and any(map(refuses, f.inputs)))
    return fn, [SECRET if refuses(block) else None for block in fn.inputs]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    opened = bench(Path(tmp_path_factory.mktemp("refused")))
    opened.cookie = run_async(ask(opened.app, "GET", "/data")).cookies()
    return opened


@pytest.mark.parametrize("kind", ["Slider", "Radio", "Number"])
def test_a_value_that_a_component_refuses_is_400_without_a_traceback(
    made: Bench, kind: str, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    fn, data = taking(made, kind)
    with caplog.at_level(logging.WARNING, "app.refused_values"):
        answers = [send(made, fn, data) for _ in range(20)]
    assert {answer.status for answer in answers} == {400}
    assert "does not accept" in json.loads(answers[0].body)["error"]
    written = "".join(capfd.readouterr())
    assert "Traceback" not in written + caplog.text and SECRET not in written + caplog.text
    assert len(caplog.records) <= 6


def test_a_fault_of_a_handler_is_one_line_that_says_where_and_no_value(
    made: Bench, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    fn = next(f for f in made.blocks.fns.values() if f.name == "first_rows")

    def fails(*values: Any) -> None:
        raise ValueError(values)

    monkeypatch.setattr(fn, "fn", fails)
    with caplog.at_level(logging.WARNING, "app.refused_values"):
        answers = [send(made, fn, [None, SECRET, *[None] * (len(fn.inputs) - 2)]) for _ in range(20)]
    assert {answer.status for answer in answers} == {500} and "bug" in json.loads(answers[0].body)["error"]
    written = "".join(capfd.readouterr())
    assert "Traceback" not in written + caplog.text and SECRET not in written + caplog.text
    assert "first_rows" in caplog.text and "ValueError at" in caplog.text and "test_refused_values.py" in caplog.text
    assert len(caplog.records) == 5


@pytest.mark.parametrize("page", ["playground", "compare"])
def test_a_page_whose_database_cannot_be_read_says_why(
    made: Bench, page: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(settings: Settings) -> None:
        raise Unavailable("The database <b>x</b> is damaged.", "Put a copy back.")

    monkeypatch.setattr(f"app.pages.{page}.reading", fails)
    fn = next(f for f in made.blocks.fns.values() if f.name == "load" and f.fn.__module__.endswith(page))
    answer = send(made, fn, [])
    said = json.loads(answer.body)["error"]
    assert answer.status == 500 and said == "The database &lt;b&gt;x&lt;/b&gt; is damaged. Put a copy back."
    assert not caplog.records


def test_an_unknown_choice_of_our_own_dropdowns_is_text_that_the_handler_looks_up(made: Bench) -> None:
    """Gradio's own check needs the choices of the session, which a restarted web process has forgotten."""
    fn = next(f for f in made.blocks.fns.values() if f.name == "review_now" and f.inputs[0].elem_id == "train-base")
    answer = send(made, fn, [SECRET, *[None] * (len(fn.inputs) - 1)])
    assert answer.status == 200 and "sp-command" not in answer.body.decode()


def test_an_event_without_a_function_is_400(made: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    fn = next(f for f in made.blocks.fns.values() if f.fn is None)
    answer = send(made, fn, [None] * len(fn.inputs))
    assert answer.status == 400
    assert "Traceback" not in "".join(capfd.readouterr())
