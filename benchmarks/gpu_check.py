"""Checks this project's claims about NVIDIA GPUs in ten minutes: exactness, speed and memory.

    python -m benchmarks.gpu_check --json FILE

A part that fails is a failed claim, and the others continue. Writes the section "GPU" of docs/benchmarks.md. Exit
status: 0 all claims hold, 1 some do not, 2 no GPU. --dry-run runs the same parts on the CPU with tiny shapes: exactness
is judged, speed is not, and no page is written.
"""

import gc
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.profiler import profile
from torch.utils.benchmark import Timer
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from benchmarks import decode
from benchmarks.gpu_exactness import Bench, OutOfTime, agreement, drafter_of, exactness, graphs, tiny
from benchmarks.gpu_peers import NAMES, add_options, peers
from benchmarks.peers.common import peak_memory_mb
from benchmarks.peers.generation_side import ours
from benchmarks.report import conditions, finish, load_average, make_parser, replace_between, table_lines
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import fast_target
from evaluation.estimate import milliseconds
from evaluation.questions import BUILT_IN
from evaluation.ties import TIE, first_difference
from models.base import lease_name, pick_device, wrap_model
from models.methods import train_config
from models.runtime.precision import disable_tf32
from speculoos.reporting import SilentReporter
from speculoos.settings import PROJECT_ROOT
from tests.tiny import tiny_tokenizer
from tests.tools.homes import write_answers
from training.loop import train
from training.processes import train_in_processes

PAGE = PROJECT_ROOT / "docs" / "benchmarks.md"
BEGIN, END = "<!-- GPU figures: written by benchmarks/gpu_check.py -->", "<!-- end of GPU figures -->"
MINUTES = 10.0
NO_GPU = "No GPU that torch can use is here; --dry-run tries every part on the processor."
VERDICTS = {True: "yes", False: "**no**", None: "not judged"}
SPEED_GOAL, BANDWIDTH_GOAL = 4.0, 0.8
CONTEXT = 512  # tokens in the KV caches: the longest built-in question with its answer
SHAPE = {"num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 16384, "num_hidden_layers": 8}
LLAMA_8B = SHAPE | {"hidden_size": 4096, "intermediate_size": 14336, "vocab_size": 128256}
SMALL_SHAPE = SHAPE | {"hidden_size": 512, "intermediate_size": 128, "vocab_size": 320}
WARM_UP_STEPS = 4
CONTEXTS = (1024, 8192)
STEPS_BEFORE = 4
"""Steps, with the prefill, before one is counted: graphs are captured in the first."""
STEP_GOALS = {"launches": 40, "waits": 2}
CUDA_CALLS = {
    "launches": ("cudaLaunchKernel", "cudaLaunchKernelExC", "cuLaunchKernel", "cuLaunchKernelEx", "cudaGraphLaunch")
    + ("cudaMemcpyAsync", "cudaMemsetAsync"),
    "waits": ("cudaStreamSynchronize", "cudaEventSynchronize"),
}
"""The device synchronizations of the profiler itself are not counted."""
METHODS = {"eagle3": {"train_lm_head": False}, "medusa": {"medusa_num_heads": 2}}  # as in benchmarks.training


def race(bench: Bench, dtype: str) -> None:
    """Plain decoding, prompt lookup and the starter's head compared with transformers.generate, batch 1, greedy; and
    the cost of verifying 1 … 64 nodes relative to one."""
    words = ["--model", str(bench.starter), "--checkpoint", str(bench.head), "--questions", str(BUILT_IN)]
    words += ["--limit", str(bench.size(6, 1)), "--max-tokens", str(bench.size(128, 6))]
    words += ["--device", str(bench.device), "--context", str(CONTEXT)]
    results = decode.race(decode.parse(words), dtype, bench.size(5, 1))
    ratio = results["contenders"]["ours plain"]["times_transformers"][0]
    name = f"{dtype}, plain beside transformers.generate, starter, batch 1"
    bench.claim(name, f"≥ {SPEED_GOAL:g} ×", f"{ratio:.2f} ×", None if bench.dry else ratio >= SPEED_GOAL)
    for name, one in results["contenders"].items():
        bench.figures[f"{dtype}, {name}"] = ", ".join(
            f"{key} {decode.figure_text(value)}" for key, value in one.items()
        )
    bench.figures[f"{dtype}, ms by nodes"] = results["forward_ms"]


def large_shape(bench: Bench) -> None:
    """Plain decoding with random layers of Llama-3-8B: bytes of weights, keys and values read per second beside those
    of a copy, at 1k and 8k tokens of context."""
    moved = bandwidth(bench.device, bench.size(2048, 8))
    config = AutoConfig.for_model("llama", tie_word_embeddings=False, **(SMALL_SHAPE if bench.dry else LLAMA_8B))
    torch.manual_seed(0)
    with bench.device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    base = wrap_model(model.to(bench.device), tiny_tokenizer(), "random")
    embeddings = base.embed_tokens.weight  # one row of it is read for a token, all of the other weights
    weights = sum(weight.nbytes for weight in model.parameters()) - embeddings.nbytes
    bench.figures |= {"memory bandwidth, GB/s": round(moved / 1e9, 1), "GB of weights a token": round(weights / 1e9, 3)}
    for context in CONTEXTS[: bench.size(2, 1)]:
        prompt, tokens = list(range(3, 3 + bench.size(context, 32))), bench.size(64, 8) + WARM_UP_STEPS
        target = fast_target(base, len(prompt) + tokens + 1)
        generation = GenerateConfig(max_tokens=tokens, eos_ids=frozenset())
        steps = list(generate(target, make_drafter(target), prompt, generation))[1 + WARM_UP_STEPS :]
        seconds = statistics.median(map(milliseconds, steps)) / 1e3
        keys = target.cache.keys[..., : len(prompt), :]
        share = (weights + 2 * keys.numel() * keys.element_size()) / seconds / moved
        bench.figures[f"{context} tokens of context: ms a token"] = round(seconds * 1e3, 3)
        name = f"{base.num_layers} layers of Llama-3-8B, bf16, plain, {context} tokens of context: bytes read beside "
        goal, holds = f"≥ {BANDWIDTH_GOAL:.0%}", None if bench.dry else share >= BANDWIDTH_GOAL
        bench.claim(name + "memory bandwidth", goal, f"{share:.0%}", holds)


def launches(bench: Bench) -> None:
    """Launches and waits of a step of every drafter, greedy and sampled, counted by the profiler."""
    target, (expected, *_), choices = tiny(bench, "llama", "float32")
    most = Counter[str]()
    for name, choice in choices.items():
        for temperature in (0.0, 0.8)[: bench.size(2, 1)]:
            config = GenerateConfig(max_tokens=48, temperature=temperature, seed=1, eos_ids=frozenset())
            steps = generate(target, drafter_of(target, choice, expected), expected.prompt, config)
            list(islice(steps, STEPS_BEFORE))
            with profile() as profiler:
                next(steps)
            calls = {event.key: event.count for event in profiler.key_averages()}
            found = {what: sum(calls.get(call, 0) for call in names) for what, names in CUDA_CALLS.items()}
            most |= Counter(found)
            bench.figures[f"{name}, temperature {temperature:g}"] = ", ".join(
                f"{n} {what}" for what, n in found.items()
            )
            steps.close()
    holds = None if bench.dry else all(most[what] <= goal for what, goal in STEP_GOALS.items())
    goals, figure = (", ".join(f"{n} {what}" for what, n in part.items()) for part in (STEP_GOALS, most))
    bench.claim("a step of every drafter launches and waits", f"≤ {goals}", figure, holds)


def bandwidth(device: torch.device, mib: int) -> float:
    """Memory bandwidth in bytes per second (reads and writes) of copying `mib` MiB."""
    source = torch.zeros(mib * 2**20, dtype=torch.uint8, device=device)
    names = {"source": source, "copy": torch.empty_like(source)}
    return 2 * source.nbytes / Timer("copy.copy_(source)", globals=names).timeit(10).mean  # waits for the GPU


def training(bench: Bench) -> None:
    """Tokens per second of EAGLE-3 and Medusa training on the starter; the frozen base model runs in every step."""
    length, count = bench.size(384, 24), bench.size(24, 4)
    data = write_answers(bench.scratch / "rows", bench.size(64, 8), length)
    fixed = {"epochs": 0, "max_steps": count, "max_length": length, "batch_tokens": bench.size(8192, 64)}
    fixed |= {"held_out": 0, "cache_features_mb": 0, "eval_every": 0, "save_every": 0, "samples": 0}
    for method, settings in METHODS.items():
        bench.check_time()
        config = train_config(method, base_dtype="auto", device=str(bench.device), **fixed, **settings)
        reporter, steps = SilentReporter(), []
        reporter.metrics = lambda _step, values, steps=steps: steps.append(values)
        train(config, bench.starter, data, bench.scratch / f"trained-{method}", reporter=reporter)
        figure = f"{len(steps)}, loss {steps[-1]['train/loss']:.2f}"
        bench.claim(f"{method} trains on the starter", f"{count} steps", figure, len(steps) == count)
        speed = statistics.median(step["train/tokens_per_second"] for step in steps[2:])
        bench.figures[f"{method}, tokens/s"] = round(speed, 1)


def several_gpus(bench: Bench) -> None:
    """EAGLE-3 training on all GPUs, DDP and FSDP2: the first loss of one process, and tokens per second."""
    count, name = 0 if bench.dry else torch.cuda.device_count(), "the first loss of one process, DDP and FSDP2"
    if count < 2:
        bench.claim(name, "to 1e-3", "needs two GPUs", None)
        return
    data = write_answers(bench.scratch / "several", 64 * count, 384)
    fixed = {"epochs": 0, "max_steps": 12, "max_length": 384, "batch_tokens": 8192 * count, "held_out": 0}
    fixed |= {"cache_features_mb": 0, "eval_every": 0, "save_every": 0, "samples": 0, "train_lm_head": False}
    config, first = train_config("eagle3", **fixed), {}
    gpus = [lease_name(torch.device("cuda", index)) for index in range(count)]
    for processes, sharding in ((1, "none"), (count, "none"), (count, "fsdp")):
        bench.check_time()
        reporter, steps = SilentReporter(), []
        reporter.metrics = lambda _step, values, steps=steps: steps.append(values)
        words, out = f"{processes} processes, {sharding}", bench.scratch / f"several-{processes}-{sharding}"
        train_in_processes(processes, gpus[:processes], reporter, config, bench.starter, data, out, sharding=sharding)
        first[words] = steps[0]["train/loss"]
        speed = statistics.median(step["train/tokens_per_second"] for step in steps[2:])
        bench.figures[f"{words}, tokens/s"] = round(speed, 1)
    spread = max(first.values()) - min(first.values())
    bench.claim(name, "to 1e-3", f"{spread:.1g}", spread <= 1e-3)


def batches(bench: Bench) -> None:
    """fp32, tiny base: answers in batches, whose rows are freed and refilled, equal transformers up to a tie."""
    target, references, _ = tiny(bench, "llama", "float32")
    expected, wrong = references * 6, 0
    answers = ours(target.base, [one.prompt for one in expected], bench.size(48, 8), batch=4)
    for found, one in zip(answers, expected, strict=True):
        at = first_difference(found, one.tokens)
        wrong += at is not None and (at >= len(one.gaps) or one.gaps[at] > TIE)
    figure = f"{len(answers) - wrong} of {len(answers)} answers, 4 at once"
    bench.claim("fp32, batched: the tokens of transformers.generate", "all, ties aside", figure, not wrong)


def memory_mib(device: torch.device) -> int:
    """MiB in use after a collection of garbage: of a GPU what torch has allocated, else of this process."""
    gc.collect()
    if device.type != "cuda":
        return psutil.Process().memory_info().rss // 2**20
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated(device) // 2**20


Part = Callable[[Bench], None]
PARTS: dict[str, Part] = {
    "exactness": exactness,
    "CUDA graphs": graphs,
    "agreement": agreement,
    "launches": launches,
    "decoding in bf16": partial(race, dtype="bfloat16"),
    "large shape": large_shape,
    "decoding in fp32": partial(race, dtype="float32"),
    "training": training,
    "several GPUs": several_gpus,
    "batched generation": batches,
    "other libraries": peers,
}


def check(bench: Bench, parts: dict[str, Part] | None = None) -> list[dict[str, Any]]:
    """Run all parts, which add their claims to `bench`. `ran` in a report: not stopped or skipped at the deadline."""
    reports, cuda = [], bench.device.type == "cuda"
    for name, part in (parts or PARTS).items():
        began, ran, bench.figures, before = time.monotonic(), True, {}, 0
        try:
            bench.check_time()
            disable_tf32(bench.device)
            before = memory_mib(bench.device)
            if cuda:
                torch.cuda.reset_peak_memory_stats(bench.device)
            part(bench)
        except OutOfTime:
            ran = False
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0].replace("|", "/")  # for a table cell
            bench.claim(f"{name} runs to its end", "no error", f"{type(error).__name__}: {line}", False)
        seconds = round(time.monotonic() - began, 1)
        peak = torch.cuda.max_memory_allocated(bench.device) // 2**20 if cuda else peak_memory_mb()
        memory = {"mib_before": before, "peak_mib": peak, "mib_after": memory_mib(bench.device)}
        reports.append({"name": name, "seconds": seconds, "ran": ran, "figures": bench.figures} | memory)
        print(f"{name}: {seconds} s{'' if ran else ', not run to its end'}", file=sys.stderr)
    return reports


def claim_in_time(bench: Bench, reports: list[dict[str, Any]], seconds: float, minutes: float) -> None:
    """Add the claim that all parts ran in time."""
    late = [report["name"] for report in reports if not report["ran"]]
    figure = f"{len(reports) - len(late)} of {len(reports)} in {seconds / 60:.1f} minutes"
    figure += f"; not: {', '.join(late)}" if late else ""
    bench.claim(f"all parts run in {minutes:g} minutes", "all", figure, not late and seconds <= minutes * 60)


def table(result: dict[str, Any]) -> str:
    """The result as Markdown: machine, claims, and further figures of each part."""
    machine, parts = result["machine"], result["parts"]
    claims = ([c["name"], c["goal"], c["figure"], VERDICTS[c["holds"]]] for c in result["claims"])
    figures = [
        [part["name"], "seconds; MiB before, peak, after"]
        + [f"{part['seconds']}; {part['mib_before']}, {part['peak_mib']}, {part['mib_after']}"]
        for part in parts
    ]
    figures += [[part["name"], name, one] for part in parts for name, one in part["figures"].items()]
    lines = [
        f"{result['date']}, {machine.get('gpu', 'no GPU')}, {machine['processor']}, Python {machine['python']}, torch "
        f"{machine['torch']}, transformers {machine['transformers']}; {result['seconds']} s, "
        f"load {result['load'][0]} to {result['load'][1]}.",
        "",
        *table_lines("| claim | goal | figure | holds |", claims),
        "",
        *table_lines("| part | measured |  |", figures),
    ]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="parts that would begin later are not run")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the processor")
    add_options(parser)
    args = parser.parse_args(arguments)
    disable_progress_bar()
    if not args.dry_run and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    device = pick_device("cpu" if args.dry_run else f"cuda:{torch.cuda.current_device()}")
    began, load = time.monotonic(), load_average()
    with tempfile.TemporaryDirectory() as scratch:
        environments = {name: folder for name in NAMES if (folder := getattr(args, name))}
        bench = Bench(device, Path(scratch), began + args.minutes * 60, args.dry_run, environments)
        reports = check(bench)
    seconds = time.monotonic() - began
    claim_in_time(bench, reports, seconds, args.minutes)
    result = conditions(load, device) | {"dry_run": args.dry_run, "seconds": round(seconds)}
    result |= {"claims": [asdict(claim) for claim in bench.claims], "parts": reports}
    finish(result, table(result), args.json)
    if device.type == "cuda":
        PAGE.write_text(replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, table(result)), encoding="utf-8")
    wrong = [claim for claim in result["claims"] if claim["holds"] is False]
    for claim in wrong:
        print(f"Does not hold: {claim['name']} (wanted {claim['goal']}): {claim['figure']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
