"""The floors of docs/architecture.md, read from the source: imports run downwards, without exception and without a
circle; and the light rooms stay without torch."""

import ast
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parent.parent
ROOF = ("speculoos.cli", "speculoos.commands", "speculoos.follow")
"""The command line. All else in `speculoos/` is the cellar: leaves that any room may import."""
LEDGER, ENGINE = {"tracking"}, {"decoding", "runtime", "models", "methods"}
WORK = {"training", "corpus", "evaluation"}
FLOORS: dict[str, set[str]] = {
    "speculoos": set(),
    "methods": set(),
    "tracking": set(),
    "migrations": LEDGER,
    "models": {"methods"},
    "runtime": {"models"},
    "decoding": {"runtime", "models", "methods"},
    "formats": ENGINE,
    "features": ENGINE - {"decoding"},
    "training": {*ENGINE, "features"},
    "corpus": {*ENGINE, "features"},
    "evaluation": {*ENGINE, "corpus"},
    "upkeep": {*LEDGER, "models"},
    "workers": LEDGER,
    "workers.ask": {*LEDGER, "formats", "methods", "upkeep", "workers"},
    "workers.child": {*LEDGER, *ENGINE, *WORK, "features", "formats", "workers", "workers.ask"},
    "workers.supervise": {*LEDGER, "upkeep", "workers", "workers.ask", "workers.child"},
    "serving": {*LEDGER, *ENGINE},
    "app": {*LEDGER, "formats", "methods", "models", "upkeep", "workers.ask"},
    "launch": {*LEDGER, "upkeep", "workers.supervise"},
    "roof": {*LEDGER, *ENGINE, *WORK, "features", "formats", "upkeep", "workers.ask", "launch"},
    "benchmarks": {*LEDGER, *ENGINE, *WORK, "features", "formats", "upkeep", "workers.ask", "app", "launch", "tests"},
}
"""Each room with the rooms it may import, beside its own. `workers/` is four: what asks for work, what runs in the
child, what supervises, and what all three share."""
LIGHT = ("app", "tracking", "upkeep", "launch", "roof", "speculoos", "methods")
HEAVY = {"torch", "transformers"}


def sources(room: str) -> list[Path]:
    folder = CLONE / ("speculoos" if room == "roof" else room.replace(".", "/"))
    return [path for path in sorted(folder.rglob("*.py")) if room_of(module_of(path)) == room]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(CLONE).with_suffix("").parts).removesuffix(".__init__")


def room_of(module: str) -> str:
    """The room a module of ours lives in, or "" for a library."""
    if module.startswith(ROOF):
        return "roof"
    parts = module.split(".")
    nested = ".".join(parts[:2])
    room = nested if nested in FLOORS else parts[0]
    return room if room in FLOORS or room == "tests" else ""


def imported(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it; `from a import b` counts as a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; rooms name each other in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", [*FLOORS])
def test_imports_run_downwards(room: str) -> None:
    files = sources(room)
    assert files, f"the room {room} is gone"
    permitted = {"", "speculoos", room, *FLOORS[room]}
    wrong = [
        f"{path.relative_to(CLONE)} imports {module}"
        for path in files
        for module in sorted(imported(path))
        if room_of(module) not in permitted
    ]
    assert not wrong, "\n".join(wrong)


def test_there_is_no_circle() -> None:
    order = [*TopologicalSorter(FLOORS).static_order()]
    assert order.index("speculoos") < order.index("roof")


def test_every_folder_with_code_is_a_known_room() -> None:
    folders = {p.parent.name for p in CLONE.glob("*/__init__.py")}
    assert folders <= {*FLOORS, "tests"}, folders - {*FLOORS}


def modules(*rooms: str) -> list[str]:
    found = []
    for room in rooms:
        for path in sources(room):
            parts = path.relative_to(CLONE).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [m for m in found if not m.endswith("__main__")]


@pytest.mark.parametrize(
    "names",
    [
        *map(modules, LIGHT),
        ["workers.ask.submit", "workers.ask.quickstart"],
    ],
    ids=[*LIGHT, "workers.ask.submit"],
)
def test_light_rooms_import_without_torch_and_transformers(names: list[str]) -> None:
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CLONE, timeout=120)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().splitlines()[-1] == "[]"
