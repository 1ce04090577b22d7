"""Estimates depend on the request and on the speed of similar past jobs or of a probe; each job keeps its estimate."""

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
from workers.jobs.sizes import TEMPLATE_TOKENS, prompt_tokens, total_tokens
from workers.jobs.submit import submit

CARD = {"parameters": 1e8, "hidden_size": 64, "layers": 2, "heads": 4, "kv_heads": 2, "vocabulary": 1000}
ANSWERS = GenerateData("prompts", base_id="base", max_tokens=100)


@pytest.fixture
def filled(home: Settings, tmp_path) -> Settings:
    """A home with a base, a hundred prompts, fifty answers in a file and a checkpoint of 3 MB."""
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


def estimated(settings: Settings, request):
    with reading(settings) as session:
        return estimate(session, request, settings.home)


def add_finished_job(settings: Settings, request, seconds: float, /, **changes) -> None:
    """Add a finished job of this request that took `seconds`."""
    job = submit(request, settings=settings)
    with writing(settings) as session:
        row = session.get_one(Job, job.id)
        row.state, row.attempt, row.finished_at = "SUCCEEDED", 1, now()
        row.started_at = row.finished_at - timedelta(seconds=seconds)
        for key, value in changes.items():
            setattr(row, key, value)


def test_every_command_that_asks_for_a_job_estimates_it(
    filled: Settings, tmp_path, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --estimate a command prints the figures of the request and starts nothing."""
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": "x"}\n')
    folder = str(tmp_path / "answers")
    small, heads = {"limit": 3, "max_tokens": 16}, {"base_id": "base", "checkpoint_id": "heads"}
    commands = {
        f"models add {folder}": FetchModel(source="folder", location=folder),
        f"models add-draft {folder} --model tiny": ImportDraft(source="folder", location=folder, base_id="base"),
        f"data import {file}": ImportPrompts(path=str(file), original_name=file.name),
        f"data import {file} --answered --model tiny": ImportAnswered(str(file), file.name, base_id="base"),
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
        printed, expected = json.loads(capsys.readouterr().out), estimated(filled, request)
        assert printed["kind"] == request.kind, command
        assert printed["seconds"] == (None if expected.seconds is None else round(expected.seconds)), command
        assert (printed["disk_bytes"], printed["steps"]) == (round(expected.disk), expected.steps), command
    assert main(["train", "medusa", "--model", "tiny", "--data", "a", "--estimate"]) == 0
    output = capsys.readouterr().out
    assert "time" in output and "about 0:" in output and "memory" in output and "based on" in output
    assert main(["tune", "tiny@h", "--questions", "gone", "--estimate"]) == 2
    with reading(filled) as session:
        assert not list(session.scalars(select(Job)))
    kinds = {type(request) for request in commands.values()} | {Matrix, GenerateShard}
    assert kinds == set(KINDS_OF_JOBS), "a new kind of job needs --estimate too; matrix has its own"


def test_before_anything_ran_the_probe_says_how_fast(filled: Settings) -> None:
    first = estimated(filled, ANSWERS)
    assert first.seconds > START_SECONDS["gpu"] and "default values" in first.basis
    (filled.home / PROBE).write_text(json.dumps({"operations_per_second": 4e9, "bytes_per_second": 1e9}))
    slower = estimated(filled, ANSWERS)
    assert "probe" in slower.basis and slower.seconds > 10 * first.seconds
    assert estimated(filled, Evaluate(base_id="base", checkpoint_id="heads")).seconds > 60
    (filled.home / PROBE).write_text("{half")
    assert estimated(filled, ANSWERS).seconds == first.seconds


def test_a_similar_job_sets_the_pace_of_the_next(filled: Settings) -> None:
    """Twice the work takes twice the time. The latest three jobs count."""
    add_finished_job(filled, ANSWERS, START_SECONDS["gpu"] + 50)
    again = estimated(filled, ANSWERS)
    assert again.seconds == pytest.approx(START_SECONDS["gpu"] + 50, rel=0.01) and "last similar job" in again.basis
    longer = estimated(filled, GenerateData("prompts", base_id="base", max_tokens=100 + 160))
    assert longer.seconds == pytest.approx(START_SECONDS["gpu"] + 100, rel=0.01)
    for seconds in (500, 20, 20):
        add_finished_job(filled, ANSWERS, START_SECONDS["gpu"] + seconds)
    assert estimated(filled, ANSWERS).seconds == pytest.approx(START_SECONDS["gpu"] + 20, rel=0.01)
    assert "last 3" in estimated(filled, ANSWERS).basis


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
def two_bases(filled: Settings) -> Settings:
    """A home with a second base that has a thousandth of the parameters and its own answers, and a probe."""
    with writing(filled) as session:
        session.add(Base(id="small", name="s", source="folder", location="/y", path="/y", state="ready", card=SMALLER))
        session.flush()
        session.add(
            Dataset(id="small answers", name="sa", kind="conversations", state="ready", rows=50, base_id="small")
        )
    (filled.home / PROBE).write_text(json.dumps(MEASURED))
    return filled


@pytest.mark.parametrize("first", ["base", "small"])
@pytest.mark.parametrize("kind", KINDS)
def test_ten_jobs_of_a_base_of_another_size_leave_the_estimate_to_the_probe(
    two_bases: Settings, kind: str, first: str
) -> None:
    """Their time is mostly start-up, or the minimum of a step however small the base."""
    request = KINDS[kind]("small" if first == "base" else "base")
    fresh = estimated(two_bases, request)
    for number in range(10):
        add_finished_job(two_bases, KINDS[kind](first), 8.0 + 3 * number if first == "small" else 500.0 + number)
    after = estimated(two_bases, request)
    assert after.basis == fresh.basis and fresh.seconds / 2 < after.seconds < fresh.seconds * 2


def test_the_probe_bounds_what_jobs_of_the_same_base_say(two_bases: Settings) -> None:
    """A suspended machine or a changed clock leads to no estimate of days."""
    fresh = estimated(two_bases, ANSWERS).seconds - START_SECONDS["gpu"]
    add_finished_job(two_bases, ANSWERS, 1e6)
    assert estimated(two_bases, ANSWERS).seconds == pytest.approx(START_SECONDS["gpu"] + fresh * MAX_FACTOR, rel=0.01)


def test_a_job_that_is_nearly_all_start_says_nothing_of_the_pace(two_bases: Settings) -> None:
    fresh = estimated(two_bases, ANSWERS)
    add_finished_job(two_bases, ANSWERS.changed(limit=1, max_tokens=8), 10)
    after = estimated(two_bases, ANSWERS)
    assert after.basis == fresh.basis and after.seconds == fresh.seconds


def test_an_evaluation_that_asked_again_teaches_the_pace_of_one_pass(two_bases: Settings) -> None:
    request = Evaluate(base_id="base", checkpoint_id="heads")
    fresh = estimated(two_bases, request).seconds - START_SECONDS["gpu"]
    add_finished_job(two_bases, request, START_SECONDS["gpu"] + 3 * fresh)
    with writing(two_bases) as session:
        job = session.scalars(select(Job)).one()
        session.get_one(Evaluation, job.request["evaluation_id"]).result = {"passes": 3}
    assert estimated(two_bases, request).seconds == pytest.approx(START_SECONDS["gpu"] + fresh, rel=0.01)


def test_an_evaluation_counts_its_tokens(filled: Settings) -> None:
    """Drafted steps count too if there is a drafter."""

    def work(limit: int, **changes) -> float:
        return estimated(
            filled, Evaluate("base", **{"checkpoint_id": "heads", "limit": limit, "max_tokens": 10} | changes)
        ).work

    assert work(10) == pytest.approx(10 * work(1))
    assert work(1, checkpoint_id="") == pytest.approx(work(1) / STEPS_PER_TOKEN)
    assert work(1, checkpoint_id="", drafting={"drafter": "ngram"}) == work(1)


def test_a_replay_counts_answers_alone_and_half_a_step_for_each_token(filled: Settings) -> None:
    with writing(filled) as session:
        for name, report in (("generated", {"tokens": 800}), ("imported", {"tokens": 2000, "answer_tokens": 800})):
            session.add(Dataset(id=name, name=name, kind="conversations", state="ready", rows=8, report=report))
    weights = estimated(filled, Evaluate("base", limit=1, max_tokens=1)).work
    for data in ("generated", "imported"):
        assert estimated(filled, ReplayRequest("base", "heads", data, limit=4)).work == pytest.approx(
            400 * weights * REPLAY_STEPS
        )


def test_a_plan_for_many_sequences_takes_longer_than_for_one(filled: Settings) -> None:
    one, many = (estimated(filled, PlanRequest("base", batches=batches)).work for batches in ([1], [1, 16]))
    assert many == pytest.approx(one * (4 + 19) / 4)


def test_a_matrix_takes_what_its_cells_take_alone(filled: Settings) -> None:
    """Two bases with past jobs of their own, and a suite of several turns. A base without a card makes it unknown."""
    with writing(filled) as session:
        session.add(Base(id="far", name="far", source="folder", location="/y", path="/y", state="ready", card=CARD))
        session.add(Base(id="new", name="new", source="folder", location="/z", path="/z", state="ready"))
        report = {"turns": {"1": 3, "2": 3}}
        session.add(Dataset(id="suite", name="s", kind="prompts", state="ready", rows=6, report=report))
    models = [{"base_id": "base", "checkpoint_id": "heads"}, {"base_id": "far"}]
    for model, seconds in ((models[0], 300), (models[1], 600), (models[1], 600)):
        add_finished_job(filled, Evaluate(**model), START_SECONDS["gpu"] + seconds)
    request = Matrix(models, suites=["", "suite"], temperatures=[0.0, 1.0], limit=10, max_tokens=10)
    with reading(filled) as session:
        cells = matrix.matrix_evaluations(session, request)
    alone, whole = [estimated(filled, cell) for cell in cells], estimated(filled, request)
    assert len(cells) == 8 and len({cell.seconds for cell in alone}) == 4
    for key in ("seconds", "work", "disk"):
        assert getattr(whole, key) == pytest.approx(sum(getattr(cell, key) for cell in alone)), key
    assert whole.basis == "the last similar job, the last 2 similar jobs"
    assert estimated(filled, request.changed(models=[*models, {"base_id": "new"}])).seconds is None
    assert estimated(filled, request.changed(temperatures=[])).seconds is None


@pytest.mark.parametrize(
    "changes", [{"state": "FAILED"}, {"attempt": 2}, {"shards": 4}, {"work": 0.0}, {"request": {"max_minutes": 1}}]
)
def test_a_job_whose_time_says_nothing_does_not_count(filled: Settings, changes: dict) -> None:
    before = estimated(filled, ANSWERS)
    add_finished_job(filled, ANSWERS, 5000, **changes)
    after = estimated(filled, ANSWERS)
    assert (after.seconds, after.basis) == (before.seconds, before.basis)


def test_each_job_keeps_what_it_was_estimated_at(filled: Settings) -> None:
    job = submit(ANSWERS, settings=filled)
    assert job.estimated_seconds == pytest.approx(estimated(filled, ANSWERS).seconds) and job.work > 0
    file = filled.home / "a.jsonl"
    file.write_text('{"prompt": "x"}\n' * 100)
    assert 0.5 < submit(ImportPrompts(path=str(file)), settings=filled).estimated_seconds < 3


def test_long_prompts_take_longer_and_more_memory(filled: Settings) -> None:
    training = Train(method="medusa", base_id="base", dataset_id="answers", settings={"max_length": 8192})
    short, trained = estimated(filled, ANSWERS), estimated(filled, training)
    with writing(filled) as session:
        prompts = session.get_one(Dataset, "prompts")
        prompts.report = {"characters": 100 * 2 * 8000, "turns": {"2": 100}}
        session.get_one(Dataset, "answers").source_id = "prompts"
        turn = 8000 / 4 + TEMPLATE_TOKENS
        assert prompt_tokens(prompts) == turn
        assert total_tokens(session, session.get_one(Dataset, "answers"), 50) == 50 * (256 + 2 * turn)
    long = estimated(filled, ANSWERS)
    assert long.seconds > 5 * short.seconds and long.memory > short.memory
    assert estimated(filled, training).seconds > trained.seconds
    with writing(filled) as session:
        session.get_one(Dataset, "prompts").report = {"characters": 100 * 120}
    assert estimated(filled, ANSWERS).seconds == pytest.approx(short.seconds)


def test_an_endpoint_is_estimated_from_its_past_jobs(filled: Settings) -> None:
    request = GenerateData("prompts", endpoint="far", max_tokens=100)
    assert estimated(filled, request).seconds is None and "endpoint" in estimated(filled, request).basis
    add_finished_job(filled, request, START_SECONDS["gpu"] + 40, queue="io")
    assert estimated(filled, request).seconds == pytest.approx(START_SECONDS["gpu"] + 40, rel=0.01)
    assert estimated(filled, GenerateData("prompts", endpoint="other", max_tokens=100)).seconds is None


def test_a_training_says_its_steps(filled: Settings) -> None:
    assert estimated(filled, Train("medusa", "base", "answers", {"max_steps": 7, "epochs": 0})).steps == 7
    assert estimated(filled, Export(checkpoint_id="heads", format="vllm")).seconds == pytest.approx(3.1)


def test_what_a_training_measures_counts(filled: Settings) -> None:
    """At the end alone, or after each step too. 5 of 50 rows are held out; the EAGLE draft's chain has four passes."""

    def work(method: str, **settings) -> float:
        fixed = {"max_steps": 10, "epochs": 0, "batch_tokens": 100, "held_out": 0.1}
        return estimated(
            filled, Train(method=method, base_id="base", dataset_id="answers", settings=fixed | settings)
        ).work

    with writing(filled) as session:
        session.get_one(Dataset, "answers").report = {"tokens": 600, "answer_tokens": 500}
    draft = METHODS["eagle"].size(BaseShape.from_card(CARD), config_for("eagle", "", {}))
    at_the_end, nothing = work("eagle", eval_every=0), work("eagle", eval_every=0, held_out=0.0)
    assert at_the_end - nothing == pytest.approx(60 * 2 * draft.active_parameters * 4)
    assert work("eagle", eval_every=1) - at_the_end == pytest.approx(10 * (at_the_end - nothing))


def test_drafts_learn_as_fast_as_the_probe_says_of_float32(filled: Settings) -> None:
    """A probe of an older version has no float32 figures."""
    request = Train(method="medusa", base_id="base", dataset_id="answers")
    older = {"operations_per_second": 1e9, "bytes_per_second": 1e12}
    (filled.home / PROBE).write_text(json.dumps(older))
    before = estimated(filled, request).seconds
    newer = older | {"learned_operations_per_second": 1e8}
    (filled.home / PROBE).write_text(json.dumps(newer))
    assert estimated(filled, request).seconds > 5 * before


@pytest.mark.parametrize("batch", [64, 256, 512, 4096])
def test_steps_are_those_of_the_batches_that_a_training_makes(batch: int) -> None:
    """The batches are not quite full: rows of similar length share them."""
    rng = random.Random(0)
    rows = [[0] * rng.randint(60, 180) for _ in range(1000)]
    config = train_config("medusa", batch_tokens=batch, epochs=1, max_steps=0)
    tokens = sum(map(len, rows))
    steps = sizes.steps(config, tokens, tokens / len(rows))
    assert steps == pytest.approx(len(make_batches(rows, batch)), rel=0.15)
    assert sizes.steps(config.model_copy(update={"max_steps": 9}), tokens, 120) == 9


def test_a_recipe_counts_as_the_settings_it_stands_for(filled: Settings) -> None:
    """A page stores the recipe's name and the settings that differ from it."""
    settings = {name: value for name, value in load_recipe("medusa-smoke").items() if name != "method"}
    named, spelt = (
        estimated(filled, Train("medusa", "base", "answers", *arguments))
        for arguments in (({}, "medusa-smoke"), (settings,))
    )
    assert (named.steps, named.work, named.disk) == (spelt.steps, spelt.work, spelt.disk)
    assert named.work != estimated(filled, Train(method="medusa", base_id="base", dataset_id="answers")).work
    without_epochs = Train("medusa", "base", "answers", {"epochs": 0}, "medusa-smoke")  # its recipe says when it ends
    assert submit(without_epochs, settings=filled).work > 0


def test_the_probe_measures_this_machine(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later probe may raise the figures, since the processor may have been busy, but never lowers them."""
    from models.runtime import speed
    from models.runtime.speed import measure_best

    for name, value in {"WIDTH": 1024, "MEMORY_LAYERS": 2}.items():
        monkeypatch.setattr(speed, name, value)
    file = tmp_path / PROBE
    measure_best(file, waits=(0.0, 0.0))
    first = json.loads(file.read_text())
    assert first["operations_per_second"] > 1e9 and first["learned_operations_per_second"] > 1e9
    assert first["bytes_per_second"] > 1e8
    slow_key = "operations_per_second"
    file.write_text(json.dumps({name: 1.0 if name == slow_key else 1e18 for name in first}))
    measure_best(file, waits=(0.0,))
    again = json.loads(file.read_text())
    assert again.pop(slow_key) > 1e9 and set(again.values()) == {1e18}
    file.write_text("{half")
    measure_best(file, waits=(0.0,))
    assert set(json.loads(file.read_text())) == set(first)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_of_the_smallest_base_takes_time_too(two_bases: Settings, kind: str) -> None:
    """200 optimizer steps or 10,000 decoding steps of a base of a hundred parameters take more than a second."""
    with writing(two_bases) as session:
        session.get_one(Base, "small").card = SMALLER | {"parameters": 100}
    assert estimated(two_bases, KINDS[kind]("small")).seconds > START_SECONDS["gpu"] + 1


def test_a_training_larger_than_the_device_is_refused_with_what_fits(filled: Settings) -> None:
    """On the GPU of the probe, or in the memory of a probed machine without one; not on a chosen device."""
    large = CARD | {"parameters": 8e9, "hidden_size": 4096, "layers": 32, "heads": 32, "vocabulary": 128_256}
    with writing(filled) as session:
        session.get_one(Base, "base").card = large
    request = Train("eagle3", "base", "answers", {"draft_vocab_size": 32_000, "base_dtype": "float32"})
    assert estimated(filled, request).gpu_memory == 0 and not estimated(filled, request).refusal  # not probed yet
    speeds = {"operations_per_second": 1e12, "bytes_per_second": 1e12}
    (filled.home / PROBE).write_text(json.dumps(speeds | {"gpu_bytes": 40e9}))
    needed = estimated(filled, request)
    assert needed.gpu_memory > 40e9 and needed.memory < 5e9
    with pytest.raises(
        BadInput, match=r"about 4\d\.\d GB on each GPU, which has 40\.0 GB; it would fit with base_dtype=b"
    ):
        submit(request, settings=filled)
    assert not estimated(filled, request.changed(settings={**request.settings, "base_dtype": "default"})).refusal
    assert not estimated(filled, request.changed(settings={**request.settings, "device": "cuda"})).refusal
    (filled.home / PROBE).write_text(json.dumps(speeds | {"gpu_bytes": 40e9, "gpus": 4}))
    divided = estimated(filled, request)
    assert divided.training_memory.gpus == 2 and divided.gpu_memory < 40e9 and not divided.refusal
    assert estimated(filled, request.changed(processes=2)).refusal, "each process on a GPU of its own"
    (filled.home / PROBE).write_text(json.dumps(speeds))
    with writing(filled) as session:
        session.get_one(Base, "base").card = large | {"parameters": 1e15}
    assert "this machine has" in estimated(filled, request).refusal
