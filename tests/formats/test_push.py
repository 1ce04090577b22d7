"""speculoos push, with huggingface_hub and a hub on this machine: it uploads what its dry run lists, into a private
repository by default, resumes after an interruption, refuses in one sentence and never shows the token."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from cli.main import main
from speculoos.settings import Settings
from tests.models.hub_client import HubClient
from tests.tools.hub import COMMIT, TOKEN, Hub, serving_hub
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
    with serving_hub() as hub, HubClient(PUSH, hub.url, tmp_path_factory.mktemp("hf")) as process:
        yield hub, process


@pytest.fixture
def hub(client: tuple[Hub, HubClient]) -> Hub:
    client[0].clear()
    return client[0]


@pytest.fixture
def rows(home: Settings, base, checkpoint) -> Settings:
    """A base from the hub, `tiny`, with Medusa heads called `heads`."""
    card = {"hub_id": "org/tiny", "revision": "abc", "licence": "apache-2.0"}
    with db.writing(home) as session:
        base_row = Base(name="tiny", source="hub", location="org/tiny", path=str(base.path), state="ready", card=card)
        session.add(base_row)
        session.flush()
        fields = {"name": "heads", "method": "medusa", "base_id": base_row.id, "state": "ready"}
        session.add(Checkpoint(**fields, path=str(checkpoint("medusa"))))
    return home


@pytest.fixture
def push(rows: Settings, hub: Hub, client: tuple[Hub, HubClient], tmp_path: Path) -> Push:
    """push(*arguments, token, url): run the command in the process of `client`; with a `url`, in a new process."""

    def run(*arguments: str, token: str = TOKEN, url: str = "") -> SimpleNamespace:
        request = {"SPECULOOS_HOME": str(rows.home), "DATABASE_URL": rows.database_url, "HF_TOKEN": token}, arguments
        if url:
            with HubClient(PUSH, url, tmp_path / "hf") as other:
                result = SimpleNamespace(**other.ask(*request))
        else:
            result = SimpleNamespace(**client[1].ask(*request))
        assert "Traceback" not in result.stderr and TOKEN not in result.stdout + result.stderr + client[1].said
        return result

    return run


def last_json(result: SimpleNamespace) -> dict:
    return json.loads(result.stdout.strip().splitlines()[-1])


def push_folders(home: Settings) -> list[Path]:
    return [*(home.home / "exports").glob("*/.push-*")]


def test_what_a_dry_run_lists_is_what_is_pushed(
    push: Push, hub: Hub, rows: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--format", "trtllm", "--repo", "me/heads", "--json")
    # in this process, where any request is an error (tests/conftest.py), and no token is set
    assert main(["push", "tiny@heads", *arguments, "--dry-run"]) == 0
    listed = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert listed["dry_run"] and listed["private"] and listed["passed"] and listed["base_model"] == "org/tiny"
    names = {file["name"] for file in listed["files"]}
    assert {"medusa_lm_head.pt", "medusa_lm_head.safetensors", "config.json", "README.md", "validation.json"} <= names
    assert listed["bytes"] == sum(file["bytes"] for file in listed["files"]) and not hub.calls
    (folder,) = push_folders(rows)
    times = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {*times} == names

    result = push(*arguments)
    assert result.returncode == 0, result.stderr
    repository = hub.repositories["me/heads"]
    assert repository.private and repository.commits == 1 and last_json(result)["commit"] == COMMIT
    sent = {name: (len(content), hashlib.sha256(content).hexdigest()) for name, content in repository.files.items()}
    assert sent == {
        file["name"]: (file["bytes"], file["sha256"] or sent[file["name"]][1]) for file in listed["files"]
    }, "the same bytes, not made anew"
    assert (
        last_json(result)["url"] == f"{hub.url}/me/heads"
        and not push_folders(rows)
        and hub.tokens - {""} == {f"Bearer {TOKEN}"}
    )
    card = repository.files["README.md"].decode()
    assert "base_model: org/tiny\nlicense: apache-2.0\n" in card and "- speculative-decoding" in card
    assert "hf download me/heads --local-dir ./heads" in card and "--medusa_model_dir ./heads" in card
    assert not [path for path in rows.home.rglob("*") if path.is_file() and TOKEN.encode() in path.read_bytes()]


def test_an_upload_that_broke_off_goes_on_and_sends_nothing_twice(push: Push, hub: Hub, rows: Settings) -> None:
    hub.cut = 1
    arguments = ("--format", "trtllm", "--repo", "me/heads")
    # the export is made in this process, which has imported what it needs
    assert main(["push", "tiny@heads", *arguments, "--dry-run"]) == 0
    broken = push(*arguments)
    assert broken.returncode == 1 and "failed; push again: uploaded files are not sent twice." in broken.stderr
    assert len(hub.large) == 1 and hub.repositories["me/heads"].commits == 0 and len(push_folders(rows)) == 1
    hub.cut, sent = -1, len([call for call in hub.calls if call.startswith("PUT")])
    assert push(*arguments).returncode == 0
    assert len([call for call in hub.calls if call.startswith("PUT")]) == sent + 1
    assert "medusa_lm_head.pt" in hub.repositories["me/heads"].files and not push_folders(rows)


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
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
def test_an_impossible_push_is_refused_before_the_export(
    arguments: tuple[str, ...],
    options: dict[str, str],
    message: str,
    push: Push,
    rows: Settings,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if options:
        result = push("--format", "vllm", *arguments, **options)
        status, stderr = result.returncode, result.stderr
    else:
        status, stderr = main(["push", "tiny@heads", "--format", "vllm", *arguments]), capsys.readouterr().err
    assert status in (1, 2) and message in stderr and len(stderr.strip().splitlines()) == 1 and TOKEN not in stderr
    assert not push_folders(rows)


def test_a_public_repository_is_pushed_to_only_with_public(push: Push, hub: Hub) -> None:
    assert push("--repo", "me/open", "--public").returncode == 0
    assert not hub.repositories["me/open"].private and "SHA256SUMS" in hub.repositories["me/open"].files
    result = push("--repo", "me/open", "--format", "vllm")
    assert result.returncode == 1 and "is public; add --public" in result.stderr
    assert hub.repositories["me/open"].commits == 1


def test_a_token_without_write_access_is_reported(push: Push, hub: Hub) -> None:
    hub.refuse["/api/repos/create"] = 403
    result = push("--repo", "you/heads")
    assert result.returncode == 1 and "the token has no write access" in result.stderr
