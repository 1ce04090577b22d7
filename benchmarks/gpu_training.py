"""Parts of benchmarks.gpu_check: training and batched generation, and two processes on one device."""

import json
import os
import statistics
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from benchmarks.gpu_bench import Bench, OutOfTime
from benchmarks.gpu_exactness import tiny
from benchmarks.peers.generation_side import ours
from corpus.conversations import GenerateOptions
from corpus.generate_local import generate_local, generation_dtype
from corpus.importing import import_prompts
from evaluation.questions import BUILT_IN
from evaluation.ties import TIE, first_difference
from models.base import load_base
from models.methods import train_config
from speculoos.errors import Unavailable
from speculoos.reporting import SilentReporter
from speculoos.settings import PROJECT_ROOT
from tests.tools.homes import write_answers
from training.loop import train

PROMPTS = PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl"
METHODS = {"eagle3": {"train_lm_head": False}, "medusa": {"medusa_num_heads": 2}}
"""The settings of benchmarks.training."""
BATCHED = ("llama", "mistral", "phi", "qwen3")
# Copies of each prompt, and batch size: rows of the batch are freed and refilled while others continue.
COPIES, AT_ONCE = 3, 4
WARM_UP_STEPS = 2
JOBS = 2


class KeptResult(SilentReporter):
    """Stores the metrics of every step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, float]] = []

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self.steps.append(values)


def training(bench: Bench) -> None:
    """Tokens per second of EAGLE-3 and Medusa training on the starter; the frozen base model runs in every step."""
    sizes = bench.sizes
    data = write_answers(bench.scratch / "rows", sizes.rows, sizes.row_tokens)
    for method, settings in METHODS.items():
        bench.check_time()
        config = train_config(
            method=method,
            epochs=0,
            max_steps=sizes.steps,
            max_length=sizes.row_tokens,
            batch_tokens=sizes.batch_tokens,
            held_out=0,
            cache_features_mb=0,
            base_dtype="auto",
            device=str(bench.device),
            eval_every=0,
            save_every=0,
            samples=0,
            **settings,
        )
        reporter = KeptResult()
        train(config, bench.starter, data, bench.scratch / f"trained-{method}", reporter=reporter)
        steps = reporter.steps
        figure = f"{len(steps)}, loss {steps[-1]['train/loss']:.2f}"
        bench.claim(f"{method} trains on the starter", f"{sizes.steps} steps", figure, len(steps) == sizes.steps)
        speed = statistics.median(step["train/tokens_per_second"] for step in steps[WARM_UP_STEPS:])
        bench.figures[f"{method}, tokens/s"] = round(speed, 1)


def generation(bench: Bench) -> None:
    """Tokens per second of batched generation as in `speculoos generate`, and its exactness."""
    sizes, device = bench.sizes, str(bench.device)
    import_prompts(PROMPTS, bench.scratch / "prompts", SilentReporter())
    options = GenerateOptions(max_tokens=sizes.answer_tokens, batch_size=sizes.batch, limit=sizes.answers)
    base = load_base(bench.starter, dtype=generation_dtype(device), device=device)
    report = generate_local(base, bench.scratch / "prompts", bench.scratch / "answers", options, SilentReporter())
    complete = report["complete"] and report["rows"] == sizes.answers and not report["failed"]
    name = f"{sizes.answers} prompts answered, {sizes.batch} at once"
    bench.claim(name, "all", f"{report['rows']}", complete)
    bench.figures |= {f"{report['dtype']}, tokens/s": report["tokens_per_second"], "tokens": report["tokens"]}
    batches(bench)


def batches(bench: Bench) -> None:
    """fp32, tiny base models: batched answers equal transformers up to the first tie."""
    wrong, answers = [], 0
    for family in BATCHED:
        bench.check_time()
        subject = tiny(bench, family, "float32")
        expected = subject.expected * COPIES
        batch = ours(subject.target.base, [one.prompt for one in expected], bench.sizes.tokens, AT_ONCE)
        answers += len(batch)
        for tokens, one in zip(batch, expected, strict=True):
            at = first_difference(tokens, one.tokens)
            if at is not None and (at >= len(one.gaps) or one.gaps[at] > TIE):
                wrong.append(f"{family}: another token at {at}")
    figure = "; ".join([f"{answers} answers, {AT_ONCE} at once", *wrong[:3]])
    bench.claim("fp32, batched: the tokens of transformers.generate", "all, ties aside", figure, not wrong)


def two_jobs(bench: Bench) -> None:
    """Two processes on one device, each comparing with transformers.generate in fp32: both must finish and be exact."""
    files = [bench.scratch / f"job-{number}.json" for number in range(1, JOBS + 1)]
    with ExitStack() as stack:
        running = [stack.enter_context(started(bench, out)) for out in files]
        try:
            outputs = [one.communicate(timeout=bench.check_time())[0] for one in running]
        except subprocess.TimeoutExpired:
            raise OutOfTime from None
        finally:
            for one in running:
                one.kill()
    for number, (out, output, one) in enumerate(zip(files, outputs, running, strict=True), 1):
        if not out.exists():
            last = (output.strip().splitlines() or ["no output"])[-1]
            raise Unavailable(f"job {number} ended with status {one.returncode}: {last}")
        outcomes = json.loads(out.read_text())
        wrong = [name for name, outcome in outcomes.items() if not outcome["exact"]]
        figure = f"{len(outcomes)} drafters, {sum(outcome['tokens'] for outcome in outcomes.values())} tokens"
        figure += f"; different: {', '.join(wrong)}" if wrong else ""
        name = f"fp32, job {number} of {JOBS} at once: the tokens of transformers.generate"
        bench.claim(name, "all", figure, not wrong)


def started(bench: Bench, out: Path) -> subprocess.Popen[str]:
    """Start a process that compares plain decoding, prompt lookup and the head with transformers.generate."""
    sizes = bench.sizes
    command = [sys.executable, "-m", "benchmarks.exactness", "--model", str(bench.starter), "--questions"]
    command += [str(BUILT_IN), "--limit", str(sizes.prompts), "--max-tokens", str(sizes.answer_tokens)]
    command += ["--device", str(bench.device), "--checkpoint", str(bench.head), "--context", "512"]
    command += ["--store", str(out.with_suffix("")), "--json", str(out)]
    environment = {**os.environ, "PYTHONPATH": str(PROJECT_ROOT)}
    return subprocess.Popen(
        command, cwd=PROJECT_ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
