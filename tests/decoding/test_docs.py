"""The code of docs/decoding.md and docs/library.md runs and gives the numbers they print."""

import doctest
import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def blocks(name: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_tree_step_worked_by_hand_comes_out_as_written():
    test = doctest.DocTestParser().get_doctest("\n".join(blocks("decoding.md")), {}, "decoding.md", None, 0)
    assert len(test.examples) > 15
    assert doctest.DocTestRunner(verbose=False).run(test).failed == 0


def test_the_library_examples_run(base, capsys):
    code, names = blocks("library.md"), {"BASE": base.path}
    assert len([line for line in code[0].splitlines() if line and not line.startswith("from")]) <= 10
    for block in code[:2]:
        exec(compile(block, "library.md", "exec"), names)
    output = capsys.readouterr().out
    assert "0 [('target'" in output and names["summary"].tokens == sum(len(step.tokens) for step in names["steps"]) > 0
