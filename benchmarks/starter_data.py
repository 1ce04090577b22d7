"""Training data of the starter head: prompts from a file, from templates and written by the base model, which answers
all of them.

`python -m benchmarks.starter_data --prompts FILE --out DIR` resumes an interrupted run. With `--part i/n` a process
answers every n-th prompt, so that n single-threaded processes use n cores.
"""

import argparse
import json
import random
from pathlib import Path

import torch

from benchmarks.starter_prompts import varied_prompts
from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local, generation_dtype
from corpus.self_written import self_written_prompts
from corpus.shards import ShardWriter
from models.base import LoadedBase, load_base
from models.starter import starter_path
from speculoos.reporting import ConsoleReporter

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


if __name__ == "__main__":
    main()
