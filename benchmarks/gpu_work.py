"""Parts of benchmarks.gpu_check: training and batched generation, and two processes on one device."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.answers import AnswerRequest, make_answers
from benchmarks.datagen_side import ours
from benchmarks.gpu_claims import Bench, Claim, Findings, OutOfTime
from benchmarks.gpu_exactness import tiny
from evaluation.questions import BUILT_IN
from evaluation.ties import TIE, first_difference
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


def training(bench: Bench) -> Findings:
    """Tokens per second of EAGLE-3 and Medusa training on the starter; the frozen base model runs in every step."""
    sizes, findings = bench.sizes, Findings()
    data = write_answers(bench.scratch / "rows", sizes.rows, sizes.row_tokens)
    for method, settings in METHODS.items():
        bench.check_time()
        steps = trained(bench, method, data, settings)
        speed = statistics.median(step["train/tokens_per_second"] for step in steps[WARM_UP_STEPS:])
        loss = steps[-1]["train/loss"]
        claim = Claim(f"{method} trains on the starter", f"{sizes.steps} steps", f"{len(steps)}, loss {loss:.2f}")
        claim.holds = len(steps) == sizes.steps
        findings += Findings([claim], {f"{method}, tokens/s": round(speed, 1)})
    return findings


def trained(bench: Bench, method: str, data: Path, settings: dict[str, Any]) -> list[dict[str, float]]:
    """Train and return the metrics of every step, without feature cache; the base model's dtype is `auto`."""
    sizes, reporter = bench.sizes, KeptResult()
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
    train(config, bench.starter, data, bench.scratch / f"trained-{method}", reporter=reporter)
    return reporter.steps


def generation(bench: Bench) -> Findings:
    """Tokens per second of batched generation as in `speculoos generate`, and its exactness."""
    sizes = bench.sizes
    request = AnswerRequest(sizes.answers, sizes.answer_tokens, batch_size=sizes.batch, device=str(bench.device))
    report = make_answers(bench.starter, PROMPTS, bench.scratch / "answers", request, SilentReporter())
    claim = Claim(f"{sizes.answers} prompts answered, {sizes.batch} at once", "all", f"{report['rows']}")
    claim.holds = report["complete"] and report["rows"] == sizes.answers and not report["failed"]
    speed = {f"{report['dtype']}, tokens/s": report["tokens_per_second"], "tokens": report["tokens"]}
    return Findings([claim, batches(bench)], speed)


def batches(bench: Bench) -> Claim:
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
    return Claim("fp32, batched: the tokens of transformers.generate", "all, ties aside", figure, not wrong)


def two_jobs(bench: Bench) -> Findings:
    """Two processes on one device, each comparing with transformers.generate in fp32: both must finish and be exact."""
    files = [bench.scratch / f"job-{number}.json" for number in range(JOBS)]
    running = [started(bench, out) for out in files]
    try:
        outputs = [(one.communicate(timeout=max(bench.seconds_left, 1))[0], one.returncode) for one in running]
    except subprocess.TimeoutExpired:
        raise OutOfTime from None
    finally:
        for one in running:
            one.kill()
            one.wait()
    claims = [_job(number, out, *one) for number, (out, one) in enumerate(zip(files, outputs, strict=True), 1)]
    return Findings(claims)


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


def _job(number: int, out: Path, output: str, status: int) -> Claim:
    """The claim of one process. Raises Unavailable with its last output line if it has no result."""
    if not out.exists():
        raise Unavailable(f"job {number} ended with status {status}: {(output.strip().splitlines() or ['silent'])[-1]}")
    outcomes = json.loads(out.read_text())
    tokens = sum(one["tokens"] for one in outcomes.values())
    wrong = [name for name, one in outcomes.items() if not one["exact"]]
    figure = f"{len(outcomes)} drafters, {tokens} tokens" + (f"; different: {', '.join(wrong)}" if wrong else "")
    return Claim(f"fp32, job {number} of {JOBS} at once: the tokens of transformers.generate", "all", figure, not wrong)
