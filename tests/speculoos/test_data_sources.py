"""`speculoos data import hub:…` and `data add-builtin`, as people type them: what is said first, what comes in, what is
refused in a sentence."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from cli.launch.supervision import end_leftover_processes
from cli.main import main
from speculoos.settings import Settings
from tests.models.test_fetch import hub  # noqa: F401

pytestmark = pytest.mark.integration

SHARDS = ["data/train-00000-of-00002.jsonl", "data/train-00001-of-00002.jsonl"]


@pytest.fixture
def workbench(home: Settings) -> Iterator[Settings]:
    yield home
    end_leftover_processes(home, timeout=0)


Speculoos = Callable[..., tuple[int, dict | list, str]]


@pytest.fixture
def speculoos(capsys: pytest.CaptureFixture[str]) -> Speculoos:
    """(exit status, JSON result, what was said); in a process of its own for an environment of its own."""

    def run(*words: str, **environment: str) -> tuple[int, dict | list, str]:
        if environment:
            command, env = [sys.executable, "-m", "cli.main", *words, "--json"], {**os.environ, **environment}
            made = subprocess.run(command, env=env, capture_output=True, text=True, timeout=180)
            status, out, said = made.returncode, made.stdout, made.stderr
        else:
            status, (out, said) = main([*words, "--json"]), capsys.readouterr()
        assert "Traceback" not in said
        return status, json.loads(out.splitlines()[-1]), said

    return run


def test_a_dry_run_lists_the_files_and_makes_nothing(
    workbench: Settings,
    speculoos: Speculoos,
    hub: str,  # noqa: F811
) -> None:
    status, found, _ = speculoos("data", "import", "hub:tests/chats", "--dry-run", HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert status == 0 and [each["name"] for each in found["files"]] == SHARDS
    assert found["bytes"] == sum(each["bytes"] for each in found["files"]) > 100 and found["revision"]
    assert speculoos("data", "list")[1] == []


def test_a_set_of_the_hub_comes_in_after_its_files_were_listed(
    workbench: Settings,
    speculoos: Speculoos,
    hub: str,  # noqa: F811
) -> None:
    reached = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(workbench.home / "hf")}
    status, found, said = speculoos("data", "import", "hub:tests/tables", "--name", "mine", **reached)
    assert status == 0, said
    assert (found["name"], found["rows"], found["bad_rows"]) == ("mine", 2, 0)
    assert "tests/tables at 0123" in said and "data/train-00000-of-00001" in said
    assert found["config"]["path"] == "hub:tests/tables" and found["report"]["hub"]["repo"] == "tests/tables"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["data", "import", "hub:tests/chats"], "not used while HF_HUB_OFFLINE is set"),
        (["data", "import", "hub:tests"], "not used while HF_HUB_OFFLINE is set"),
        (["data", "import", "hub:a/b/c"], "not a hub id"),
        (["data", "import", "x.jsonl", "--dry-run"], "--dry-run is for datasets on the Hub"),
        (["data", "import", "/nowhere.jsonl"], "there is no such file"),
        (["data", "add-builtin", "nothing"], "There is no built-in set 'nothing'; the sets are quickstart-prompts and"),
    ],
)
def test_what_cannot_be_is_one_sentence(workbench: Settings, speculoos: Speculoos, words: list[str], says: str) -> None:
    """HF_HUB_OFFLINE is set in this process (tests/conftest.py)."""
    status, found, said = speculoos(*words)
    assert status > 0 and says in said and says in found["error"]["message"]
    assert len(said.strip().splitlines()) == 1 and speculoos("data", "list")[1] == []


@pytest.mark.usefixtures("forked_services")
def test_a_built_in_set_is_added_once(workbench: Settings, speculoos: Speculoos) -> None:
    assert [(each["rows"], each["dataset_id"]) for each in speculoos("data", "add-builtin")[1]] == [
        (1248, ""),
        (40, ""),
    ]
    status, found, said = speculoos("data", "add-builtin", "built-in-questions")
    assert (status, found["rows"], found["bad_rows"], found["already"]) == (0, 40, 0, False), said
    again = speculoos("data", "add-builtin", "built-in-questions")[1]
    assert again["already"] and again["id"] == found["id"]
    assert [each["dataset_id"] for each in speculoos("data", "add-builtin")[1]] == ["", found["id"]]
    assert len(speculoos("data", "list")[1]) == 1
