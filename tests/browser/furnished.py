"""A workbench in which every page has something to show: rows of each kind, in each state, with real files.

Only the web server runs, so nothing changes while a test looks at a page.
"""

from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from playwright.sync_api import Page

from tests.browser.trainings import add_trainings
from tests.browser.workbench import Workbench, add_base, add_heads, make_workbench
from tests.tools.homes import add_answers
from tests.tools.planned import wide_plan
from tracking import experiments, jobs, queries, reports, runs, shards
from tracking.db import writing
from tracking.evaluations import columns_of
from tracking.shards import ShardPlan, ShardSpec
from tracking.states import FINISHED
from tracking.tables import Dataset, Evaluation, Job, new_id, now
from workers.jobs.requests import Evaluate, PlanRequest

STATES = ("QUEUED", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLED", "INTERRUPTED")
FIGURES = {"mean_accepted_length": 2.31, "speedup": 1.52, "speedup_interval": [1.4, 1.6], "acceptance_by_depth": [0.7]}
BREAKDOWN = {
    "lengths": [40, 25, 20, 10, 5],
    "by_position": [{"from": at, "steps": 20, "tau": 2.6 - at / 100} for at in (0, 16, 32, 64)],
    "by_class": [
        {"class": name, "tokens": 90, "drafted": n} for name, n in (("code", 70), ("words", 44), ("names", 9))
    ],
    "per_prompt": [
        {
            **{"id": f"q{n}", "turn": 0, "category": "math", "tau": 1.2 + n / 10, "tokens": 64, "steps": 40},
            "messages": [{"role": "user", "content": f"What is {n} + {n}, and how did you find it? " * 3}],
        }
        for n in range(4)
    ],
}
TUNED = {
    **{"verdict": "6 nodes, depth 3: expected τ 2.10, 1.54 × the baseline.", "plain_is_faster": False, "kept": True},
    **{"drafting": {"tree": [[0], [0, 0], [1], [0, 0, 0], [2]]}, "nodes": 6, "depth": 3, "dtype": "bfloat16"},
    **{"expected_tau": 2.1, "expected_speedup": 1.54, "questions": 6, "verifications": 140},
    **{"sizes": [[2, 1.6, 1.3], [4, 1.9, 1.46], [6, 2.1, 1.54], [12, 2.3, 1.5], [32, 2.5, 1.2]]},
    **{"by_rank": [[0.6, 0.15, 0.05], [0.5, 0.1], [0.4]], "forward_ms": {"1": 10.0, "8": 12.0, "64": 60.0}},
    **{"draft_ms": [1.0, 1.2, 1.4], "other_ms": 0.5, "at": "2026-11-23T00:00:00+00:00"},
    "machine": {"processor": "A processor", "device": "cpu"},
}


@dataclass
class Furnished:
    """The workbench, and the addresses of its detail pages."""

    bench: Workbench
    things: dict[str, str]

    @property
    def url(self) -> str:
        return self.bench.url


def furnish(home: Path) -> Furnished:
    """Make the home with its rows and start the web server."""
    bench = make_workbench(home)
    base = add_base(bench)
    heads = add_heads(bench, base, "heads", figures={**FIGURES, "tuning": TUNED["verdict"], "tuned": TUNED})
    result = {**FIGURES, **BREAKDOWN}
    shared_columns = {
        "state": "ready",
        "base_id": base,
        "checkpoint_id": heads,
        "result": result,
        **columns_of(FIGURES),
    }
    suite_columns = {
        "suite": "built_in",
        "questions": "Built-in questions",
        "config": {"base_id": base, "checkpoint_id": heads},
    }
    measured = bench.add(Evaluation(name="measured", **shared_columns, **suite_columns))
    served = {**suite_columns, "source": "team", "machine": "vLLM"}
    bench.add(Evaluation(name="measured there", **{**shared_columns, **served}))
    answers, job_ids = add_answers(bench.settings, base), add_jobs(bench)
    prompts = bench.add(failed_import())
    bench.start("web")
    things = {
        "a base": f"/models?id={base}",
        "answers": f"/data?id={answers}",
        "prompts with bad rows": f"/data?id={prompts}",
        "a checkpoint": f"/models/drafts?id={heads}",
        "a chat": f"/playground?chat={add_chat(bench)}",
        "a comparison": f"/playground/compare?comparison={add_comparison(bench)}",
        "an evaluation": f"/results?id={measured}",
        "a matrix": f"/runs?id={add_matrix(bench, base, heads, measured)}",
        "a plan": f"/runs?id={add_plan(bench, base, heads)}",
        "an experiment": f"/runs/experiments?id={add_experiment(bench)}",
        "trainings compared": f"/runs/compare?ids={job_ids['SUCCEEDED']},{job_ids['FAILED']}",
        **{f"a job {state.lower()}": f"/runs?id={row_id}" for state, row_id in job_ids.items()},
    }
    return Furnished(bench, things)


def add_experiment(bench: Workbench) -> str:
    """Add an experiment of three trainings with learning curves; returns its id."""
    with writing(bench.settings) as session:
        experiment = queries.ensure_experiment(session, "rates")
        experiment.note = "How fast may it learn?"
    trainings = add_trainings(bench)
    with writing(bench.settings) as session:
        for job_id in trainings:
            experiments.move_to_experiment(session, job_id, "rates")
    return experiment.id


def add_matrix(bench: Workbench, base: str, heads: str, measured: str) -> str:
    """Add a matrix of six cells: one measured, one failed, one running, three waiting. Returns its id."""
    evaluations = [
        Evaluate(base_id=base, checkpoint_id=heads, temperature=temperature, drafting=drafting).to_json()
        for temperature in (0.0, 0.7, 1.0)
        for drafting in ({}, {"tree": [[0, 0]]})
    ]
    with writing(bench.settings) as session:
        job = jobs.create(session, kind="matrix", queue="gpu", request={}, name="Evaluate 1 model on 1 suite")
        jobs.claim(session, job.id, "worker", 30)
        plan = ShardPlan("evaluate", "gpu", "questions", [ShardSpec(evaluation, 5) for evaluation in evaluations])
        shards.create_shards(session, job.id, 1, plan)
        first, second, third = shards.list_shards(session, job.id)[:3]
        for cell in (first, second, third):
            jobs.claim(session, cell.id, "worker", 30)
        jobs.succeed(session, first.id, 1, {**FIGURES, "evaluation_id": measured})
        jobs.fail(session, second.id, 1, "unavailable", "The machine was busy.")
        shards.update_progress(session)
        return job.id


def add_plan(bench: Workbench, base: str, heads: str) -> str:
    """Add a job of a finished plan; returns its id."""
    job = Job(
        name="Plan tiny@heads", kind="plan", queue="gpu", state="SUCCEEDED", request=PlanRequest(base, heads).to_json()
    )
    job.result, job.attempt, job.started_at, job.finished_at = wide_plan(), 1, now(), now()
    return bench.add(job)


QUIET = """() => new Promise((done) => {
  let count = -1, since = 0;
  const look = (now) => {
    const loaded = performance.getEntriesByType('resource').length;
    if (loaded !== count) { count = loaded; since = now; }
    if (now - since > 150) done(); else requestAnimationFrame(look);
  };
  requestAnimationFrame(look);
})"""
"""Waits until nothing was loaded for 150 ms."""


def open_page(page: Page, url: str) -> None:
    """Open a page and wait until it is drawn and loads nothing more."""
    open_drawn(page, url)
    page.evaluate(QUIET)


def open_drawn(page: Page, url: str) -> None:
    """Open a page and wait until it is drawn. A click that has to wait for this comes up to half a second later."""
    page.goto(url)
    wait_drawn(page)


def wait_drawn(page: Page) -> None:
    """Wait until the curtain that covers a page while its rows load is gone."""
    page.wait_for_function("document.querySelector('.sp-page h1') && !document.documentElement.matches('.sp-drawing')")


def failed_import() -> Dataset:
    """A failed import that lists the rows it could not use."""
    bad = [{"line": n, "reason": "This line is not valid JSON."} for n in range(1, 40)]
    return Dataset(name="prompts", kind="prompts", state="failed", rows=0, bad_rows=60, report={"bad": bad})


def add_jobs(bench: Workbench) -> dict[str, str]:
    """Add a training in each state, each with a long log, metrics and samples; returns their ids."""
    return {state: add_job(bench, number, state) for number, state in enumerate(STATES)}


def add_job(bench: Workbench, number: int, state: str) -> str:
    """Add a running training with a report, then put it into its state."""
    job = Job(name=f"Train heads {number}", kind="train", queue="gpu", state="RUNNING", done=40 + number, total=200)
    job.unit, job.attempt, job.created_at = "steps", 1, now() - timedelta(minutes=30 - number)
    row_id = bench.add(job)
    with writing(bench.settings) as session:
        reports.write(session, row_id, 1, training_report())
        job = session.get_one(Job, row_id)
        job.state, job.error = state, "The disk is full." if state == "FAILED" else ""
        job.started_at = None if state == "QUEUED" else now() - timedelta(minutes=20)
        job.finished_at = now() - timedelta(minutes=5) if state in FINISHED else None
    return row_id


def training_report() -> reports.JobReport:
    """The report of a training of 40 steps."""
    report = reports.JobReport()
    for step in range(40):
        report.metrics[("loss", step)] = 4.0 / (step + 1)
        report.metrics[("heads.0.accuracy", step)] = step / 60
        report.logs.append((now(), "info", f"Step {step}: the loss is {4.0 / (step + 1):.3f}."))
    tokens = [{"text": "Bees ", "origin": "target"}, {"text": "fly home", "origin": "draft"}]
    report.samples.append((20, {"prompt": "How do bees fly?", "tokens": tokens, "mean_accepted_length": 1.5}))
    return report


def add_chat(bench: Workbench) -> str:
    """Add a chat of one answered turn; returns its id."""
    with writing(bench.settings) as session:
        run = runs.create_run(session, "chat", "tiny@heads", chat_request("How do bees find home?"), new_id())
        finish(session, run.id)
        return run.group_id


def add_comparison(bench: Workbench) -> str:
    """Add a comparison of two measured columns; returns its id."""
    with writing(bench.settings) as session:
        comparison = runs.create_comparison(
            session, [("tiny", chat_request("race")), ("tiny@heads", chat_request("race"))]
        )
        for run in comparison:
            finish(session, run.id)
        return comparison[0].group_id


def chat_request(prompt: str) -> dict:
    return {"messages": [{"role": "user", "content": prompt}], "max_tokens": 8}


def finish(session, run_id: str) -> None:
    """Finish a run of two steps: the prompt's, then one with a drafted tree of which one token was accepted."""
    runs.start_run(session, run_id)
    later = step(1, ["fly ", "home."], ["draft", "target"], [0])
    runs.add_steps(session, run_id, [step(0, ["Bees "], ["target"], []), later])
    runs.finish_run(session, run_id, "Bees fly home.", {"decode_tokens_per_second": 20.0, "mean_accepted_length": 2.0})


def step(index: int, texts: list[str], origins: list[str], accepted: list[int]) -> dict:
    tokens = [
        {"id": 5 + i, "text": text, "origin": origin, "depth": int(origin == "draft"), "rank": 0}
        for i, (text, origin) in enumerate(zip(texts, origins, strict=True))
    ]
    tree = {"tokens": [5, 6], "texts": ["fly ", "walk "], "parents": [-1, -1], "depths": [1, 1], "ranks": [0, 1]}
    none = {"tokens": [], "texts": [], "parents": [], "depths": [], "ranks": [], "logprobs": []}
    draft = {**tree, "logprobs": [-0.2, -2.0]} if accepted else none
    ms = {"draft": 1.0, "verify": 20.0, "other": 0.5}
    record = {"index": index, "kind": "verify" if index else "prefill", "tokens": tokens, "draft": draft}
    return {**record, "accepted": accepted, "counted": bool(index), "finish": None, "ms": ms}
