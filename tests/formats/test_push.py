"""speculoos push: what a dry run lists is what huggingface_hub then uploads to a hub on this machine; private by
default, gone on with after a break, refused in a sentence, the token nowhere."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import main
from speculoos.settings import Settings
from tests.models.hub_client import HubClient
from tests.tools.hub import COMMIT, TOKEN, Hub
from tracking import db
from tracking.tables import Base, Checkpoint

pytestmark = pytest.mark.integration

NOWHERE = "http://127.0.0.1:9"
Push = Callable[..., SimpleNamespace]
PUSH = """
import contextlib, io
from cli.main import main
def work(environment, words):
    os.environ.update(environment)
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(["push", "tiny@heads", *words])
    return {"returncode": status, "stdout": out.getvalue(), "stderr": err.getvalue()}
"""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Hub, HubClient]]:
    """A hub, and a process that pushes to it."""
    hub = Hub()
    with HubClient(PUSH, hub.url, tmp_path_factory.mktemp("hf")) as made:
        yield hub, made
    hub.close()


@pytest.fixture
def hub(client: tuple[Hub, HubClient]) -> Hub:
    client[0].clear()
    return client[0]


@pytest.fixture
def rows(home: Settings, base, checkpoint) -> Settings:
    """A base from the hub, `tiny`, with Medusa heads called `heads`."""
    card = {"hub_id": "org/tiny", "revision": "abc", "licence": "apache-2.0"}
    with db.writing(home) as session:
        found = Base(name="tiny", source="hub", location="org/tiny", path=str(base.path), state="ready", card=card)
        session.add(found)
        session.flush()
        row = {"name": "heads", "method": "medusa", "base_id": found.id, "state": "ready"}
        session.add(Checkpoint(**row, path=str(checkpoint("medusa"))))
    return home


@pytest.fixture
def push(rows: Settings, hub: Hub, client: tuple[Hub, HubClient], tmp_path: Path) -> Push:
    """push(words…, token, url): the command in a process beside the tests; at another `url` in one of its own."""

    def run(*words: str, token: str = TOKEN, url: str = "") -> SimpleNamespace:
        asked = {"SPECULOOS_HOME": str(rows.home), "DATABASE_URL": rows.database_url, "HF_TOKEN": token}, words
        if url:
            with HubClient(PUSH, url, tmp_path / "hf") as other:
                done = SimpleNamespace(**other.ask(*asked))
        else:
            done = SimpleNamespace(**client[1].ask(*asked))
        assert "Traceback" not in done.stderr and TOKEN not in done.stdout + done.stderr + client[1].said
        return done

    return run


def last(done: SimpleNamespace) -> dict:
    return json.loads(done.stdout.strip().splitlines()[-1])


def kept(home: Settings) -> list[Path]:
    return [*(home.home / "exports").glob("*/.push-*")]


def test_what_a_dry_run_lists_is_what_is_pushed(
    push: Push, hub: Hub, rows: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--format", "trtllm", "--repo", "me/heads", "--json")
    # in this process, where any request is an error (tests/conftest.py), and no token is set
    assert main(["push", "tiny@heads", *words, "--dry-run"]) == 0
    listed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert listed["dry_run"] and listed["private"] and listed["passed"] and listed["base_model"] == "org/tiny"
    names = {file["name"] for file in listed["files"]}
    assert {"medusa_lm_head.pt", "medusa_lm_head.safetensors", "config.json", "README.md", "validation.json"} <= names
    assert listed["bytes"] == sum(file["bytes"] for file in listed["files"]) and not hub.calls
    (folder,) = kept(rows)
    made = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {*made} == names

    done = push(*words)
    assert done.returncode == 0, done.stderr
    found = hub.repositories["me/heads"]
    assert found.private and found.commits == 1 and last(done)["commit"] == COMMIT
    sent = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in found.files.items()}
    assert sent == {
        file["name"]: (file["bytes"], file["sha256"] or sent[file["name"]][1]) for file in listed["files"]
    }, "the same bytes, not made anew"
    assert last(done)["url"] == f"{hub.url}/me/heads" and not kept(rows) and hub.tokens - {""} == {f"Bearer {TOKEN}"}
    card = found.files["README.md"].decode()
    assert "base_model: org/tiny\nlicense: apache-2.0\n" in card and "- speculative-decoding" in card
    assert "hf download me/heads --local-dir ./heads" in card and "--medusa_model_dir ./heads" in card
    assert not [path for path in rows.home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_an_upload_that_broke_off_goes_on_and_sends_nothing_twice(push: Push, hub: Hub, rows: Settings) -> None:
    hub.cut = 1
    words = ("--format", "trtllm", "--repo", "me/heads")
    # the export is made in this process, which has imported what it needs
    assert main(["push", "tiny@heads", *words, "--dry-run"]) == 0
    broken = push(*words)
    assert broken.returncode == 1 and "failed; push again: uploaded files are not sent twice." in broken.stderr
    assert len(hub.large) == 1 and hub.repositories["me/heads"].commits == 0 and len(kept(rows)) == 1
    hub.cut, sent = -1, len([call for call in hub.calls if call.startswith("PUT")])
    assert push(*words).returncode == 0
    assert len([call for call in hub.calls if call.startswith("PUT")]) == sent + 1
    assert "medusa_lm_head.pt" in hub.repositories["me/heads"].files and not kept(rows)


@pytest.mark.parametrize(
    ("words", "other", "said"),
    [
        (("--repo", "heads"), {}, "expected OWNER/NAME on the hub"),
        (("--repo", "me/heads", "--format", "sglang"), {}, "SGLang never had Medusa"),
        (("--repo", "me/heads", "--format", "onnx"), {}, "Unknown format 'onnx'"),
        (("--repo", "me/heads"), {"token": ""}, "run `hf auth login`, or set HF_TOKEN"),
        (("--repo", "me/heads"), {"token": "hf_Wrong"}, "the token is invalid"),
        (("--repo", "me/heads"), {}, "HF_HUB_OFFLINE is set"),  # in this process (tests/conftest.py)
        (("--repo", "me/heads"), {"url": NOWHERE}, "the hub cannot be reached"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_made(
    words: tuple[str, ...],
    other: dict[str, str],
    said: str,
    push: Push,
    rows: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if other:
        done = push("--format", "vllm", *words, **other)
        status, told = done.returncode, done.stderr
    else:
        status, told = main(["push", "tiny@heads", "--format", "vllm", *words]), capsys.readouterr().err
    assert status in (1, 2) and said in told and len(told.strip().splitlines()) == 1 and TOKEN not in told
    assert not kept(rows)


def test_a_public_repository_is_pushed_to_only_when_that_was_said(push: Push, hub: Hub) -> None:
    assert push("--repo", "me/open", "--public").returncode == 0
    assert not hub.repositories["me/open"].private and "SHA256SUMS" in hub.repositories["me/open"].files
    done = push("--repo", "me/open", "--format", "vllm")
    assert done.returncode == 1 and "is public; add --public" in done.stderr
    assert hub.repositories["me/open"].commits == 1


def test_a_token_that_may_not_write_is_told(push: Push, hub: Hub) -> None:
    hub.refuse["/api/repos/create"] = 403
    done = push("--repo", "you/heads")
    assert done.returncode == 1 and "the token has no write access" in done.stderr
