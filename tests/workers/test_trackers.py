"""The real threads send a training's metrics to trackers. A tracker that fails, hangs or is missing costs one line in
the log. test_training_killed covers a killed training that continues in TensorBoard."""

import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import accelerate.tracking as accelerate_tracking
import pytest
from accelerate.state import PartialState
from accelerate.utils import LoggerType

from speculoos.errors import BadInput
from speculoos.settings import Settings, load
from tests.workers.conftest import wait_until
from tracking import changes, db, jobs, reports
from tracking.tables import Base, Dataset, Job
from workers.child import trackers
from workers.child.context import JobContext
from workers.child.trackers import tracking_metrics
from workers.jobs.requests import Train
from workers.jobs.submit import submit
from workers.timing import JobTiming

SECRET = "the-key-of-wandb-0123456789"
SHOWN = "shown as it is"


class Kept(accelerate_tracking.GeneralTracker):
    """A tracker with accelerate's interface that records what it gets and calls `on_log` at each log."""

    name, requires_logging_directory = "wandb", False
    instances: list["Kept"] = []
    on_log: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, project: str, **options: Any):
        super().__init__()
        self.options, self.logged, self.config, self.ended = options, [], None, False
        Kept.instances.append(self)

    @property
    def tracker(self) -> "Kept":
        return self

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, float], step: int | None = None, **_: Any) -> None:
        Kept.on_log()
        self.logged.append((step, values))

    def finish(self) -> None:
        self.ended = True


@pytest.fixture
def context(home: Settings, monkeypatch: pytest.MonkeyPatch) -> JobContext:
    """The context of a running training with W&B as tracker, which `Kept` replaces."""
    PartialState(cpu=True)
    Kept.instances, Kept.on_log = [], staticmethod(lambda: None)
    monkeypatch.setitem(accelerate_tracking.LOGGER_TYPE_TO_CLASS, "wandb", Kept)
    monkeypatch.setattr(accelerate_tracking, "_available_trackers", [LoggerType.WANDB])
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    for name in trackers.tracker_environment(home):
        monkeypatch.setenv(name, SHOWN)
    settings = replace(home, trackers=("wandb",))
    with db.writing(settings) as session:
        base = Base(name="b", source="folder", location="/x", path="/x", state="ready")
        data = Dataset(name="d", kind="conversations", path="/d", rows=9, state="ready")
        session.add_all([base, data])
    request = Train(method="medusa", base_id=base.id, dataset_id=data.id, settings={"max_steps": 9})
    return attempt(settings, submit(request, name="my heads", settings=settings).id)


def attempt(settings: Settings, job_id: str) -> JobContext:
    with db.writing(settings) as session:
        number = jobs.claim(session, job_id, "test", 60)
    assert number
    return JobContext(settings, job_id, number, JobTiming())


def log_steps(context: JobContext, *steps: int) -> None:
    for step in steps:
        context.metrics(step, {"train/loss": 1 / (step + 1), "train/odd": float("nan")})


def warnings(context: JobContext) -> list[str]:
    context.flush()
    with db.reading(context.settings) as session:
        return [line.message for line in reports.logs(session, context.job_id) if line.level == "warning"]


def test_a_run_gets_all_metrics_under_its_name_and_the_next_attempt_continues_it(context: JobContext) -> None:
    with tracking_metrics(context, {"lr": 0.1, "layers": [1, 2], "none": None, "base": "b"}):
        log_steps(context, 1, 2, 3)
    context.flush()
    first = Kept.instances[0]
    assert first.options["id"] == context.job_id and first.options["name"] == "Train my heads"
    assert first.config == {"lr": 0.1, "layers": "[1, 2]", "base": "b"} and first.ended
    assert first.logged == [(step, {"train/loss": 1 / (step + 1)}) for step in (1, 2, 3)]
    note = context.settings.trackers_folder / "notes" / f"{context.job_id}-wandb.json"
    assert json.loads(note.read_text()) == {"run": f"Train-my-heads-{context.job_id[:12]}"}
    with db.writing(context.settings) as session:
        jobs.interrupt(session, context.job_id, context.attempt, "killed")
    again = attempt(context.settings, context.job_id)
    with tracking_metrics(again, {"lr": 0.1}, resumed=2):
        log_steps(again, 3, 4)
    assert Kept.instances[1].config is None, "its settings are there"
    assert Kept.instances[1].options == first.options
    assert [step for step, _ in Kept.instances[1].logged] == [1, 2, 3, 4], (
        "what may be missing, from the rows; then what is new"
    )


def test_tensorboard_drops_the_later_steps_of_a_killed_attempt(context: JobContext) -> None:
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accelerate_tracking._available_trackers.append(LoggerType.TENSORBOARD)
    context.settings = replace(context.settings, trackers=("tensorboard",))
    folder = context.settings.trackers_folder / "tensorboard" / f"Train-my-heads-{context.job_id[:12]}"

    def losses() -> dict[int, float]:
        if not folder.is_dir():
            return {}
        events = reader.EventAccumulator(str(folder), {reader.SCALARS: 0}).Reload()
        points = events.Scalars("train/loss") if "train/loss" in events.Tags()["scalars"] else []
        assert len(points) == len({point.step for point in points}), "every step once"
        return {point.step: point.value for point in points}

    killed = tracking_metrics(context, {"lr": 0.1, "layers": [1]})
    killed.__enter__()
    log_steps(context, *range(1, 7))
    wait_until(lambda: set(losses()) == set(range(1, 7)), 180, "TensorBoard's file")
    context.flush()
    with db.writing(context.settings) as session:
        jobs.interrupt(session, context.job_id, context.attempt, "killed")
    again = attempt(context.settings, context.job_id)
    with tracking_metrics(again, {"lr": 0.1}, resumed=4):
        for step in (5, 6, 7):
            again.metrics(step, {"train/loss": 100.0 + step})
    assert losses() == pytest.approx({**{n: 1 / (n + 1) for n in range(1, 5)}, 5: 105.0, 6: 106.0, 7: 107.0})
    assert not warnings(again) and len(list(folder.glob("*/hparams.yml"))) == 1
    killed.__exit__(None, None, None)


def test_a_tracker_that_fails_costs_one_line_without_a_secret(context: JobContext) -> None:
    def fail() -> None:
        raise ConnectionError(f"wandb.example refused {SECRET}\nand more")

    Kept.on_log = staticmethod(fail)
    with tracking_metrics(context, {}):
        log_steps(context, 1)
        time.sleep(0.3)
        log_steps(context, 2, 3)
    messages = warnings(context)
    assert messages == ["Weights & Biases gets no more metrics of this training: wandb.example refused •••."]
    with db.reading(context.settings) as session:
        assert len(reports.metrics(session, context.job_id)["train/loss"]) == 3, "our own rows are whole"


def test_a_tracker_that_hangs_is_not_waited_for(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "LAST_SECONDS", 0.3)
    monkeypatch.setattr(trackers, "WAITING", 5)
    released, ended = threading.Event(), []
    Kept.on_log = staticmethod(lambda: ended.append(released.wait(30)))
    with tracking_metrics(context, {}):
        log_steps(context, *range(3))
    assert not ended, "a training does not wait"
    released.set()
    assert warnings(context) == ["Weights & Biases gets no more metrics of this training: it does not respond."]


def test_a_tracker_that_is_too_slow_is_left_behind(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackers, "WAITING", 5)
    Kept.on_log = staticmethod(lambda: time.sleep(0.2))
    with tracking_metrics(context, {}):
        log_steps(context, *range(20))
    assert warnings(context) == ["Weights & Biases gets no more metrics of this training: it is too slow."]


def test_a_missing_package_is_reported_once(context: JobContext, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accelerate_tracking, "_available_trackers", [])
    with tracking_metrics(context, {}):
        log_steps(context, 1, 2)
    assert len(messages := warnings(context)) == 1 and "its package is not installed" in messages[0]


def test_nothing_is_sent_or_written_by_default(context: JobContext) -> None:
    context.settings = replace(context.settings, trackers=())
    with tracking_metrics(context, {}):
        log_steps(context, 1)
    assert not Kept.instances and not context.settings.trackers_folder.exists() and not warnings(context)


def test_trackers_stay_at_home_unless_the_operator_says_otherwise(home: Settings) -> None:
    environment = trackers.tracker_environment(home)
    assert environment["WANDB_MODE"] == "offline"
    assert str(home.home) in environment["MLFLOW_TRACKING_URI"]


def test_an_unknown_tracker_is_refused_by_its_name(tmp_path: Path) -> None:
    env = {"SPECULOOS_HOME": str(tmp_path), "SPECULOOS_TRACKERS": "tensorboard, mlflow,tensorboard"}
    assert load(env).trackers == ("tensorboard", "mlflow")
    with pytest.raises(BadInput, match="SPECULOOS_TRACKERS.*'tensorbored'"):
        load({**env, "SPECULOOS_TRACKERS": "tensorbored"})


def test_runs_in_the_home_go_with_their_job(context: JobContext) -> None:
    with tracking_metrics(context, {}):
        log_steps(context, 1)
    folder = context.settings.trackers_folder
    (folder / "tensorboard" / f"Train-my-heads-{context.job_id[:12]}").mkdir(parents=True)
    (folder / "tensorboard" / "another-0123456789ab").mkdir()
    with db.writing(context.settings) as session:
        jobs.succeed(session, context.job_id, context.attempt, {})
    with db.writing(context.settings) as session:
        paths = changes.delete(session, context.settings, session.get_one(Job, context.job_id), force=True)
    changes.remove_files(paths)
    names = [path.name for path in folder.rglob("*") if path.name not in ("tensorboard", "notes")]
    assert names == ["another-0123456789ab"]
