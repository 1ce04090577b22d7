"""Packages follow docs/architecture.md: imports run downwards without cycles; light packages do not import torch."""

import ast
import re
import subprocess
import sys
from collections import defaultdict
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

CLONE = Path(__file__).resolve().parent.parent
MAX_PACKAGES = 15
HEAVY = {"torch", "transformers"}


def table() -> dict[str, tuple[set[str], bool]]:
    """{package: (packages it may import besides itself and `speculoos`, whether it is light)}."""
    text = (CLONE / "docs" / "architecture.md").read_text()
    section = text.partition("## Packages")[2].partition("\n## ")[0]
    cells = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in section.splitlines() if line.startswith("| `")
    ]
    rows = {name.strip("`"): (allowed, light == "yes") for name, _, allowed, light in cells}
    all_packages = {*rows, "tests"}
    return {
        name: (all_packages if allowed.startswith("all of them") else set(re.findall(r"`([\w.]+)`", allowed)), light)
        for name, (allowed, light) in rows.items()
    }


PACKAGES = table()


def package_of(module: str) -> str:
    """The innermost package of the table that contains a module, "tests", or "" for a library."""
    parts = module.split(".")
    for size in (2, 1):
        if (name := ".".join(parts[:size])) in PACKAGES:
            return name
    return "tests" if parts[0] == "tests" else ""


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(CLONE).with_suffix("").parts).removesuffix(".__init__")


def sources(package: str) -> list[Path]:
    """The package's Python files, without those of its subpackages."""
    files = sorted((CLONE / package.replace(".", "/")).rglob("*.py"))
    return [path for path in files if package_of(module_of(path)) == package]


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Every import and class of a file, anywhere in it."""
    kinds = (ast.Import, ast.ImportFrom, ast.ClassDef)
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]


def imported(path: Path) -> set[str]:
    """Every module a file imports, anywhere in it; `from a import b` counts as a.b."""
    modules: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            modules |= {f"{node.module}.{alias.name}" for alias in node.names}
    return modules


@pytest.mark.parametrize("package", [*PACKAGES])
def test_imports_run_downwards(package: str) -> None:
    files = sources(package)
    assert files, f"{package} has no file"
    allowed = {"", "speculoos", package, *PACKAGES[package][0]}
    forbidden = [
        f"{path.relative_to(CLONE)} imports {module}"
        for path in files
        for module in sorted(imported(path))
        if package_of(module) not in allowed
    ]
    assert not forbidden, "\n".join(forbidden)


def test_imports_have_no_cycle() -> None:
    imports = {name: allowed - {name, "tests"} for name, (allowed, _) in PACKAGES.items()}
    assert [*TopologicalSorter(imports).static_order()][-1] == "benchmarks"


def test_the_table_names_every_package_and_they_are_few() -> None:
    folders = {path.parent.name for path in CLONE.glob("*/__init__.py")} - {"tests"}
    assert folders == {name.partition(".")[0] for name in PACKAGES}
    assert len(folders) <= MAX_PACKAGES


def test_class_names_are_unique() -> None:
    definitions = defaultdict(list)
    for path in (path for package in PACKAGES for path in sources(package)):
        for node in nodes(path):
            if isinstance(node, ast.ClassDef):
                definitions[node.name].append(str(path.relative_to(CLONE)))
    assert {name: files for name, files in definitions.items() if len(files) > 1} == {}


@pytest.mark.integration
def test_submitting_a_job_and_light_packages_import_no_torch() -> None:
    """All are imported in one process, in order; after the first that imports torch, all later ones fail too."""
    light = [name for name, (_, light) in PACKAGES.items() if light]
    groups = {"submitting a job": ["workers.jobs.submit", "workers.jobs.guided"]}
    groups |= {name: [m for path in sources(name) if not (m := module_of(path)).endswith("__main__")] for name in light}
    code = (
        f"import gc, importlib, sys\ngc.disable()\nfor group, names in {groups!r}.items():\n"
        " for name in names: importlib.import_module(name)\n"
        f" print(group, sorted({HEAVY!r} & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=CLONE, timeout=120)
    assert result.returncode == 0, result.stderr
    assert [line for line in result.stdout.splitlines() if line.endswith("]")] == [f"{group} []" for group in groups]
