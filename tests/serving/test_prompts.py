"""Chat templates and tokenizers run in a child with limits: none can block the device, and token ids are the same."""

import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from models.base import load_tokenizer
from models.chat import render
from models.identity import weights_sha256
from models.starter import starter_path
from serving import prompts
from serving.catalog import ModelRef
from serving.errors import ApiError
from serving.prompts import Prompts
from speculoos.errors import BadInput, Unsupported
from tests.serving.conftest import CYCLE_TEXT, Served, more_bases, ready_base, until
from tests.serving.test_live import make_run, post, wait_until_ended
from tests.serving.test_panics import change_tokenizer

pytestmark = pytest.mark.integration

LOOPS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
SLOW_REGEX = r"(?:a*a*a*a*b)|."
"""Onig gives one match up after ten million steps, which is a panic; this needs a few less, at every place."""
SLOW_TEXT = ("a" * 90 + " ") * 400
TEMPLATES = {
    "looping": LOOPS,
    "hungry": "{% set x = 'a' * 30000000000 %}{{ x }}",
    "wrong": "{{ 1 / 0 }}",
    "refusing": "{{ raise_exception('no system prompts here') }}",
    "bare": None,
}
REGEXES = {"slow": SLOW_REGEX, "panicking": "(a+)+$"}


def make_base(folder: Path, cycle: Path, template: str | None = "", regex: str = "") -> Path:
    """The cycle base with another template ("": its own, None: none) or a regular expression before its tokenizer."""
    shutil.copytree(cycle, folder)
    if template != "":
        (folder / "chat_template.jinja").unlink()
    if template:
        (folder / "chat_template.jinja").write_text(template)
    if regex:
        split = {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False}
        levels = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        change_tokenizer(folder, pre_tokenizer={"type": "Sequence", "pretokenizers": [split, levels]})
    return folder


@pytest.fixture(scope="module")
def untrusted(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with a base for each key of TEMPLATES and REGEXES."""
    root, cycle = tmp_path_factory.mktemp("untrusted"), served.root / "cycle"
    paths = {name: make_base(root / name, cycle, template) for name, template in TEMPLATES.items()}
    paths |= {name: make_base(root / name, cycle, regex=regex) for name, regex in REGEXES.items()}
    with more_bases(served, *(ready_base(name, path, weights_sha256(path)) for name, path in paths.items())):
        yield served


def post_chat(served: Served, model: str, text: str = "Say it", **parameters: Any) -> httpx.Response:
    with served.client() as client:
        return client.post("/v1/chat/completions", json=served.chat_request(model, text, **parameters))


@pytest.mark.parametrize(
    ("model", "text", "message"),
    [
        ("looping", "x", "The chat template of the model 'looping' took longer than 0.2 s and was stopped"),
        ("hungry", "x", "The chat template of the model 'hungry' needed more than 4 GB of memory and was stopped"),
        ("wrong", "x", "The chat template of the model 'wrong' failed (ZeroDivisionError: division by zero)"),
        ("slow", SLOW_TEXT, "The tokenizer of the model 'slow' took longer than 1 s and was stopped"),
        ("panicking", "a" * 40 + "c", "The tokenizer of the model 'panicking' failed (PanicException: Onig"),
    ],
)
@pytest.mark.parametrize("streaming", [False, True])
def test_an_untrusted_template_or_tokenizer_is_stopped_with_a_sentence(
    untrusted: Served, monkeypatch: pytest.MonkeyPatch, model: str, text: str, message: str, streaming: bool
) -> None:
    if "longer than" in message:
        monkeypatch.setattr(prompts, "SECONDS", 0.2 if model == "looping" else 1.0)
    failed = untrusted.engine.metrics.prompts_failed._value.get()
    response = post_chat(untrusted, model, text, stream=streaming)
    error = response.json()["error"]
    assert response.status_code == 400 and error["code"] == "prompt_failed" and error["param"] == "model"
    assert error["message"].startswith(message) and "\n" not in error["message"]
    assert untrusted.engine.metrics.prompts_failed._value.get() == failed + 1
    monkeypatch.undo()
    assert post_chat(untrusted, "cycle").json()["choices"][0]["message"]["content"].startswith(CYCLE_TEXT)


def test_a_run_of_the_web_app_fails_with_the_sentence(untrusted: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "SECONDS", 0.2)
    run_id = make_run(untrusted, "looping")
    assert post(untrusted, run_id).status_code == 202
    run = wait_until_ended(untrusted, run_id)
    assert run.state == "FAILED" and "chat template of the model 'looping' took longer than 0.2 s" in run.error


def kill_rendering(untrusted: Served) -> None:
    """Kill the copy of the child that renders a conversation."""
    for copy in psutil.Process(untrusted.engine.prompts._child._process.pid).children():
        copy.kill()


def test_the_device_works_on_while_a_template_loops(untrusted: Served) -> None:
    """An answer that is being generated goes on; a new chat waits for one conversation at most."""
    request = untrusted.chat_request("cycle", max_tokens=8000, stream=True)
    with untrusted.client() as client, client.stream("POST", "/v1/chat/completions", json=request) as stream:
        lines = stream.iter_lines()
        next(lines)
        looping = threading.Thread(target=post_chat, args=(untrusted, "looping"))
        looping.start()
        until(lambda: untrusted.engine.prompts.queue.busy)
        for _ in range(20):
            assert next(lines) is not None
        assert untrusted.engine.prompts.queue.busy, "steps came while the template was looping"
        assert client.get("/healthz").json()["status"] == "ok"
    kill_rendering(untrusted)
    looping.join()


def test_a_client_that_leaves_a_waiting_conversation_gives_its_place_up(untrusted: Served) -> None:
    queue = untrusted.engine.prompts.queue
    looping = threading.Thread(target=post_chat, args=(untrusted, "looping"))
    looping.start()
    until(lambda: queue.busy)
    with untrusted.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=untrusted.chat_request(), timeout=0.3)
    until(lambda: not queue.waiting, 20)
    assert queue.busy
    kill_rendering(untrusted)
    looping.join()


def test_refusals_of_a_template_are_unchanged(untrusted: Served) -> None:
    response = post_chat(untrusted, "refusing")
    assert response.status_code == 400 and "no system prompts here" in response.json()["error"]["message"]
    with untrusted.client() as client:
        turns = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]
        body = {"model": "bare", "messages": [*turns, {"role": "user", "content": "z"}]}
        response = client.post("/v1/chat/completions", json=body)
    assert response.status_code == 400 and "no chat template" in response.json()["error"]["message"]


def test_requests_succeed_after_the_child_was_killed(untrusted: Served) -> None:
    assert post_chat(untrusted, "cycle").status_code == 200
    child = psutil.Process(untrusted.engine.prompts._child._process.pid)
    for process in [child, *child.children()]:
        process.kill()
    child.wait(20)
    assert post_chat(untrusted, "cycle").status_code == 200


CHATS = [
    [{"role": "user", "content": "Say it"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "naïve 😀 \x00 <|im_end|>\n"}],
    [{"role": "user", "content": ""}, {"role": "assistant", "content": "yes"}, {"role": "user", "content": "no"}],
]


@pytest.fixture
def rendering(served: Served) -> Prompts:
    return served.engine.prompts


def test_ids_equal_those_rendered_in_this_process(rendering: Prompts, model_files: Path) -> None:
    for path in (model_files / "cycle", starter_path()):
        tokenizer, ref = load_tokenizer(path), ModelRef(path.name, str(path), path.name)
        for chat in CHATS:
            assert rendering.render(ref, chat) == render(tokenizer, chat)


def test_ids_without_a_template_equal_those_rendered_in_this_process(
    rendering: Prompts, model_files: Path, tmp_path: Path
) -> None:
    path = make_base(tmp_path / "bare", model_files / "cycle", None)
    ref = ModelRef("bare", str(path), "bare")
    assert rendering.render(ref, CHATS[0]) == render(load_tokenizer(path), CHATS[0])
    with pytest.raises(Unsupported, match="no chat template"):
        rendering.render(ref, CHATS[2])


def test_a_tokenizer_that_cannot_be_read_is_reported(rendering: Prompts, model_files: Path, tmp_path: Path) -> None:
    path = make_base(tmp_path / "broken", model_files / "cycle")
    (path / "tokenizer.json").write_text("{}")
    with pytest.raises((BadInput, ApiError), match="tokenizer"):
        rendering.render(ModelRef("broken", str(path), "broken"), CHATS[0])


def test_an_ordinary_chat_takes_milliseconds(rendering: Prompts) -> None:
    ref = ModelRef("starter", str(starter_path()), "starter")
    rendering.render(ref, CHATS[0])
    times = []
    for _ in range(30):
        start = time.perf_counter()
        rendering.render(ref, CHATS[0])
        times.append(time.perf_counter() - start)
    assert min(times) < 0.02
    print(f"fastest {min(times) * 1000:.2f} ms")
