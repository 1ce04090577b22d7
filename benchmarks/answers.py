"""Creates a data set of the base model's greedy responses, for training benchmarks.

    python -m benchmarks.answers --prompts FILE --out FOLDER --count 64 --max-tokens 192

Samples `count` prompts from FILE with the seed and writes the responses to FOLDER, as `speculoos generate` does.
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
from speculoos.reporting import ConsoleReporter, Reporter, SilentReporter


@dataclass(frozen=True)
class AnswerRequest:
    """Number of prompts, maximum tokens, seed, batch size and device."""

    count: int = 64
    max_tokens: int = 192
    seed: int = 0
    batch_size: int = 16
    device: str = "cpu"


def make_answers(
    base: Path, prompts: Path, out: Path, request: AnswerRequest, reporter: Reporter | None = None
) -> dict[str, Any]:
    """Answer `request.count` prompts greedily with `base` into the data set folder `out`; returns the report.

    Raises BadInput if the file has fewer prompts.
    """
    lines = prompts.read_text(encoding="utf-8").splitlines()
    if len(lines) < request.count:
        raise BadInput(
            f"{prompts} has {len(lines)} prompts, {request.count} are needed; use a longer file or a smaller --count."
        )
    sample = random.Random(request.seed).sample(lines, request.count)
    with tempfile.TemporaryDirectory() as scratch:
        file, prompt_set = Path(scratch) / "prompts.jsonl", Path(scratch) / "prompts"
        file.write_text("\n".join(sample) + "\n", encoding="utf-8")
        import_prompts(file, prompt_set, SilentReporter(), original_name=prompts.name)
        options = GenerateOptions(max_tokens=request.max_tokens, batch_size=request.batch_size)
        loaded = load_base(base, dtype=generation_dtype(request.device), device=request.device)
        return generate_local(loaded, prompt_set, out, options, reporter or SilentReporter())


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
