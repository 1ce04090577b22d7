"""The device thread panics or hangs in a real inference server under `speculoos up`, which recovers by itself.

The short forms are tests/serving/test_panics.py and test_stuck.py."""

import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.browser.workbench import add_base
from tests.tools.figures import Figures, spread
from tests.tools.running import CLONE, Up, wait_for

ROUNDS = int(os.environ.get("DRILLS_ROUNDS", "10"))
SABOTAGE = CLONE / "tests" / "tools" / "sabotage"
STUCK_SECONDS = 5
QUESTION = {"model": "tiny", "messages": [{"role": "user", "content": "Say it"}], "max_tokens": 16, "temperature": 0}
WAITING = 3
BACK_SECONDS = 120.0


@pytest.fixture
def sabotaged(tmp_path: Path, clean_environment: None) -> Iterator[Up]:
    """A running workbench whose generation panics or hangs on command, by files in `home/../orders`."""
    orders = tmp_path / "orders"
    orders.mkdir()
    workbench = Up(
        tmp_path / "home",
        PYTHONPATH=f"{SABOTAGE}:{CLONE}",
        SABOTAGE=str(orders),
        SPECULOOS_STUCK_SECONDS=str(STUCK_SECONDS),
    )
    try:
        workbench.start()
        add_base(workbench)
        yield workbench
    finally:
        workbench.end()
        shutil.rmtree(workbench.settings.run_dir, ignore_errors=True)


def ask(up: Up, seconds: float = 60.0) -> httpx.Response | None:
    """The response of the inference server, or None without a complete response."""
    token = (up.home / "secrets" / "inference-token").read_text().strip()
    url = f"http://127.0.0.1:{up.settings.inference_port}/v1/chat/completions"
    headers = {"Authorization": f"Bearer {token}"}
    try:
        return httpx.post(url, json=QUESTION, headers=headers, timeout=seconds, trust_env=False)
    except httpx.TransportError:
        return None


def text(response: httpx.Response | None) -> str:
    return response.json()["choices"][0]["message"]["content"] if response is not None and response.is_success else ""


def healthz(up: Up) -> int:
    """The status code of the health check, or 0 without a response."""
    try:
        return httpx.get(
            f"http://127.0.0.1:{up.settings.inference_port}/healthz", timeout=5, trust_env=False
        ).status_code
    except httpx.TransportError:
        return 0


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_a_device_thread_that_panics(sabotaged: Up, figures: Figures) -> None:
    up, orders = sabotaged, sabotaged.home.parent / "orders"
    reference, seconds, silent = text(ask(up)), [], 0
    assert reference
    for _ in range(ROUNDS):
        (orders / "panic").touch()
        response = ask(up)
        silent += response is None or response.is_success or "Traceback" in response.text
        seconds.append(wait_for(lambda: text(ask(up, 10)) == reference, "the next answer", BACK_SECONDS))
    figures.record(panics=ROUNDS, without_an_answer=silent, lost=0, recovery={"answers": spread(seconds)})
    assert silent == 0


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_a_device_thread_that_hangs(sabotaged: Up, figures: Figures) -> None:
    up, orders = sabotaged, sabotaged.home.parent / "orders"
    reference, seconds, unhealthy, unanswered = text(ask(up)), [], 0, 0
    assert reference
    for _ in range(ROUNDS):
        before, began = up.pid("inference"), time.monotonic()
        (orders / "hang").touch()
        responses: list[httpx.Response | None] = []
        threads = [threading.Thread(target=lambda a=responses: a.append(ask(up, 60))) for _ in range(WAITING)]
        [thread.start() for thread in threads]
        wait_for(lambda: not (orders / "hang").exists(), "the hang to begin", 60)
        wait_for(lambda pid=before: healthz(up) != 200 or up.pid("inference") != pid, "a health check that says so", 60)
        unhealthy += 1
        wait_for(lambda: text(ask(up, 10)) == reference, "the next answer", BACK_SECONDS)
        seconds.append(time.monotonic() - began)
        [thread.join(90) for thread in threads]
        unanswered += WAITING - len(responses)
        assert sum(text(response) != "" for response in responses) < WAITING, "the one that hung was answered"
        assert up.pid("inference") != before
    figures.record(
        hangs=ROUNDS, noticed=unhealthy, left_hanging=unanswered, lost=0, recovery={"answers": spread(seconds)}
    )
    assert unanswered == 0
