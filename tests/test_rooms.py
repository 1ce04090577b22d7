"""The import direction of docs/architecture.md, read from the source, and that the light rooms stay without torch."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parent.parent
LEAVES = {
    *("speculoos.settings", "speculoos.errors", "speculoos.reporting", "speculoos.guard", "speculoos.faults"),
    *("speculoos.private", "speculoos.limited", "speculoos.sums", "speculoos.redaction", "speculoos.logs"),
    "speculoos.room",
}
EVERYONE = {*LEAVES, "methods"}
"""What any room may import."""
MAY_IMPORT = {
    "methods": set(),
    "models": set(),
    "runtime": {"models"},
    "decoding": {"runtime", "models"},
    "training": {"decoding", "runtime", "models"},
    "corpus": {"runtime", "models"},
    "evaluation": {"decoding", "runtime", "models", "corpus"},
    "tracking": {"migrations"},
    "upkeep": {"tracking"},
    "migrations": {"tracking"},
    "workers": {"training", "corpus", "evaluation", "models", "tracking", "decoding", "runtime", "upkeep.retention"},
    "serving": {"decoding", "runtime", "models", "tracking"},
    "app": {
        *("workers.submit", "workers.requests", "workers.quickstart", "workers.catalog", "workers.estimates"),
        *("tracking", "upkeep", "speculoos.command_line", "speculoos.health", "speculoos.login_links"),
        "speculoos.people",
    },
}
ROOMS = {*MAY_IMPORT, "speculoos", "benchmarks"}
HEAVY = {"torch", "transformers"}


def sources(room: str) -> list[Path]:
    return sorted((CLONE / room).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it; `from a import b` counts as a and a.b."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import; rooms name each other in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def allowed(module: str, permitted: set[str]) -> bool:
    return any(module == name or module.startswith(name + ".") for name in permitted)


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_import_only_downwards(room: str) -> None:
    permitted = {room, *MAY_IMPORT[room], *EVERYONE, "speculoos.__version__"}
    wrong = [
        f"{path.relative_to(CLONE)} imports {module}"
        for path in sources(room)
        for module in sorted(imported(path))
        if module.split(".")[0] in ROOMS and not allowed(module, permitted)
    ]
    assert sources(room), f"the room {room} is gone"
    assert not wrong, "\n".join(wrong)


def test_leaves_import_no_room() -> None:
    for leaf in sorted(LEAVES):
        path = CLONE / (leaf.replace(".", "/") + ".py")
        wrong = {m for m in imported(path) if m.split(".")[0] in ROOMS and not allowed(m, LEAVES)}
        assert not wrong, f"{path}: {wrong}"


def test_every_folder_with_code_is_a_known_room() -> None:
    folders = {p.parent.name for p in CLONE.glob("*/__init__.py")}
    assert folders <= ROOMS | {"tests"}, folders - ROOMS


def modules(*rooms: str) -> list[str]:
    found = []
    for room in rooms:
        for path in sources(room):
            parts = path.relative_to(CLONE).with_suffix("").parts
            found.append(".".join(parts[:-1] if parts[-1] == "__init__" else parts))
    return [m for m in found if not m.endswith("__main__")]


@pytest.mark.parametrize(
    "names",
    [*map(modules, ("app", "tracking", "upkeep", "speculoos", "methods")), ["workers.submit", "workers.quickstart"]],
    ids=["app", "tracking", "upkeep", "speculoos", "methods", "workers.submit"],
)
def test_light_rooms_import_without_torch_and_transformers(names: list[str]) -> None:
    code = (
        f"import importlib, sys\nfor name in {names!r}: importlib.import_module(name)\n"
        f"print(sorted({HEAVY!r} & set(sys.modules)))"
    )
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CLONE, timeout=120)
    assert made.returncode == 0, made.stderr
    assert made.stdout.strip().splitlines()[-1] == "[]"
