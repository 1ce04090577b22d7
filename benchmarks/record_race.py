"""Records the race that Home replays: the starter with and without its draft, on the same prompt.

    python -m benchmarks.record_race      writes app/static/race.json

Greedy, so both generate the same tokens. Both run in turn, and the run with the median time is kept. The times are
those of this machine, which should be idle.
"""

import json
from typing import Any

from app.theme import STATIC
from benchmarks.report import conditions, load_average
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from decoding.text import TextStream
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft
from models.starter import STARTER_HEAD, starter_path

PROMPT = "Why is the sky blue?"
TOKENS, RUNS = 110, 5


def record(target: Target, draft: Any) -> list[list[Any]]:
    """Steps as [milliseconds since the start, [text, depth], …]; a depth of 0 is a token of the base model."""
    stream, steps, now = TextStream(target.base.tokenizer), [], 0.0
    prompt = render(target.base.tokenizer, [{"role": "user", "content": PROMPT}])
    for step in generate(target, make_drafter(target, draft, {}), prompt, GenerateConfig(TOKENS)):
        made = stream.record(step)
        now += sum(made["ms"].values())
        tokens = [[token["text"], token["depth"] if token["origin"] == "draft" else 0] for token in made["tokens"]]
        steps.append([round(now), *tokens])
    return steps


def main() -> None:
    before = load_average()
    base = load_base(starter_path())
    drafts = {"plain": None, "draft": load_draft(STARTER_HEAD, base)}
    target, runs = fast_target(base), {name: [] for name in drafts}
    for _ in range(RUNS):
        for name, draft in drafts.items():
            runs[name].append(record(target, draft))
    median = {name: sorted(made, key=lambda steps: steps[-1][0])[RUNS // 2] for name, made in runs.items()}
    texts = {"".join(token[0] for step in steps for token in step[1:]) for steps in median.values()}
    assert len(texts) == 1, "the draft changed the text"
    known = conditions(before)
    race = {"prompt": PROMPT, "date": known["date"], "machine": known["machine"]["processor"], **median}
    (STATIC / "race.json").write_text(json.dumps(race, ensure_ascii=False, separators=(",", ":")), encoding="utf-8")
    print(", ".join(f"{name}: {steps[-1][0]} ms" for name, steps in median.items()))


if __name__ == "__main__":
    main()
