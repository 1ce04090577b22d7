"""Every command on the right of docs/migration.md is one that the program takes. Those of docs/nemo.md are in
tests/speculoos/test_nemo_docs."""

import re

from cli.commands.train import make_request
from speculoos.settings import PROJECT_ROOT
from tests.workers.test_command_line import parsed
from workers.jobs.parsing import parse_settings

PAGE = PROJECT_ROOT / "docs" / "migration.md"


def test_every_command_of_the_page_is_taken() -> None:
    cells = [line.split(" | ")[-1] for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    commands = [found for cell in cells for found in re.findall(r"`(speculoos [^`]+)`", cell)]
    assert len(commands) > 30
    for command in commands:
        names, values = parsed(command)
        if names == ["train"]:
            assert make_request(values["what"], "b", values["data"], parse_settings(values["settings"])).config
