"""Compares our draft networks and their losses with those of speculators, and DFlash with z-lab's own code.

    python -m benchmarks.foreign_networks [--methods eagle3 peagle dflash] [--zlab dflash/model.py] [--json OUT]

Needs speculators 0.9 beside this project. Drafts of a tiny random base model have random weights in fp32: ours are
exported and loaded by speculators, and those that speculators makes and saves are imported here. Prints the largest
differences of logits, losses and gradients, relative to the largest value of theirs. Fails if one is beyond its bound.
"""

import sys
import tempfile
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

from benchmarks.foreign import dflash, eagle3, peagle
from benchmarks.foreign.common import BOUNDS
from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from models.base import load_base
from tests.tiny import make_tiny_base

METHODS = {"eagle3": eagle3, "peagle": peagle, "dflash": dflash}


def main(argv: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=[*METHODS])
    parser.add_argument("--zlab", type=Path, help="dflash/model.py of z-lab/dflash")
    args, before = parser.parse_args(argv), load_average()
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        base = load_base(make_tiny_base(scratch / "base", num_hidden_layers=8))
        found = [one for method in args.methods for one in METHODS[method].comparisons(base, scratch / method)]
        if args.zlab:
            found.append(dflash.zlab_comparison(args.zlab, base, scratch / "zlab"))
    rows = [
        [one.method, one.case, *(f"{one.differences[key]:.1e}" if key in one.differences else "" for key in BOUNDS)]
        for one in found
    ]
    lines = table_lines(f"| method | case | {' | '.join(BOUNDS)} |", rows)
    failed = [f"{one.method}, {one.case}" for one in found if not one.passed]
    bounds = ", ".join(f"{name} {bound:g}" for name, bound in BOUNDS.items())
    lines += [
        "",
        f"Beyond the bounds ({bounds}): {'; '.join(failed)}." if failed else f"All within the bounds: {bounds}.",
    ]
    result = {"speculators": version("speculators"), **conditions(before), "bounds": BOUNDS}
    finish({**result, "comparisons": [asdict(one) for one in found]}, "\n".join(lines), args.json)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
