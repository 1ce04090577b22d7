"""Trainings to compare: jobs with the metrics, drafts and evaluations that a worker stores."""

from datetime import timedelta

from tests.browser.workbench import Workbench, add_base
from tracking import reports
from tracking.db import reading, writing
from tracking.evaluations import columns_of
from tracking.names import free_name
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from workers.jobs.requests import Train

STEPS = 120
RATES = {"slow": 0.0003, "quick": 0.001, "wild": 0.01}


def add_trainings(bench: Workbench, rates: dict[str, float] = RATES, running: str = "") -> list[str]:
    """Add a training for each learning rate, each evaluated twice; returns the ids of their jobs.

    Their base is new, since their drafts have no files and no other test may pick one. The training called `running`
    has not ended.
    """
    with reading(bench.settings) as session:
        base, name = free_name(session, Base, "trained on"), free_name(session, Dataset, "learned from")
    base_id = add_base(bench, base)
    data = bench.add(Dataset(name=name, kind="conversations", state="ready", rows=900))
    return [
        add_training(bench, name, level, rate, base_id, data, name == running)
        for level, (name, rate) in enumerate(rates.items(), 1)
    ]


def add_training(bench: Workbench, name: str, level: int, rate: float, base: str, data: str, running: bool) -> str:
    """Add one training. Higher levels train longer and reach a higher τ."""
    tokens, tau = 20_000 * 2**level, 1.4 + 0.3 * level
    draft = Checkpoint(name=name, method="medusa", base_id=base, dataset_id=data, state="ready", size_bytes=2_000_000)
    draft.figures = {"mean_accepted_length": tau - 0.05, "tokens": tokens}
    if running:
        draft.state, draft.figures = "pending", {}
    draft_id = bench.add(draft)
    request = Train("medusa", base, data, {"lr": rate, "max_steps": STEPS}, checkpoint_id=draft_id)
    job = Job(name=f"Train {name}", kind="train", queue="gpu", state="RUNNING", request=request.to_json(), attempt=1)
    job.total, job.done, job.unit, job.started_at = STEPS, STEPS, "steps", now() - timedelta(minutes=10 * level)
    job_id = bench.add(job)
    with writing(bench.settings) as session:
        reports.write(session, job_id, 1, curves(level, tokens, tau))
        session.get_one(Checkpoint, draft_id).job_id = job_id
        if not running:
            stored = session.get_one(Job, job_id)
            stored.state, stored.finished_at = "SUCCEEDED", now() - timedelta(minutes=5 * level)
            session.add_all(evaluations_of(base, draft_id, tau, name))
    return job_id


def curves(level: int, tokens: int, tau: float) -> reports.JobReport:
    """The report of a training of STEPS steps."""
    report = reports.JobReport()
    for step in range(1, STEPS + 1):
        part = step / STEPS
        wobble = 0.2 * ((step * 7919 * level) % 13 - 6) / 6
        values = {"train/loss": 4 - (1 + 0.3 * level) * part + wobble, "train/lr": 1e-3 * (1 - part)}
        values |= {"train/tokens": tokens * part, "train/minutes": 2.0 * level * part, "train/grad_norm": 1 + wobble}
        if step % 20 == 0:
            values |= {
                "eval/tau": 1 + (tau - 1.05) * part,
                "eval/top1_head1": 0.5 * part,
                "eval/top1_head2": 0.3 * part,
            }
        report.metrics |= {(name, step): value for name, value in values.items()}
    return report


def evaluations_of(base: str, draft: str, tau: float, name: str) -> list[Evaluation]:
    """Evaluations of a draft on two sets of questions."""
    evaluations = []
    for questions in ("Built-in questions", "GSM8K"):
        result = {"mean_accepted_length": tau, "mean_accepted_length_interval": [tau - 0.1, tau + 0.1]}
        result |= {"speedup": tau * 0.8, "speedup_interval": [tau * 0.75, tau * 0.85], "machine": {"processor": "CPU"}}
        row = Evaluation(
            name=name, base_id=base, checkpoint_id=draft, state="ready", questions=questions, result=result
        )
        row.suite = "own"
        for column, value in columns_of(result).items():
            setattr(row, column, value)
        evaluations.append(row)
    return evaluations
