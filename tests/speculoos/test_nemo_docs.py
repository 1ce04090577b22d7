"""docs/nemo.md: the program accepts each of its commands and reads its settings."""

import re
from pathlib import Path

import pytest

from cli.commands.train import make_request
from corpus.rows import parse_mapping
from formats import FORMATS
from speculoos.settings import load
from tests.workers.test_command_line import parsed
from workers.jobs.arguments import parse_settings

CLONE = Path(__file__).resolve().parents[2]
PAGE = (CLONE / "docs" / "nemo.md").read_text(encoding="utf-8")
COMMANDS = re.findall(r"^ {4}(speculoos .+)$", PAGE, flags=re.MULTILINE)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_accepted(command: str) -> None:
    names, values = parsed(command)
    if names == ["train"]:
        request = make_request(values["what"], "b", values["data"], parse_settings(values["settings"]))
        assert (request.method, request.settings) == ("eagle3", {"hidden_states": "big"})
    if names == ["export"] and not values["listing"]:
        assert FORMATS[values["form"]].layout("eagle3")
    if names == ["data", "import"]:
        assert parse_mapping(values["columns"]) == {"prompt": "input"}


def test_its_settings_are_read(tmp_path: Path) -> None:
    text = re.search(r"```toml\n(.*?)```", PAGE, flags=re.DOTALL).group(1)
    (tmp_path / "settings.toml").write_text(text)
    settings = load({"SPECULOOS_HOME": str(tmp_path)})
    assert settings.endpoints["big"].model == "mine" and settings.state_servers["big"].kind == "speculoos"
