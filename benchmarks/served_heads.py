"""Compares drafts here and in servers: acceptance by position, τ, and texts with and without the draft.

    python -m benchmarks.served_heads --llamacpp PYTHON --vllm PYTHON --questions FILE --json FILE

Every method and format that vLLM 0.32 and llama.cpp load, with the base model in fp32, and in llama.cpp also in F16;
greedy, chains of three draft tokens. EAGLE-3 is the starter's head, the other drafts are trained for
--minutes each on the starter's answers to the built-in prompts. Wanted: acceptance at every position within 0.02 of
ours, and texts equal to those of the same server without the draft. A draft that fails is reported, and the others go
on. --folder keeps drafts, exports and the servers' log; drafts that are already there are used again.
"""

import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.datagen import BUILT_IN as PROMPTS
from benchmarks.report import add_questions, conditions, finish, goal_lines, load_average, make_parser, table_lines
from benchmarks.servers import add_engines, engines, export, first_questions, server, versions
from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local, generation_dtype
from corpus.shards import ShardWriter
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.target import fast_target
from evaluation.agreement import agreement, chain
from evaluation.questions import read_questions
from evaluation.served import ServedRequest, evaluate_served
from formats.engines import ENGINES
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft
from models.methods.recipes import read_recipe
from models.starter import STARTER_HEAD, starter_path
from speculoos.errors import SpeculoosError
from speculoos.reporting import SilentReporter
from training.loop import train

TOKENS = 3
ALLOWED = 0.02
"""Allowed difference of an acceptance rate."""
VLLM = ("eagle", "eagle3", "peagle", "medusa", "dflash")
GGUF = tuple((method, form) for method in ("eagle3", "dflash", "draft") for form in ("gguf", "gguf-f16", "gguf-q8_0"))
SERVED = (
    ("vllm", "float32", (*((method, "vllm") for method in VLLM), ("draft", "huggingface"))),
    ("llamacpp", "float32", GGUF),
    ("llamacpp", "auto", tuple((method, form) for method, form in GGUF if form != "gguf")),
)
"""(engine, precision of the base model, ((method, format of the draft), …))"""
RECIPES = {
    "eagle": ("eagle-standard", {"lr": 0.001}),
    "peagle": ("peagle-standard", {"lr": 0.001}),
    "medusa": ("quickstart", {"medusa_num_heads": TOKENS, "draft_vocab_size": 0}),
    "dflash": ("dflash-standard", {}),
    "draft": ("draft-standard", {}),
}
"""{method: (recipe, changes)}"""
METHODS = ("eagle3", *RECIPES)
EPOCHS = 3
ANSWERS = GenerateOptions(max_tokens=96, batch_size=48, limit=288)


def drafts(folder: Path, minutes: float, methods: Sequence[str]) -> dict[str, Path]:
    """{method: folder of its draft}; those missing in `folder` are trained."""
    found = {"eagle3": STARTER_HEAD}
    for method, (recipe, changes) in RECIPES.items():
        if method not in methods:
            continue
        found[method] = folder / method / "final"
        if not found[method].exists():
            print(f"trains {method} for {minutes} minutes", file=sys.stderr)
            if not (folder / "answers" / "dataset.json").exists():
                with ShardWriter(folder / "prompts") as shards:
                    for number, row in enumerate(read_questions(PROMPTS)):
                        shards.add({"id": str(number), **row})
                base = load_base(starter_path(), generation_dtype())
                generate_local(base, folder / "prompts", folder / "answers", ANSWERS, SilentReporter())
            config = read_recipe(recipe).config({**changes, "epochs": EPOCHS, "max_minutes": minutes})
            train(config, starter_path(), folder / "answers", folder / method)
    return found


def measured_here(head: Path, questions: Sequence[dict[str, Any]], max_tokens: int) -> dict[str, Any]:
    """Acceptance of a chain in our engine in fp32, with the keys that `agreement` reads."""
    base = load_base(starter_path())
    draft, steps = load_draft(head, base), []
    target = fast_target(base, 4096)
    drafter = make_drafter(target, draft, {"tree": chain(TOKENS)})
    for row in questions:
        target.rewind(0)
        steps += generate(target, drafter, render(base.tokenizer, row["messages"]), GenerateConfig(max_tokens))
    summary, lengths = summarize(steps), Counter(len(step.tokens) for step in steps if step.counted)
    return {
        "mean_accepted_length": summary.mean_accepted_length,
        "acceptance_by_depth": summary.acceptance_by_depth,
        "lengths": [lengths[length] for length in range(1, TOKENS + 2)],
    }


def compare(args: Any, folder: Path, pythons: dict[str, str]) -> list[dict[str, Any]]:
    """The result of each draft in each server: that of `agreement`, or `error`."""
    questions, found = first_questions(args.questions, args.limit), drafts(folder, args.minutes, args.methods)
    base = load_base(starter_path())
    here: dict[str, Any] = {}
    results = []
    for engine, precision, served in SERVED:
        if engine not in pythons:
            continue
        start = {"name": engine, "python": pythons[engine], "folder": folder, "precision": precision}
        with server(**start) as plain:
            for method, form in (each for each in served if each[0] in args.methods):
                result = {"method": method, "format": form, "engine": engine, "precision": precision}
                try:
                    draft = export(found[method], base, form, folder / f"{method}-{form}")
                    if method not in here:
                        here[method] = measured_here(found[method], questions, args.max_tokens)
                    with server(**start, draft=draft, method=method, tokens=TOKENS) as drafted:
                        options = ServedRequest(args.max_tokens)
                        there = evaluate_served(drafted, questions, SilentReporter(), options, plain_endpoint=plain)
                    proof = agreement(here[method], there, ENGINES[engine].title)
                    result |= {**proof, "identical": there["identical_prompts"], "failed": there["failed"]}
                except SpeculoosError as error:
                    result["error"] = str(error)
                results.append(result)
                spoken = result.get("error") or result["verdict"]
                print(f"{method}, {form}, {precision}: {spoken}", file=sys.stderr)
    return results


def table(result: dict[str, Any]) -> str:
    """The result as Markdown, with the goals."""
    rows, notes, wanted = [], [], {}
    for one in result["drafts"]:
        name = (f"{ENGINES[one['engine']].title}, {one['precision']}", one["method"], one["format"])
        if "error" in one:
            rows.append((*name, "failed", "", "", ""))
            notes.append(f"\n{', '.join(name)}: {one['error']}")
            continue
        here, there = ([f"{each[side]:.3f}" for each in one["positions"]] for side in ("here", "there"))
        apart = [each["there"] - each["here"] for each in one["positions"]]
        taus = f"{one['tau']['here']:.3f}, {one['tau']['there'] or 0:.3f}"
        cells = (", ".join(here), ", ".join(there), ", ".join(f"{x:+.3f}" for x in apart), taus)
        rows.append((*name, *cells, f"{one['identical']} of {one['prompts']}"))
        notes.append(f"\n{', '.join(name)}: {one['verdict']}")
        wanted[f"{', '.join(name)}: within {ALLOWED}"] = bool(apart) and max(map(abs, apart)) <= ALLOWED
        wanted[f"{', '.join(name)}: same texts"] = one["identical"] == one["prompts"]
    head = (
        "| server, base model | method | format | accepted by position here | there | difference | τ | texts as plain |"
    )
    return "\n".join([*table_lines(head, rows), *notes, "", *goal_lines(wanted)])


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_questions(parser, limit=20, tokens=96)
    add_engines(parser)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--minutes", type=float, default=2.0, help="training time of each draft")
    parser.add_argument("--folder", type=Path, help="folder for drafts, exports and the servers' log")
    args, load = parser.parse_args(arguments), load_average()
    pythons = engines(args)
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        found = versions(pythons)
        with (folder / "servers.log").open("w") as log, redirect_stdout(log):
            results = compare(args, folder, pythons)
    finish(result := conditions(load) | {"versions": found, "drafts": results}, table(result), args.json)


if __name__ == "__main__":
    main()
