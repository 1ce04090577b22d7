"""`speculoos data import hub:…` and `data add-builtin` on the command line: output, imported rows and errors."""

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
    """A function that runs a command, in a new process if given an environment: (exit status, JSON result, stderr)."""

    def run(*arguments: str, **environment: str) -> tuple[int, dict | list, str]:
        if environment:
            command, env = [sys.executable, "-m", "cli.main", *arguments, "--json"], {**os.environ, **environment}
            process = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300)
            status, stdout, stderr = process.returncode, process.stdout, process.stderr
        else:
            status, (stdout, stderr) = main([*arguments, "--json"]), capsys.readouterr()
        assert "Traceback" not in stderr
        return status, json.loads(stdout.splitlines()[-1]), stderr

    return run


def test_a_dry_run_lists_the_files_and_makes_nothing(
    workbench: Settings,
    speculoos: Speculoos,
    hub: str,  # noqa: F811
) -> None:
    status, result, _ = speculoos("data", "import", "hub:tests/chats", "--dry-run", HF_ENDPOINT=hub, HF_HUB_OFFLINE="0")
    assert status == 0 and [file["name"] for file in result["files"]] == SHARDS
    assert result["bytes"] == sum(file["bytes"] for file in result["files"]) > 100 and result["revision"]
    assert speculoos("data", "list")[1] == []


def test_a_dataset_of_the_hub_is_imported_after_its_files_were_listed(
    workbench: Settings,
    speculoos: Speculoos,
    hub: str,  # noqa: F811
) -> None:
    environment = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(workbench.home / "hf")}
    status, result, stderr = speculoos("data", "import", "hub:tests/tables", "--name", "mine", **environment)
    assert status == 0, stderr
    assert (result["name"], result["rows"], result["bad_rows"]) == ("mine", 2, 0)
    assert "tests/tables at 0123" in stderr and "data/train-00000-of-00001" in stderr
    assert result["config"]["path"] == "hub:tests/tables" and result["report"]["hub"]["repo"] == "tests/tables"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["data", "import", "hub:tests/chats"], "not used while HF_HUB_OFFLINE is set"),
        (["data", "import", "hub:tests"], "not used while HF_HUB_OFFLINE is set"),
        (["data", "import", "hub:a/b/c"], "not a hub id"),
        (["data", "import", "x.jsonl", "--dry-run"], "--dry-run is for datasets on the Hub"),
        (["data", "import", "/nowhere.jsonl"], "there is no such file"),
        (["data", "add-builtin", "nothing"], "There is no built-in set 'nothing'; the sets are quickstart-prompts and"),
    ],
)
def test_an_error_is_one_sentence(
    workbench: Settings, speculoos: Speculoos, arguments: list[str], message: str
) -> None:
    """HF_HUB_OFFLINE is set in this process (tests/conftest.py)."""
    status, result, stderr = speculoos(*arguments)
    assert status > 0 and message in stderr and message in result["error"]["message"]
    assert len(stderr.strip().splitlines()) == 1 and speculoos("data", "list")[1] == []


@pytest.mark.usefixtures("forked_services")
def test_a_built_in_set_is_added_once(workbench: Settings, speculoos: Speculoos) -> None:
    assert [(row["rows"], row["dataset_id"]) for row in speculoos("data", "add-builtin")[1]] == [
        (1248, ""),
        (40, ""),
    ]
    status, result, stderr = speculoos("data", "add-builtin", "built-in-questions")
    assert (status, result["rows"], result["bad_rows"], result["already"]) == (0, 40, 0, False), stderr
    again = speculoos("data", "add-builtin", "built-in-questions")[1]
    assert again["already"] and again["id"] == result["id"]
    assert [row["dataset_id"] for row in speculoos("data", "add-builtin")[1]] == ["", result["id"]]
    assert len(speculoos("data", "list")[1]) == 1
