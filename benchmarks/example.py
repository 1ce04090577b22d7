"""Regenerates app/example.json, the example on the page Words: an answer of the starter with its head.

python -m benchmarks.example
"""

import sys
from dataclasses import replace
from typing import Any

from app.views.words_view import EXAMPLE
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.step import Step
from decoding.target import Target
from decoding.text import TextStream
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft
from models.starter import HEAD, starter_path
from speculoos.files import write_json

PROMPT = "What are the months of the year?"
MODEL = "starter@starter"
MOST_TOKENS = 72


def answer(prompt: str) -> dict[str, Any]:
    """Prompt, model, records and figures. Times are omitted, as they depend on the machine."""
    base = load_base(str(starter_path()))
    target = Target(base, max_length=512)
    drafter = make_drafter(target, load_draft(HEAD, base), {})
    ids = render(base.tokenizer, [{"role": "user", "content": prompt}])
    steps = list(generate(target, drafter, ids, GenerateConfig(max_tokens=MOST_TOKENS)))
    text = TextStream(base.tokenizer)
    records = [text.record(replace(step, ms_draft=0.0, ms_verify=0.0, ms_other=0.0)) for step in steps]
    return {"prompt": prompt, "model": MODEL, "records": records, "figures": figures(steps)}


def figures(steps: list[Step]) -> dict[str, Any]:
    summary = summarize(steps).to_json()
    return {k: summary[k] for k in ("tokens", "verifications", "mean_accepted_length", "acceptance_by_depth")}


def main() -> int:
    write_json(EXAMPLE, answer(" ".join(sys.argv[1:]) or PROMPT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
