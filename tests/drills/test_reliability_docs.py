"""docs/reliability.md names every drill and only tests that exist; a program writes its figures."""

import ast
import json
import re
from pathlib import Path

import pytest

from benchmarks.reliability import BEGIN, END, PAGE, page
from tests.tools.figures import Figures, spread
from tests.tools.running import CLONE

TEXT = PAGE.read_text(encoding="utf-8")
NAMED = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", TEXT.partition("## Figures")[0])


def functions_of(path: str) -> dict[str, bool]:
    """Names of a file's tests; True for those with the marker `drill`."""
    tree = ast.parse((CLONE / path).read_text())
    whole = any(isinstance(node, ast.Assign) and "mark.drill" in ast.unparse(node) for node in tree.body)
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    return {f.name: whole or any("mark.drill" in ast.unparse(d) for d in f.decorator_list) for f in functions}


@pytest.mark.parametrize(("path", "name"), sorted(set(NAMED)))
def test_every_test_it_names_exists(path: str, name: str) -> None:
    assert (CLONE / path).exists()
    assert not name or name in functions_of(path)


def test_every_drill_is_in_its_table() -> None:
    files = [path for path in (CLONE / "tests").rglob("test_*.py") if "mark.drill" in path.read_text()]
    drills = {
        (str(path.relative_to(CLONE)), name)
        for path in files
        for name, is_drill in functions_of(str(path.relative_to(CLONE))).items()
        if is_drill
    }
    assert len(drills) > 12
    assert drills <= set(NAMED), drills - set(NAMED)


def test_every_row_has_a_short_form_that_make_test_runs() -> None:
    rows = [line.split("|") for line in TEXT.splitlines() if line.startswith("| ") and "`tests/" in line]
    for cells in rows:
        short = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", cells[4])
        assert short, cells[1]
        assert not any(name and functions_of(path)[name] for path, name in short), (
            f"{cells[1]}: a drill is no short form"
        )


def test_figures_take_the_place_of_the_old_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRILLS_OUT", str(tmp_path / "drills.json"))
    Figures("kills").record(kills=3, jobs=2, lost=0, doubled=0, recovery={"web": spread([1.0, 3.0, 2.0])})
    Figures("kills").record(kills=4, jobs=2, lost=0, doubled=0, recovery={"web": spread([1.0, 3.0, 2.5])})
    Figures("short", short=True).record(kills=1)
    recorded = json.loads((tmp_path / "drills.json").read_text())
    text = page(page(f"before\n{BEGIN}\nold\n{END}\nafter", recorded), recorded)
    assert text.startswith("before\n") and text.endswith("\nafter") and "old" not in text
    assert text.count("| kills | 4 | 2 | 0 | 0 |") == 1 and "| web (kills) | 3 | 2.5 | 3.0 | 3.0 |" in text
    assert "short" not in text


def test_drills_without_figures_keep_their_rows_and_their_machine(tmp_path: Path) -> None:
    one = {"date": "2026-01-02", "seconds": 5, "load": [0.1, 0.2]}
    web = {"recovery": {"web": spread([2.0])}}
    machine = {"processor": "Old", "cores": 2, "python": "3", "torch": "2"}
    before = {"machine": machine, "drills": {"first_one": {**one, "kills": 1, **web}, "second": {**one, **web}}}
    again = {"machine": {**machine, "processor": "New"}, "drills": {"second": {**one, "kills": 9}}}
    text = page(page(f"{BEGIN}\n{END}", before), again)
    assert text == page(text, again)
    assert "New, 2 cores, Python 3, torch 2; by" in text
    assert text.count("| first one | 1 | ") == text.count("0.1 to 0.2; Old, 2 cores, Python 3, torch 2 |") == 1
    assert text.count("| second | 9 | ") == text.count("| second | ") == text.count("0.1 to 0.2 |") == 1
    assert "| web (first one) | 1 | 2.0 |" in text and "web (second)" not in text


def test_the_page_stays_as_it_is_where_no_drill_ran() -> None:
    match = re.search(r"(.*), (.*) cores, Python (.*), torch (.*); by `make drills`", TEXT)
    machine = dict(zip(("processor", "cores", "python", "torch"), match.groups(), strict=True))
    assert page(TEXT, {"machine": machine, "drills": {}}) == TEXT
