"""Training data of the starter head: prompts from a file, from templates and written by the base model, which answers
all of them.

`python -m benchmarks.starter_data --prompts FILE --out DIR` resumes an interrupted run. With `--part i/n` a process
answers every n-th prompt, so that n single-threaded processes use n cores.
"""

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import torch

from benchmarks.starter_prompts import varied_prompts
from corpus.batch import BatchAnswer, answer_all
from corpus.conversations import GenerateOptions, row_rng
from corpus.generate_local import generate_local, generation_dtype
from corpus.shards import ShardWriter
from models.base import LoadedBase, load_base
from models.chat import render
from models.starter import starter_path
from speculoos.reporting import ConsoleReporter

MARK = "\u2063user\u2063"
SHORTEST = 8  # minimum characters of a prompt
MAX_TOKENS, TEMPERATURE, TOP_P = 96, 1.0, 0.95
LONGEST = 900  # maximum characters of a prompt from the file


def main() -> None:
    args = _arguments()
    torch.set_num_threads(args.threads)
    number, parts = map(int, args.part.split("/"))
    base = load_base(starter_path(), dtype=generation_dtype())
    prompts = args.out / f"prompts-{number}"
    if not (prompts / "ready").exists():
        rows = _prompts(base, args, number, parts)
        _write(rows, prompts)
        (prompts / "ready").touch()
    for name, temperature, limit in (("greedy", 0.0, None), ("sampled", 0.7, args.sampled // parts)):
        options = GenerateOptions(
            max_tokens=args.max_tokens, temperature=temperature, batch_size=args.batch, limit=limit, seed=1
        )
        print(generate_local(base, prompts, args.out / f"{name}-{number}", options, ConsoleReporter()))


def _prompts(base: LoadedBase, args: argparse.Namespace, number: int, parts: int) -> list[dict]:
    """Rows of this part, shuffled, so that an interrupted run has some of each kind."""
    texts = _file_prompts(args.prompts, args.given)
    prompts = [("given", text) for text in texts] + varied_prompts()
    rows = [{"category": kind, "text": text} for kind, text in prompts][number::parts]
    count = args.self_written // parts
    rows += [
        {"category": "self-written", "text": text}
        for text in self_written_prompts(base, count, batch_size=args.batch, seed=100 + number)
    ]
    random.Random(number).shuffle(rows)
    return rows


def _file_prompts(path: Path, count: int) -> list[str]:
    """A seeded sample of the file's first user turns of at most LONGEST characters."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    texts = [row["conversations"][0]["value"] for row in rows]
    texts = [text for text in dict.fromkeys(texts) if len(text) <= LONGEST]
    return random.Random(0).sample(texts, min(count, len(texts)))


def _write(rows: list[dict], folder: Path) -> None:
    with ShardWriter(folder) as shards:
        for n, row in enumerate(rows):
            message = {"role": "user", "content": row["text"]}
            shards.add({"id": f"{folder.name}-{n}", "messages": [message], "category": row["category"]})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with conversations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--given", type=int, default=2400, help="how many of the given prompts")
    parser.add_argument("--self-written", type=int, default=3000)
    parser.add_argument("--sampled", type=int, default=1500, help="prompts answered a second time, at temperature 0.7")
    parser.add_argument("--max-tokens", type=int, default=160)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    return parser.parse_args()


def self_written_prompts(base: LoadedBase, count: int, batch_size: int, seed: int) -> Iterator[str]:
    """Up to `count` distinct user turns sampled from `base`, which continues the chat template after the user tag up to
    the end of turn. Source: Xu et al. 2024 (Magpie, arXiv 2406.08464), section 2.1."""
    opening = _before_user(base)
    numbers = iter(range(2 * count))

    def source(limit: int) -> list[BatchAnswer]:
        samples = [(f"self-{n}", row_rng(seed, f"self-{n}", 0)) for n in islice(numbers, limit)]
        return [BatchAnswer(list(opening), MAX_TOKENS, rng, tag, TEMPERATURE) for tag, rng in samples]

    seen: set[str] = set()
    for ended, _running in answer_all(base, source, batch_size, TOP_P):
        for answer in ended:
            text = base.tokenizer.decode(answer.tokens, skip_special_tokens=True).strip()
            if answer.finish == "stop" and len(text) >= SHORTEST and text not in seen:
                seen.add(text)
                yield text
                if len(seen) >= count:
                    return


def _before_user(base: LoadedBase) -> list[int]:
    """Ids of the template's text before the user's text."""
    rendered = base.tokenizer.decode(render(base.tokenizer, [{"role": "user", "content": MARK}]))
    before, mark, _after = rendered.partition(MARK)
    assert mark and before.strip(), "the chat template writes nothing before the user's text"
    return base.tokenizer(before, add_special_tokens=False)["input_ids"]


if __name__ == "__main__":
    main()
