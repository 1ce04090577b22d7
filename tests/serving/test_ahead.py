"""The first question does not wait for imports."""

import json
import subprocess
import sys
from pathlib import Path

LOAD = """
import json, sys
import serving.main
from serving.ahead import preload_modules
preload_modules()
before = {*sys.modules}
from models.base import load_base
load_base(sys.argv[1])
print(json.dumps(sorted({*sys.modules} - before)))
"""


def test_a_base_of_the_starters_family_brings_no_further_modules(tiny_base: Path) -> None:
    made = subprocess.run([sys.executable, "-c", LOAD, str(tiny_base)], capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    further = json.loads(made.stdout.splitlines()[-1])
    assert [name for name in further if name.startswith(("transformers", "torch", "models", "decoding"))] == []
