"""The documentation says what the program does: every setting, every command, every room, every path it names."""

import inspect
import re
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.pictures import PICTURES
from speculoos.settings import Endpoint, Settings
from tests.tools import cli_docs
from workers.timing import JobTiming

CLONE = Path(__file__).resolve().parent.parent.parent
MOST_BYTES = 200_000
"""Of a picture."""
SETTINGS_PAGE = (CLONE / "docs" / "settings.md").read_text()


def settings_read() -> set[str]:
    """Names of environment variables that settings.load asks for."""
    source = (CLONE / "speculoos" / "settings.py").read_text()
    others = {"database_url", "redis_url", "hf_token", "endpoints", "state_servers"}
    named = {f"SPECULOOS_{f.name.upper()}" for f in fields(Settings) if f.name not in others}
    return named | set(re.findall(r'read_text\(env, "([A-Z_]+)"', source))


def test_every_setting_is_in_the_documentation() -> None:
    wanted = settings_read() | {f"SPECULOOS_{f.name.upper()}" for f in fields(JobTiming)}
    assert len(wanted) > 15
    missing = {name for name in wanted if f"`{name}`" not in SETTINGS_PAGE}
    assert not missing


def test_every_key_of_an_endpoint_is_in_the_documentation() -> None:
    for field in fields(Endpoint):
        assert field.name == "name" or re.search(rf"^{field.name} = ", SETTINGS_PAGE, re.MULTILINE), field.name


def test_the_page_of_commands_is_what_the_program_says() -> None:
    page = (CLONE / "docs" / "cli.md").read_text()
    assert page == cli_docs.page(), "run: python -m tests.tools.cli_docs > docs/cli.md"


def test_documented_defaults_of_settings_are_the_real_ones(tmp_path: Path) -> None:
    from speculoos.settings import load

    settings = load({"SPECULOOS_HOME": str(tmp_path)})
    for name, value in (
        ("SPECULOOS_PORT", settings.port),
        ("SPECULOOS_INFERENCE_PORT", settings.inference_port),
        ("SPECULOOS_HOST", settings.host),
        ("SPECULOOS_MAX_UPLOAD_MB", settings.max_upload_mb),
        ("SPECULOOS_MAX_ROWS", settings.max_rows),
        ("SPECULOOS_DEVICE", settings.device),
        *((f"SPECULOOS_{f.name.upper()}", f.default) for f in fields(settings) if f.name.startswith("keep_")),
        ("SPECULOOS_DTYPE", settings.dtype),
    ):
        assert f"| `{name}` | `{value}` |" in SETTINGS_PAGE, name


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
    known = {name for name, _ in cli_docs.commands(cli_docs.typer.main.get_command(cli_docs.app))}
    groups = {" ".join(name.split()[:n]) for name in known for n in (2, 3)}
    text = (CLONE / "README.md").read_text()
    used = re.findall(r"^\s*(?:\.venv/bin/)?(speculoos [a-z]+(?: [a-z]+)?)", text, re.MULTILINE)
    assert used
    for words in used:
        assert words in groups or " ".join(words.split()[:2]) in known, words


TRAIN_FORM = "From the Train form to the job's row"


def path_lines(section: str = "A reader's path") -> list[tuple[str, str]]:
    text = (CLONE / "docs" / "architecture.md").read_text(encoding="utf-8")
    part = text.split(f"## {section}")[1].split("\n## ")[0]
    return re.findall(r"^\| `([^`]+\.(?:py|js))` \| `([^`]+)` \|", part, re.MULTILINE)


def test_the_readers_path_begins_with_send_and_ends_with_a_row() -> None:
    lines = path_lines()
    assert len(lines) > 20
    assert lines[0] == ("app/turns.py", "next_turn") and lines[-1] == ("workers/child/work/train.py", "publish")


def test_the_way_of_the_train_form_is_short() -> None:
    lines = path_lines(TRAIN_FORM)
    assert len(lines) <= 20 and len({file for file, _ in lines}) <= 9


@pytest.mark.parametrize(("file", "name"), [*path_lines(), *path_lines(TRAIN_FORM)])
def test_every_line_of_the_readers_path_is_there(file: str, name: str) -> None:
    if file.endswith(".js"):
        text = (CLONE / file).read_text(encoding="utf-8")
        assert re.search(rf"^export .*\b{name}\b", text, re.MULTILINE)
        assert name != "TokenStream" or "sp-${origin}" in text
        return
    module = found = import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    for part in name.split("."):
        found = getattr(found, part)
    assert callable(found) and inspect.unwrap(found).__module__ == module.__name__  # Celery's tasks are wrapped


def test_pictures_are_those_that_the_command_takes_and_each_says_what_it_shows() -> None:
    pages = [CLONE / "README.md", *(CLONE / "docs").glob("*.md")]
    shown = {
        name
        for page in pages
        for words, name in re.findall(r"!\[([^]]*)\]\((?:docs/)?images/([^)]+\.png)\)", page.read_text())
        if len(words) > 30
    }
    taken = {path.name: path.stat().st_size for path in (CLONE / "docs" / "images").glob("*.png")}
    assert shown == set(taken) == {f"{name}.png" for name in PICTURES}
    assert max(taken.values()) <= MOST_BYTES
