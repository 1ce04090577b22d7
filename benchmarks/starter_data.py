"""Training data of the starter head: prompts from a file, from templates and written by the base model, which answers
all of them.

`python -m benchmarks.starter_data --prompts FILE --out DIR` resumes an interrupted run. With `--part i/n` a process
answers every n-th prompt, so that n single-threaded processes use n cores, or one GPU together.
"""

import argparse
import json
import random
from collections.abc import Iterator
from itertools import islice, product
from pathlib import Path

import torch
import yaml

from corpus.batch import BatchAnswer, answer_all
from corpus.conversations import GenerateOptions, row_rng
from corpus.generate_local import generate_local, generation_dtype
from corpus.shards import ShardWriter
from models.base import LoadedBase, load_base, pick_device
from models.chat import render
from models.starter import starter_path
from speculoos.reporting import ConsoleReporter

MARK = "\u2063user\u2063"
SHORTEST = 8  # minimum characters of a prompt
MAX_TOKENS, TEMPERATURE, TOP_P = 96, 1.0, 0.95
LONGEST = 900  # maximum characters of a prompt from the file
FROM_FILE, SELF_WRITTEN, SAMPLED = 6000, 4000, 9500  # prompts; SAMPLED are answered a second time, at temperature 0.7
ANSWER_TOKENS, BATCH = 160, 192
Slots = dict[str, list[str]]
MONTHS = ("March", "June", "October")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prompts", type=Path, required=True, help="JSON lines with conversations")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="auto")
    parser.add_argument("--self-written", type=int, default=SELF_WRITTEN, help="prompts that the base writes")
    parser.add_argument("--sampled", type=int, default=SAMPLED, help="prompts that are answered twice")
    parser.add_argument("--batch", type=int, default=BATCH, help="answers generated together")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    number, parts = map(int, args.part.split("/"))
    device = str(pick_device(args.device))
    base = load_base(starter_path(), generation_dtype(device), device)
    prompts = args.out / f"prompts-{number}"
    if not (prompts / "ready").exists():
        with ShardWriter(prompts) as shards:
            written = self_written_prompts(base, args.self_written // parts, args.batch, seed=100 + number)
            for n, (kind, text) in enumerate(_prompts(args.prompts, written, number, parts)):
                message = {"role": "user", "content": text}
                shards.add({"id": f"{prompts.name}-{n}", "messages": [message], "category": kind})
        (prompts / "ready").touch()
    for name, temperature, limit in (("greedy", 0.0, None), ("sampled", 0.7, args.sampled // parts)):
        options = GenerateOptions(
            max_tokens=ANSWER_TOKENS, temperature=temperature, batch_size=args.batch, limit=limit, seed=1
        )
        print(generate_local(base, prompts, args.out / f"{name}-{number}", options, ConsoleReporter()))


def _prompts(file: Path, written: Iterator[str], number: int, parts: int) -> list[tuple[str, str]]:
    """(category, prompt) of this part and `written`, shuffled, so that an interrupted run has some of each kind; from
    the file a seeded sample of first user turns of at most LONGEST characters."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    texts = [row["conversations"][0]["value"] for row in rows]
    texts = [text for text in dict.fromkeys(texts) if len(text) <= LONGEST]
    from_file = [("file", text) for text in random.Random(0).sample(texts, min(FROM_FILE, len(texts)))]
    prompts = [*from_file, *varied_prompts()][number::parts]
    prompts += [("self-written", text) for text in written]
    random.Random(number).shuffle(prompts)
    return prompts


def self_written_prompts(base: LoadedBase, count: int, batch: int, seed: int) -> Iterator[str]:
    """Up to `count` distinct user turns sampled from `base`, which continues the chat template after the user tag up to
    the end of turn. Source: Xu et al. 2024 (Magpie, arXiv 2406.08464), section 2.1."""
    opening = _before_user(base)
    numbers = iter(range(2 * count))

    def source(limit: int) -> list[BatchAnswer]:
        samples = [(f"self-{n}", row_rng(seed, f"self-{n}", 0)) for n in islice(numbers, limit)]
        return [BatchAnswer(list(opening), MAX_TOKENS, rng, tag, TEMPERATURE) for tag, rng in samples]

    seen: set[str] = set()
    for ended, _running in answer_all(base, source, batch, TOP_P):
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


def varied_prompts() -> list[tuple[str, str]]:
    """(category, prompt) pairs, shuffled: about 1,600 different ones, from templates with slots (starter_prompts.yaml),
    filled with a seeded random generator, so the list is reproducible."""
    slots: Slots = yaml.safe_load(Path(__file__).with_name("starter_prompts.yaml").read_text(encoding="utf-8"))
    draw = random.Random(0)
    prompts = [
        ("code", form.format(language=draw.choice(slots["languages"]), task=task))
        for form, task in product(slots["code"], slots["tasks"])
    ]
    prompts += [("writing", _letter(slots, draw)) for _ in range(400)]
    prompts += [("explain", form.format(topic=topic)) for form, topic in product(slots["explain"], slots["topics"])]
    prompts += [
        ("roleplay", f"Pretend to be {role} and {ask}.") for role, ask in product(slots["roles"], slots["asks"])
    ]
    prompts += [("extraction", _extraction(slots, draw)) for _ in range(350)]
    prompts += [("reasoning", _reasoning(slots, draw)) for _ in range(350)]
    prompts = list(dict.fromkeys(prompts))
    draw.shuffle(prompts)
    return prompts


def _letter(slots: Slots, draw: random.Random) -> str:
    kind, audience, subject, ending = (
        draw.choice(slots[name]) for name in ("letters", "audiences", "subjects", "endings")
    )
    return f"Write a {kind} for {audience} about {subject}.{ending}"


def _extraction(slots: Slots, draw: random.Random) -> str:
    def order() -> str:
        name, city, goods = (draw.choice(slots[kind]) for kind in ("names", "cities", "goods"))
        price, day, month, year = (
            draw.randint(5, 900),
            draw.randint(1, 28),
            draw.choice(MONTHS),
            draw.randint(2001, 2024),
        )
        return f"{name} from {city} bought {goods} for {price} dollars on {day} {month} {year}."

    orders = " ".join(order() for _ in range(draw.randint(2, 4)))
    fields, shape = draw.choice(slots["wanted"]), draw.choice(slots["formats"])
    return f"Extract {fields} from the following text. {shape}\n\n{orders}"


def _reasoning(slots: Slots, draw: random.Random) -> str:
    a, b, c = (name.split()[0] for name in draw.sample(slots["names"], 3))
    x, y, z = draw.sample(slots["things"], 3)
    n, m, k = (draw.randint(2, 40) for _ in range(3))
    return draw.choice(slots["reason"]).format(a=a, b=b, c=c, x=x, y=y, z=z, n=n, m=m, k=k)


if __name__ == "__main__":
    main()
