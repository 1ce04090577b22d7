"""The documentation matches the program: every setting, every command, every link and every path it names."""

import inspect
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from speculoos.settings import Settings
from tests.tools import cli_docs
from workers.timing import JobTiming

CLONE = Path(__file__).resolve().parent.parent.parent
MOST_BYTES = 200_000
"""Of a picture."""
SETTINGS_PAGE = (CLONE / "docs" / "settings.md").read_text()


def settings_read() -> set[str]:
    """Names of environment variables that settings.load asks for."""
    source = (CLONE / "speculoos" / "settings.py").read_text()
    others = {"database_url", "redis_url", "hf_token", "endpoints", "state_servers", "engines"}
    named = {f"SPECULOOS_{f.name.upper()}" for f in fields(Settings) if f.name not in others}
    return named | set(re.findall(r'read_text\(env, "([A-Z_]+)"', source))


def test_every_setting_is_in_the_documentation() -> None:
    names = settings_read() | {f"SPECULOOS_{f.name.upper()}" for f in fields(JobTiming)}
    assert len(names) > 15
    missing = {name for name in names if f"`{name}`" not in SETTINGS_PAGE}
    assert not missing


def test_the_page_of_commands_is_what_the_program_says() -> None:
    page = (CLONE / "docs" / "cli.md").read_text()
    assert page == cli_docs.page(), "run: python -m tests.tools.cli_docs > docs/cli.md"


@pytest.mark.parametrize(
    "page",
    ["README.md", "CHANGELOG.md", *(f"docs/{p}.md" for p in ("architecture", "settings", "operations", "cluster"))],
)
def test_links_between_pages_lead_somewhere(page: str) -> None:
    text = re.sub(r"`[^`]*`", "", (CLONE / page).read_text())
    for target in re.findall(r"(?<!\.png)\]\(([^)#]+)(?<!\.png)\)", text):
        if not target.startswith("http"):
            assert ((CLONE / page).parent / target).exists(), f"{page} → {target}"


def test_the_readme_names_only_commands_that_exist() -> None:
    commands = {name for name, _ in cli_docs.commands(cli_docs.typer.main.get_command(cli_docs.app))}
    groups = {" ".join(name.split()[:n]) for name in commands for n in (2, 3)}
    text = (CLONE / "README.md").read_text()
    used = re.findall(r"^\s*(?:\.venv/bin/)?(speculoos [a-z]+(?: [a-z]+)?)", text, re.MULTILINE)
    assert used
    for command in used:
        assert command in groups or " ".join(command.split()[:2]) in commands, command


TRAIN_FORM = "From the Train form to the job's row"


def path_lines(section: str = "A reader's path") -> list[tuple[str, str]]:
    text = (CLONE / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = text.split(f"## {section}")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+\.(?:py|js))` \| `([^`]+)` \|", part, re.MULTILINE)


@pytest.mark.parametrize(("file", "name"), [*path_lines(), *path_lines(TRAIN_FORM)])
def test_every_line_of_the_readers_path_is_there(file: str, name: str) -> None:
    if file.endswith(".js"):
        text = (CLONE / file).read_text(encoding="utf-8")
        assert re.search(rf"^export .*\b{name}\b", text, re.MULTILINE)
        assert name != "TokenStream" or "sp-${origin}" in text
        return
    module = value = import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    for part in name.split("."):
        value = getattr(value, part)
    assert callable(value) and inspect.unwrap(value).__module__ == module.__name__  # Celery's tasks are wrapped
