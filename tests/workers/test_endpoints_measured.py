"""The same suite measured locally, at our inference server and at a stand-in for vLLM: jobs, rows and the page. None of
them contains a key."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from app.views import evaluation_view
from tests.evaluation.test_served import SERVER, TAU
from tests.tools import zygote
from tests.tools.homes import skip_speed_probe
from tests.tools.local_server import start_server
from tests.tools.ports import free_ports
from tests.workers.conftest import Bench, wait_until
from tests.workers.matrix_bench import add_model, add_suites
from tracking import db
from tracking.leaderboard import comparable_evaluations
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, JobLog
from workers.jobs.requests import Evaluate
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

FORKED = True
OURS, THEIRS = "inference-0815-ours", "sesame-4711-theirs"


@pytest.fixture
def servers(bench: Bench, tiny_base: Path) -> Iterator[tuple[str, str]]:
    """Base id and checkpoint id. Our server serves them and a stand-in for vLLM claims to; settings.toml names both
    servers with their keys."""
    (port,) = free_ports(1)
    variables = {"SPECULOOS_INFERENCE_PORT": str(port), "SPECULOOS_INFERENCE_TOKEN": OURS, "SPECULOOS_DEVICE": "cpu"}
    bench.environment |= {**variables, "OURS_KEY": OURS, "THEIRS_KEY": THEIRS}
    bench.settings = replace(bench.settings, inference_port=port)
    base_id, (heads,) = add_model(bench.settings, tiny_base, 1)
    file = bench.settings.home / "their-port"
    their_process = start_server(SERVER, file, "vllm", THEIRS)
    skip_speed_probe(bench.settings.home)
    our_process = zygote.begin("serving.main", [], bench.environment)
    try:
        wait_until(lambda: is_up(port), 240, "our server")
        tables = {"ours": (port, OURS), "theirs": (int(file.read_text()), THEIRS)}
        text = "".join(
            f'[endpoints.{name}]\nurl = "http://127.0.0.1:{number}/v1"\nkey_env = "{name.upper()}_KEY"\nretries = 1\n'
            for name, (number, _) in tables.items()
        )
        (bench.settings.home / "settings.toml").write_text(text)
        yield base_id, heads
    finally:
        for process in (their_process, our_process):
            process.kill()
            process.wait(30)


def is_up(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=2).status_code == 200
    except httpx.TransportError:
        time.sleep(0.1)
        return False


def evaluate(bench: Bench, **fields: object) -> Evaluation:
    job = submit(Evaluate(limit=3, max_tokens=8, **fields), settings=bench.settings)
    done = bench.wait(job.id, "SUCCEEDED", 180)
    with db.reading(bench.settings) as session:
        return session.get_one(Evaluation, done.request["evaluation_id"])


def test_local_and_served_evaluations_stand_side_by_side(bench: Bench, servers: tuple[str, str]) -> None:
    base_id, heads = servers
    bench.worker("io")
    bench.worker("gpu")
    (suite,) = add_suites(bench, ["gsm8k"], 4)
    fields = {"base_id": base_id, "checkpoint_id": heads, "dataset_id": suite}
    here = evaluate(bench, **fields)
    ours = evaluate(
        bench, **fields, endpoint="ours", endpoint_model="tiny@heads-0", plain_model="tiny", concurrency=[2]
    )
    theirs = evaluate(bench, **fields, endpoint="theirs", endpoint_model="drafted", plain_model="plain")
    assert ours.result["source"] == {
        "endpoint": "ours",
        "model": "tiny@heads-0",
        "server": "Speculoos",
        "by": "answers",
    }
    assert ours.tau == pytest.approx(here.tau, abs=0.01), "the same engine accepts the same"
    assert ours.result["identical_to_plain"] is True and ours.speedup and ours.plain_tokens_per_second
    (load,) = ours.result["loads"]
    assert load["drafted"]["mean_accepted_length"] == pytest.approx(here.tau, abs=0.05), "8 requests of 3 questions"
    assert load["drafted"]["failed"] == 0 and load["speedup_interval"]
    assert load["plain"]["requests"] == load["drafted"]["requests"] == 8
    assert theirs.tau == pytest.approx(TAU, abs=1e-3) and theirs.result["source"]["by"] == "counters"
    assert (theirs.source, theirs.machine, theirs.questions) == ("theirs", "vLLM", "GSM8K")
    with db.reading(bench.settings) as session:
        assert [row.source for row in comparable_evaluations(session, here)] == ["", "ours", "theirs"]
        html = evaluation_view.view(session, here)
        checkpoint = session.get_one(Checkpoint, heads)
    assert "Server ours" in html and "Server theirs" in html
    assert checkpoint.figures["speedup"] == here.speedup, "a server's figures are not the checkpoint's own"
    no_key_anywhere(bench)


def test_an_unknown_endpoint_or_model_fails_with_a_message(bench: Bench, servers: tuple[str, str]) -> None:
    bench.worker("io")
    unknown = submit(Evaluate(endpoint="nobody", endpoint_model="m"), settings=bench.settings)
    assert "There is no endpoint named 'nobody' in settings.toml" in bench.wait(unknown.id, "FAILED").error
    wrong = submit(Evaluate(endpoint="ours", endpoint_model="no-such-model", limit=4), settings=bench.settings)
    assert "ours does not answer: 404" in bench.wait(wrong.id, "FAILED").error
    no_key_anywhere(bench)


def no_key_anywhere(bench: Bench) -> None:
    """Check that no row and no log file contains a key."""
    with db.reading(bench.settings) as session:
        rows = [str(vars(row)) for kind in (Job, JobLog, Evaluation, Base, Dataset) for row in session.query(kind)]
    files = [path.read_text(errors="replace") for path in bench.settings.home.rglob("*.log")]
    for text in (*rows, *files):
        assert OURS not in text and THEIRS not in text
