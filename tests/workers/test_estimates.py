"""Estimates come of what is asked for, of how fast past jobs like it were, else of a probe; each job keeps its own."""

import json
import random
from datetime import timedelta

import pytest
from sqlalchemy import select

from cli.main import main
from models.methods import METHODS, train_config
from models.methods.recipes import config_for, load_recipe
from models.methods.record import BaseShape
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from training.batches import make_batches
from workers.jobs import matrix, sizes
from workers.jobs.estimates import MAX_FACTOR, PROBE, START_SECONDS, estimate
from workers.jobs.evaluate import REPLAY_STEPS_PER_TOKEN as REPLAY_STEPS
from workers.jobs.evaluate import STEPS_PER_TOKEN
from workers.jobs.requests import KINDS as KINDS_OF_JOBS
from workers.jobs.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    GenerateShard,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    InstallServer,
    Matrix,
    PlanRequest,
    Prove,
    Quantize,
    ReplayRequest,
    Serve,
    Train,
    Tune,
)
from workers.jobs.submit import submit

CARD = {"parameters": 1e8, "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 1000}
ANSWERS = GenerateData("prompts", base_id="base", max_tokens=100)


@pytest.fixture
def asked(home: Settings, tmp_path) -> Settings:
    """A base, a hundred prompts, their answers in a file, a checkpoint of 3 MB."""
    data, folder = tmp_path / "answers", tmp_path / "heads"
    data.mkdir(), folder.mkdir()
    rows = [{"id": str(n), "token_ids": [9, 9, *[n % 4] * 8, 5, 6], "loss_spans": [[2, 12]]} for n in range(50)]
    (data / "shard-00000.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "model.safetensors").write_bytes(bytes(3 * 10**6))
    with writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", path="/x", state="ready", card=CARD))
        session.flush()
        session.add(Dataset(id="prompts", name="p", kind="prompts", state="ready", rows=100))
        session.add(
            Dataset(
                id="answers", name="a", kind="conversations", state="ready", rows=50, path=str(data), base_id="base"
            )
        )
        session.add(Checkpoint(id="heads", name="h", method="medusa", base_id="base", state="ready", path=str(folder)))
    return home


def guess(settings: Settings, request):
    with reading(settings) as session:
        return estimate(session, request, settings.home)


def ran(settings: Settings, asked_for, seconds: float, **changes) -> None:
    """A job that took so long."""
    job = submit(asked_for, settings=settings)
    with writing(settings) as session:
        row = session.get_one(Job, job.id)
        row.state, row.attempt, row.finished_at = "SUCCEEDED", 1, now()
        row.started_at = row.finished_at - timedelta(seconds=seconds)
        for key, value in changes.items():
            setattr(row, key, value)


def test_every_command_that_asks_for_a_job_estimates_it(
    asked: Settings, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --estimate: the figures of the request, and nothing is started."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "x"}\n')
    where = str(tmp_path / "answers")
    small, heads = {"limit": 3, "max_tokens": 16}, {"base_id": "base", "checkpoint_id": "heads"}
    commands = {
        f"models add {where}": FetchModel(source="folder", location=where),
        f"models add-draft {where} --model tiny": ImportDraft(source="folder", location=where, base_id="base"),
        f"data import {file}": ImportPrompts(path=str(file), original_name=file.name),
        f"data import {file} --answered --model tiny": ImportAnswered(str(file), "base", file.name),
        "models quantize tiny --scheme fp8": Quantize(base_id="base", scheme="fp8"),
        "data generate --prompts p --model tiny --max-tokens 100": ANSWERS,
        "train medusa --model tiny --data a --set max_steps=200": Train(
            method="medusa", base_id="base", dataset_id="answers", settings={"max_steps": 200}
        ),
        "evaluate --model tiny@h --limit 3 --max-tokens 16": Evaluate(base_id="base", checkpoint_id="heads", **small),
        "evaluate --endpoint team --limit 3 --max-tokens 16": Evaluate(endpoint="team", **small),
        "plan tiny@h --limit 3 --max-tokens 16": PlanRequest(**heads, **small),
        "replay run a --draft tiny@h --limit 10": ReplayRequest(**heads, dataset_id="answers", limit=10),
        "tune tiny@h --limit 3 --max-tokens 16": Tune(**heads, **small),
        "export tiny@h --format vllm": Export(checkpoint_id="heads", format="vllm"),
        "servers start tiny@h --engine vllm": Serve(**heads, engine="vllm"),
        "servers prove tiny@h --engine vllm --limit 3 --max-tokens 16": Prove(**heads, **small, engine="vllm"),
        "servers install llamacpp": InstallServer(package="llamacpp"),
    }
    for command, request in commands.items():
        assert main([*command.split(), "--estimate", "--json"]) == 0, command
        found, expected = json.loads(capsys.readouterr().out), guess(asked, request)
        assert found["kind"] == request.kind, command
        assert found["seconds"] == (None if expected.seconds is None else round(expected.seconds)), command
        assert (found["disk_bytes"], found["steps"]) == (round(expected.disk), expected.steps), command
    assert main(["train", "medusa", "--model", "tiny", "--data", "a", "--estimate"]) == 0
    shown = capsys.readouterr().out
    assert "time" in shown and "about 0:" in shown and "memory" in shown and "based on" in shown
    assert main(["tune", "tiny@h", "--questions", "gone", "--estimate"]) == 2
    with reading(asked) as session:
        assert not list(session.scalars(select(Job)))
    asked_kinds = {type(request) for request in commands.values()} | {Matrix, GenerateShard}
    assert asked_kinds == set(KINDS_OF_JOBS), "a new kind of job needs --estimate too; matrix has its own"


def test_before_anything_ran_the_probe_says_how_fast(asked: Settings) -> None:
    first = guess(asked, ANSWERS)
    assert first.seconds > START_SECONDS["gpu"] and "default values" in first.basis
    (asked.home / PROBE).write_text(json.dumps({"operations_per_second": 4e9, "bytes_per_second": 1e9}))
    slower = guess(asked, ANSWERS)
    assert "probe" in slower.basis and slower.seconds > 10 * first.seconds
    assert guess(asked, Evaluate(base_id="base", checkpoint_id="heads")).seconds > 60
    (asked.home / PROBE).write_text("{half")
    assert guess(asked, ANSWERS).seconds == first.seconds


def test_a_job_like_it_tells_the_pace_of_the_next(asked: Settings) -> None:
    """Twice the work takes twice the time; the latest three count, of the same base where there are some."""
    ran(asked, ANSWERS, START_SECONDS["gpu"] + 50)
    again = guess(asked, ANSWERS)
    assert again.seconds == pytest.approx(START_SECONDS["gpu"] + 50, rel=0.01) and "last similar job" in again.basis
    longer = guess(asked, GenerateData("prompts", base_id="base", max_tokens=100 + 160))
    assert longer.seconds == pytest.approx(START_SECONDS["gpu"] + 100, rel=0.01)
    for taken in (500, 20, 20):
        ran(asked, ANSWERS, START_SECONDS["gpu"] + taken)
    assert guess(asked, ANSWERS).seconds == pytest.approx(START_SECONDS["gpu"] + 20, rel=0.01)
    assert "last 3" in guess(asked, ANSWERS).basis


SMALLER = CARD | {"parameters": 1e5, "hidden_size": 16}
MEASURED = {"operations_per_second": 1e11, "bytes_per_second": 2e10}
KINDS = {
    "generation": lambda base: GenerateData("prompts", base_id=base, max_tokens=100),
    "training": lambda base: Train(
        "medusa", base, "answers" if base == "base" else "small answers", {"max_steps": 200}
    ),
    "evaluation": lambda base: Evaluate(base_id=base, checkpoint_id="heads" if base == "base" else ""),
}


@pytest.fixture
def both(asked: Settings) -> Settings:
    """A second base, of a thousandth of the parameters, with answers of its own, and a probe."""
    with writing(asked) as session:
        session.add(Base(id="small", name="s", source="folder", location="/y", path="/y", state="ready", card=SMALLER))
        session.flush()
        session.add(
            Dataset(id="small answers", name="sa", kind="conversations", state="ready", rows=50, base_id="small")
        )
    (asked.home / PROBE).write_text(json.dumps(MEASURED))
    return asked


@pytest.mark.parametrize("first", ["base", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_ten_jobs_of_a_base_of_another_size_leave_the_probe_its_word(both: Settings, kind: str, first: str) -> None:
    """Their time is nearly all start-up, or what a step takes however small the base."""
    request = KINDS[kind]("small" if first == "base" else "base")
    fresh = guess(both, request)
    for number in range(10):
        ran(both, KINDS[kind](first), 8.0 + 3 * number if first == "small" else 500.0 + number)
    after = guess(both, request)
    assert after.basis == fresh.basis and fresh.seconds / 2 < after.seconds < fresh.seconds * 2


def test_the_probe_bounds_what_jobs_of_the_same_base_say(both: Settings) -> None:
    """A machine that was suspended, a clock that was set: no estimate of days."""
    fresh = guess(both, ANSWERS).seconds - START_SECONDS["gpu"]
    ran(both, ANSWERS, 1e6)
    assert guess(both, ANSWERS).seconds == pytest.approx(START_SECONDS["gpu"] + fresh * MAX_FACTOR, rel=0.01)


def test_a_job_that_is_nearly_all_start_says_nothing_of_the_pace(both: Settings) -> None:
    fresh = guess(both, ANSWERS)
    ran(both, ANSWERS.changed(limit=1, max_tokens=8), 10)
    after = guess(both, ANSWERS)
    assert after.basis == fresh.basis and after.seconds == fresh.seconds


def test_an_evaluation_that_asked_again_teaches_the_pace_of_one_pass(both: Settings) -> None:
    request = Evaluate(base_id="base", checkpoint_id="heads")
    fresh = guess(both, request).seconds - START_SECONDS["gpu"]
    ran(both, request, START_SECONDS["gpu"] + 3 * fresh)
    with writing(both) as session:
        job = session.scalars(select(Job)).one()
        session.get_one(Evaluation, job.request["evaluation_id"]).result = {"passes": 3}
    assert guess(both, request).seconds == pytest.approx(START_SECONDS["gpu"] + fresh, rel=0.01)


def test_an_evaluation_counts_its_tokens(asked: Settings) -> None:
    """Drafted steps too where something drafts."""

    def work(limit: int, **more) -> float:
        return guess(
            asked, Evaluate("base", **{"checkpoint_id": "heads", "limit": limit, "max_tokens": 10} | more)
        ).work

    assert work(10) == pytest.approx(10 * work(1))
    assert work(1, checkpoint_id="") == pytest.approx(work(1) / STEPS_PER_TOKEN)
    assert work(1, checkpoint_id="", drafting={"drafter": "ngram"}) == work(1)


def test_a_replay_counts_answers_alone_and_half_a_step_for_each_token(asked: Settings) -> None:
    with writing(asked) as session:
        for name, report in (("generated", {"tokens": 800}), ("imported", {"tokens": 2000, "answer_tokens": 800})):
            session.add(Dataset(id=name, name=name, kind="conversations", state="ready", rows=8, report=report))
    weights = guess(asked, Evaluate("base", limit=1, max_tokens=1)).work
    for data in ("generated", "imported"):
        assert guess(asked, ReplayRequest("base", "heads", data, limit=4)).work == pytest.approx(
            400 * weights * REPLAY_STEPS
        )


def test_a_plan_for_many_sequences_takes_longer_than_for_one(asked: Settings) -> None:
    one, both = (guess(asked, PlanRequest("base", batches=batches)).work for batches in ([1], [1, 16]))
    assert both == pytest.approx(one * (4 + 19) / 4)


def test_a_matrix_takes_what_its_cells_take_alone(asked: Settings) -> None:
    """Of two bases, each with a past of its own, and a suite of several turns; unknown with a base nobody knows."""
    with writing(asked) as session:
        session.add(Base(id="far", name="far", source="folder", location="/y", path="/y", state="ready", card=CARD))
        session.add(Base(id="new", name="new", source="folder", location="/z", path="/z", state="ready"))
        report = {"turns": {"1": 3, "2": 3}}
        session.add(Dataset(id="suite", name="s", kind="prompts", state="ready", rows=6, report=report))
    models = [{"base_id": "base", "checkpoint_id": "heads"}, {"base_id": "far"}]
    for model, taken in ((models[0], 300), (models[1], 600), (models[1], 600)):
        ran(asked, Evaluate(**model), START_SECONDS["gpu"] + taken)
    request = Matrix(models, suites=["", "suite"], temperatures=[0.0, 1.0], limit=10, max_tokens=10)
    with reading(asked) as session:
        cells = matrix.matrix_evaluations(session, request)
    alone, whole = [guess(asked, cell) for cell in cells], guess(asked, request)
    assert len(cells) == 8 and len({cell.seconds for cell in alone}) == 4
    for key in ("seconds", "work", "disk"):
        assert getattr(whole, key) == pytest.approx(sum(getattr(cell, key) for cell in alone)), key
    assert whole.basis == "the last similar job, the last 2 similar jobs"
    assert guess(asked, request.changed(models=[*models, {"base_id": "new"}])).seconds is None
    assert guess(asked, request.changed(temperatures=[])).seconds is None


@pytest.mark.parametrize(
    "changes", [{"state": "FAILED"}, {"attempt": 2}, {"shards": 4}, {"work": 0.0}, {"request": {"max_minutes": 1}}]
)
def test_a_job_whose_time_says_nothing_does_not_count(asked: Settings, changes: dict) -> None:
    before = guess(asked, ANSWERS)
    ran(asked, ANSWERS, 5000, **changes)
    after = guess(asked, ANSWERS)
    assert (after.seconds, after.basis) == (before.seconds, before.basis)


def test_each_job_keeps_what_it_was_estimated_at(asked: Settings) -> None:
    job = submit(ANSWERS, settings=asked)
    assert job.estimated_seconds == pytest.approx(guess(asked, ANSWERS).seconds) and job.work > 0
    file = asked.home / "a.jsonl"
    file.write_text('{"prompt": "x"}\n' * 100)
    assert 0.5 < submit(ImportPrompts(path=str(file)), settings=asked).estimated_seconds < 3


def test_an_endpoint_is_known_by_what_it_did(asked: Settings) -> None:
    request = GenerateData("prompts", endpoint="far", max_tokens=100)
    assert guess(asked, request).seconds is None and "endpoint" in guess(asked, request).basis
    ran(asked, request, START_SECONDS["gpu"] + 40, queue="io")
    assert guess(asked, request).seconds == pytest.approx(START_SECONDS["gpu"] + 40, rel=0.01)
    assert guess(asked, GenerateData("prompts", endpoint="other", max_tokens=100)).seconds is None


def test_a_training_says_its_steps(asked: Settings) -> None:
    assert guess(asked, Train("medusa", "base", "answers", {"max_steps": 7, "epochs": 0})).steps == 7
    assert guess(asked, Export(checkpoint_id="heads", format="vllm")).seconds == pytest.approx(3.1)


def test_what_a_training_measures_counts(asked: Settings) -> None:
    """At its end alone, or after each step as well; held out are 5 of 50, the EAGLE draft's chain has four passes."""

    def work(method: str, **settings) -> float:
        fixed = {"max_steps": 10, "epochs": 0, "batch_tokens": 100, "held_out": 0.1}
        return guess(asked, Train(method=method, base_id="base", dataset_id="answers", settings=fixed | settings)).work

    with writing(asked) as session:
        session.get_one(Dataset, "answers").report = {"tokens": 600, "answer_tokens": 500}
    draft = METHODS["eagle"].size(BaseShape.from_card(CARD), config_for("eagle", "", {}))
    at_the_end, nothing = work("eagle", eval_every=0), work("eagle", eval_every=0, held_out=0.0)
    assert at_the_end - nothing == pytest.approx(60 * 2 * draft.active_parameters * 4)
    assert work("eagle", eval_every=1) - at_the_end == pytest.approx(10 * (at_the_end - nothing))


def test_drafts_learn_as_fast_as_the_probe_says_of_float32(asked: Settings) -> None:
    """Where there is none of it, an older version wrote the probe."""
    request = Train(method="medusa", base_id="base", dataset_id="answers")
    older = {"operations_per_second": 1e9, "bytes_per_second": 1e12}
    (asked.home / PROBE).write_text(json.dumps(older))
    before = guess(asked, request).seconds
    told = older | {"learned_operations_per_second": 1e8, "learned_bytes_per_second": 1e12}
    (asked.home / PROBE).write_text(json.dumps(told))
    assert guess(asked, request).seconds > 5 * before


@pytest.mark.parametrize("batch", [64, 256, 512, 4096])
def test_steps_are_those_of_the_batches_that_a_training_makes(batch: int) -> None:
    """Which are not quite full: rows of like length share them."""
    draw = random.Random(0)
    rows = [[0] * draw.randint(60, 180) for _ in range(1000)]
    config = train_config("medusa", batch_tokens=batch, epochs=1, max_steps=0)
    tokens = sum(map(len, rows))
    found = sizes.steps(config, tokens, tokens / len(rows))
    assert found == pytest.approx(len(make_batches(rows, batch)), rel=0.15)
    assert sizes.steps(config.model_copy(update={"max_steps": 9}), tokens, 120) == 9


def test_a_recipe_counts_as_the_settings_it_stands_for(asked: Settings) -> None:
    """A page keeps the recipe's name and what differs from it."""
    settings = {name: value for name, value in load_recipe("medusa-smoke").items() if name != "method"}
    named, spelt = (
        guess(asked, Train("medusa", "base", "answers", *how)) for how in (({}, "medusa-smoke"), (settings,))
    )
    assert (named.steps, named.work, named.disk) == (spelt.steps, spelt.work, spelt.disk)
    assert named.work != guess(asked, Train(method="medusa", base_id="base", dataset_id="answers")).work
    without_epochs = Train("medusa", "base", "answers", {"epochs": 0}, "medusa-smoke")  # its recipe says when it ends
    assert submit(without_epochs, settings=asked).work > 0


def test_the_probe_measures_this_machine(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later start may find more than an earlier one, whose processor was busy; never less. Of small matrices here."""
    from models.runtime import speed
    from models.runtime.speed import measure_best

    for name, value in {"WIDTH": 1024, "MEMORY_LAYERS": 2}.items():
        monkeypatch.setattr(speed, name, value)
    file = tmp_path / PROBE
    measure_best(file, waits=(0.0, 0.0))
    first = json.loads(file.read_text())
    for kind in ("", "learned_"):
        assert first[f"{kind}operations_per_second"] > 1e9 and first[f"{kind}bytes_per_second"] > 1e8
    slow = "operations_per_second"
    file.write_text(json.dumps({name: 1.0 if name == slow else 1e18 for name in first}))
    measure_best(file, waits=(0.0,))
    again = json.loads(file.read_text())
    assert again.pop(slow) > 1e9 and set(again.values()) == {1e18}
    file.write_text("{half")
    measure_best(file, waits=(0.0,))
    assert set(json.loads(file.read_text())) == set(first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_the_smallest_base_takes_time_too(both: Settings, kind: str) -> None:
    """200 optimizer steps or 10,000 decoding steps of a base of a hundred parameters: not nothing."""
    with writing(both) as session:
        session.get_one(Base, "small").card = SMALLER | {"parameters": 100}
    assert guess(both, KINDS[kind]("small")).seconds > START_SECONDS["gpu"] + 1


def test_a_training_larger_than_the_device_is_refused_with_what_fits(asked: Settings) -> None:
    """On the GPU of the probe, or in the memory of a probed machine without one; not on a device that was chosen."""
    large = CARD | {"parameters": 8e9, "hidden_size": 4096, "layers": 32, "heads": 32, "vocabulary": 128_256}
    with writing(asked) as session:
        session.get_one(Base, "base").card = large
    request = Train("eagle3", "base", "answers", {"draft_vocab_size": 32_000, "base_dtype": "float32"})
    assert guess(asked, request).gpu_memory == 0 and not guess(asked, request).refusal  # not probed yet
    speeds = {"operations_per_second": 1e12, "bytes_per_second": 1e12}
    (asked.home / PROBE).write_text(json.dumps(speeds | {"gpu_bytes": 40e9}))
    found = guess(asked, request)
    assert found.gpu_memory > 40e9 and found.memory < 5e9
    with pytest.raises(
        BadInput, match=r"about 4\d\.\d GB on each GPU, which has 40\.0 GB; it would fit with base_dtype=b"
    ):
        submit(request, settings=asked)
    assert not guess(asked, request.changed(settings={**request.settings, "base_dtype": "default"})).refusal
    assert not guess(asked, request.changed(settings={**request.settings, "device": "cuda"})).refusal
    (asked.home / PROBE).write_text(json.dumps(speeds | {"gpu_bytes": 40e9, "gpus": 4}))
    divided = guess(asked, request)
    assert divided.training_memory.gpus == 2 and divided.gpu_memory < 40e9 and not divided.refusal
    assert guess(asked, request.changed(processes=2)).refusal, "each process on a GPU of its own"
    (asked.home / PROBE).write_text(json.dumps(speeds))
    with writing(asked) as session:
        session.get_one(Base, "base").card = large | {"parameters": 1e15}
    assert "this machine has" in guess(asked, request).refusal
