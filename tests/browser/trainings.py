"""Trainings to compare: jobs with their metrics, drafts and evaluations, as a worker leaves them."""

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
    """One training of a base of their own (their drafts have no files: nobody may pick them) for each learning rate,
    each measured twice; ids of their jobs. The one called `running` has not ended."""
    with reading(bench.settings) as session:
        base, name = free_name(session, Base, "trained on"), free_name(session, Dataset, "learned from")
    base_id = add_base(bench, base)
    data = bench.add(Dataset(name=name, kind="conversations", state="ready", rows=900))
    return [
        add_training(bench, name, place, rate, base_id, data, name == running)
        for place, (name, rate) in enumerate(rates.items(), 1)
    ]


def add_training(bench: Workbench, name: str, place: int, rate: float, base: str, data: str, running: bool) -> str:
    """Better and longer the later its place."""
    tokens, tau = 20_000 * 2**place, 1.4 + 0.3 * place
    draft = Checkpoint(name=name, method="medusa", base_id=base, dataset_id=data, state="ready", size_bytes=2_000_000)
    draft.figures = {"mean_accepted_length": tau - 0.05, "tokens": tokens}
    if running:
        draft.state, draft.figures = "pending", {}
    draft_id = bench.add(draft)
    asked = Train("medusa", base, data, {"lr": rate, "max_steps": STEPS}, checkpoint_id=draft_id)
    job = Job(name=f"Train {name}", kind="train", queue="gpu", state="RUNNING", request=asked.to_json(), attempt=1)
    job.total, job.done, job.unit, job.started_at = STEPS, STEPS, "steps", now() - timedelta(minutes=10 * place)
    job_id = bench.add(job)
    with writing(bench.settings) as session:
        reports.write(session, job_id, 1, curves(place, tokens, tau))
        session.get_one(Checkpoint, draft_id).job_id = job_id
        if not running:
            stored = session.get_one(Job, job_id)
            stored.state, stored.finished_at = "SUCCEEDED", now() - timedelta(minutes=5 * place)
            session.add_all(measured(base, draft_id, tau, name))
    return job_id


def curves(place: int, tokens: int, tau: float) -> reports.JobReport:
    """What a training of STEPS steps wrote."""
    report = reports.JobReport()
    for step in range(1, STEPS + 1):
        part = step / STEPS
        wobble = 0.2 * ((step * 7919 * place) % 13 - 6) / 6
        values = {"train/loss": 4 - (1 + 0.3 * place) * part + wobble, "train/lr": 1e-3 * (1 - part)}
        values |= {"train/tokens": tokens * part, "train/minutes": 2.0 * place * part, "train/grad_norm": 1 + wobble}
        if step % 20 == 0:
            values |= {
                "eval/tau": 1 + (tau - 1.05) * part,
                "eval/top1_head1": 0.5 * part,
                "eval/top1_head2": 0.3 * part,
            }
        report.metrics |= {(name, step): value for name, value in values.items()}
    return report


def measured(base: str, draft: str, tau: float, name: str) -> list[Evaluation]:
    """An evaluation on each of two sets of questions."""
    made = []
    for questions in ("Built-in questions", "GSM8K"):
        result = {"mean_accepted_length": tau, "mean_accepted_length_interval": [tau - 0.1, tau + 0.1]}
        result |= {"speedup": tau * 0.8, "speedup_interval": [tau * 0.75, tau * 0.85], "machine": {"processor": "CPU"}}
        row = Evaluation(
            name=name, base_id=base, checkpoint_id=draft, state="ready", questions=questions, result=result
        )
        row.suite = "own"
        for column, value in columns_of(result).items():
            setattr(row, column, value)
        made.append(row)
    return made
