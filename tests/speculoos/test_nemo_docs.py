"""docs/nemo.md: every command of ours is one that the program takes, and its settings are those that a home reads."""

import re
import shlex
from pathlib import Path

import pytest

from cli.commands.train import make_request
from corpus.mapping import parse_mapping
from formats import FORMATS
from speculoos.settings import load
from tests.workers.test_command_line import parsed
from workers.jobs.parsing import parse_settings

CLONE = Path(__file__).resolve().parents[2]
PAGE = (CLONE / "docs" / "nemo.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}(speculoos .+)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_one_that_the_program_takes(command: str) -> None:
    names, values = parsed(command)
    if names == ["train"]:
        request = make_request(values["what"], "b", values["data"], parse_settings(values["settings"]))
        assert (request.method, request.settings) == ("eagle3", {"hidden_states": "big"})
    if names == ["export"] and not values["listing"]:
        assert FORMATS[values["form"]].layout("eagle3")
    if names == ["data", "import"]:
        assert parse_mapping(values["columns"]) == {"prompt": "input"}


def test_the_way_goes_from_one_command_to_the_next() -> None:
    """Names that a command takes were given by one before it."""
    words = [shlex.split(command) for command in COMMANDS]
    assert len(words) > 8
    given: set[str] = set()
    for line in words:
        taken = {
            line[at + 1] for at, word in enumerate(line) if word in ("--model", "--data", "--prompts", "--checkpoint")
        }
        taken |= {part for word in line if re.fullmatch(r"\w+@\w+", word) for part in word.split("@")}
        assert taken <= given, line
        given |= {line[at + 1] for at, word in enumerate(line) if word == "--name"}


def test_its_settings_are_read(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    (tmp_path / "settings.toml").write_text(text)
    settings = load({"SPECULOOS_HOME": str(tmp_path)})
    assert settings.endpoints["big"].model == "mine" and settings.state_servers["big"].kind == "speculoos"


def test_it_is_linked_and_its_links_lead_somewhere() -> None:
    assert "(nemo.md)" in (CLONE / "docs" / "training.md").read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", PAGE):
        assert target.startswith("https://docs.nvidia.com/") or (CLONE / "docs" / target).is_file(), target
