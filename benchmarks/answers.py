"""A data set of the base's own greedy answers, for benchmarks that train.

    python -m benchmarks.answers --prompts FILE --out FOLDER --count 64 --max-tokens 192

`count` prompts are drawn from FILE by the seed; answers go to FOLDER, as `speculoos generate` would make them.
"""

import argparse
import json
import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local, generation_dtype
from corpus.importing import import_prompts
from models.base import load_base
from models.starter import starter_path
from speculoos.errors import BadInput
from speculoos.reporting import ConsoleReporter, Reporter, Silent


@dataclass(frozen=True)
class AnswerRequest:
    """Which answers: how many prompts, how long, drawn by which seed; how many at once, and where."""

    count: int = 64
    max_tokens: int = 192
    seed: int = 0
    batch_size: int = 16
    device: str = "cpu"


def make_answers(
    base: Path, prompts: Path, out: Path, request: AnswerRequest, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Answer `request.count` prompts of `prompts` greedily with `base` into the data set folder `out`; the report.

    Raises BadInput when the file holds fewer prompts.
    """
    lines = prompts.read_text(encoding="utf-8").splitlines()
    if len(lines) < request.count:
        raise BadInput(
            f"{prompts} has {len(lines)} prompts, {request.count} are wanted; give a longer file or --count."
        )
    chosen = random.Random(request.seed).sample(lines, request.count)
    with tempfile.TemporaryDirectory() as scratch:
        file, prompt_set = Path(scratch) / "prompts.jsonl", Path(scratch) / "prompts"
        file.write_text("\n".join(chosen) + "\n", encoding="utf-8")
        import_prompts(file, prompt_set, Silent(), original_name=prompts.name)
        options = GenerateOptions(max_tokens=request.max_tokens, batch_size=request.batch_size)
        loaded = load_base(base, dtype=generation_dtype(request.device), device=request.device)
        return generate_local(loaded, prompt_set, out, options, reporter or Silent())


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", type=Path, default=starter_path())
    parser.add_argument("--prompts", type=Path, required=True, help="JSONL in any shape `speculoos import` takes")
    parser.add_argument("--out", type=Path, required=True, help="data set folder to make")
    parser.add_argument("--count", type=int, default=AnswerRequest.count)
    parser.add_argument("--max-tokens", type=int, default=AnswerRequest.max_tokens)
    parser.add_argument("--seed", type=int, default=AnswerRequest.seed)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    request = AnswerRequest(args.count, args.max_tokens, args.seed)
    print(json.dumps(make_answers(args.base, args.prompts, args.out, request, ConsoleReporter()), indent=2))


if __name__ == "__main__":
    main()
