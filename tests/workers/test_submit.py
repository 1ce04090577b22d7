"""Submitting: output rows and names, dependencies between jobs, checks before anything is stored, clone and retry."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError, Unsupported
from speculoos.settings import Settings
from tracking import changes, db, jobs, queries
from tracking.tables import Base, Checkpoint, Dataset, Experiment, Job
from workers.jobs import submit as submitting
from workers.jobs.guided import submit_quickstart
from workers.jobs.requests import REQUESTS, Evaluate, FetchModel, GenerateData, ImportPrompts, Request, Train, from_json
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

Submit = Callable[..., Job]


@pytest.fixture
def offline(home: Settings, tmp_path: Path) -> Settings:
    """A home without a broker: every submit must still work."""
    return replace(home, redis_url=f"redis+socket://{tmp_path}/none.sock")


@pytest.fixture
def ready(offline: Settings) -> dict[str, str]:
    """Ids of a ready base, prompt set and conversations."""
    with db.writing(offline) as session:
        rows = [
            Base(name="tiny", source="folder", location="/x", path="/x", state="ready"),
            Dataset(name="prompts", kind="prompts", path="/p", state="ready"),
            Dataset(name="answers", kind="conversations", path="/a", state="ready"),
        ]
        session.add_all(rows)
        session.flush()
        return {row.name: row.id for row in rows}


def test_a_submitted_job_is_stored_with_its_output_even_without_a_broker(offline: Settings) -> None:
    job = submit(ImportPrompts(path="/tmp/my file.jsonl"), settings=offline, experiment="first")
    assert (job.state, job.queue, job.kind, job.published_at) == ("QUEUED", "io", "import_prompts", None)
    with db.reading(offline) as session:
        row = session.get_one(Dataset, job.request["dataset_id"])
        assert (row.name, row.state, row.job_id, row.kind) == ("my file", "pending", job.id, "prompts")
        assert session.get_one(Experiment, job.experiment_id).name == "first" == job_experiment(session, row)
    assert job.name == "Import my file"


def job_experiment(session: Any, row: Dataset) -> str:
    return session.get_one(Experiment, row.experiment_id).name


def test_a_row_that_never_held_anything_is_in_no_list_gives_its_name_and_is_filled_by_a_retry(
    offline: Settings, ready: dict[str, str]
) -> None:
    def listed() -> list[str]:
        with db.reading(offline) as session:
            return [row.name for row in (*queries.datasets(session), *queries.checkpoints(session))]

    before = listed()
    imported = submit(ImportPrompts(path="/tmp/a.jsonl"), name="mine", settings=offline)
    training = submit(Train("medusa", ready["tiny"], ready["answers"]), name="heads", settings=offline)
    assert sorted(listed()) == sorted([*before, "mine", "heads"])
    for job in (imported, training):
        submitting.request_cancel(job.id, offline)
    assert listed() == before
    with db.reading(offline) as session, pytest.raises(NotFound, match="known are (?!.*mine)"):
        queries.find_dataset(session, "other")
    again = submit(ImportPrompts(path="/tmp/a.jsonl"), name="mine", settings=offline)
    retried = submitting.retry(imported.id, offline)
    assert retried.request["dataset_id"] == imported.request["dataset_id"]
    assert sorted(listed()) == sorted([*before, "mine", "mine (not finished)"])
    for job in (again, imported):
        submitting.request_cancel(job.id, offline)
    with db.writing(offline) as session:
        assert changes.dependents(session, session.get_one(Job, training.id)) == []
        changes.delete(session, offline, session.get_one(Job, training.id))
        assert session.get(Checkpoint, training.request["checkpoint_id"]) is None, "it goes with its job"


def test_default_names_get_a_number_and_chosen_ones_must_be_free(offline: Settings) -> None:
    request = ImportPrompts(path="/tmp/a.jsonl")
    imports = [submit(request, settings=offline) for _ in range(3)]
    assert [job.name for job in imports] == ["Import a", "Import a-2", "Import a-3"]
    with pytest.raises(Conflict, match="'a-2'"):
        submit(request, name="a-2", settings=offline)
    with db.reading(offline) as session:
        assert session.query(Job).count() == 3, "a refused request leaves nothing"
    suggested = [submit(request, like="mine", settings=offline) for _ in range(2)]
    assert [job.name for job in suggested] == ["Import mine", "Import mine-2"]


def test_sizes_that_do_not_fit_the_base_are_refused_at_submit(offline: Settings, ready: dict[str, str]) -> None:
    with db.writing(offline) as session:
        card = {"layers": 4, "hidden_size": 32, "heads": 4, "kv_heads": 2, "max_length": 512}
        session.get_one(Base, ready["tiny"]).card = card
    for settings, message in (
        ({"draft_num_layers": 5}, "draft_num_layers: expected 1 to 4 for this base, got 5"),
        ({"draft_hidden_size": 64}, "draft_hidden_size: pruning this base gives at most 32, got 64"),
        ({"max_length": 513}, "max_length: this base takes at most 512 tokens, got 513"),
    ):
        with pytest.raises(BadInput, match=message):
            submit(Train("draft", ready["tiny"], ready["answers"], settings), settings=offline)
    existing_draft = {"draft_path": "/x", "draft_num_layers": 5}  # an existing draft keeps its shape
    assert submit(Train("draft", ready["tiny"], ready["answers"], existing_draft), settings=offline).state == "QUEUED"


def test_every_quickstart_gives_its_checkpoint_a_short_name_of_its_own(
    offline: Settings, ready: dict[str, str]
) -> None:
    chains = [submit_quickstart(offline, "tiny") for _ in range(2)]
    with db.reading(offline) as session:
        names = [session.get_one(Checkpoint, chain.checkpoint_id).name for chain in chains]
    assert names == ["guided", "guided-2"]


def test_a_job_waits_for_whatever_makes_its_inputs(offline: Settings, ready: dict[str, str]) -> None:
    prompts = submit(ImportPrompts(path="/tmp/a.jsonl"), settings=offline)
    answers = submit(GenerateData(source_id=prompts.request["dataset_id"], base_id=ready["tiny"]), settings=offline)
    request = Train(method="medusa", base_id=ready["tiny"], dataset_id=answers.request["dataset_id"])
    trained = submit(request, settings=offline)
    checkpoint_id = trained.request["checkpoint_id"]
    measured = submit(Evaluate(base_id=ready["tiny"], checkpoint_id=checkpoint_id), settings=offline)
    assert [j.after_id for j in (prompts, answers, trained, measured)] == [None, prompts.id, answers.id, trained.id]
    assert measured.name == f"Evaluate tiny@medusa-{answers.name.removeprefix('Generate ')}"


def test_a_training_waits_for_one_of_its_sets_and_no_more(offline: Settings, ready: dict[str, str]) -> None:
    first, second = (submit(ImportPrompts(path=f"/tmp/{name}.jsonl"), settings=offline) for name in "ab")
    generations = [
        submit(GenerateData(source_id=job.request["dataset_id"], base_id=ready["tiny"]), settings=offline)
        for job in (first, second)
    ]
    one, other = (job.request["dataset_id"] for job in generations)
    request = Train(method="medusa", base_id=ready["tiny"], dataset_id=ready["answers"], more_dataset_ids=[one])
    assert submit(request, settings=offline).after_id == generations[0].id
    with pytest.raises(Conflict, match="wait until all but one are ready"):
        submit(request.changed(more_dataset_ids=[one, other]), settings=offline)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"base_id": "f" * 32}, NotFound, "model"),
        ({"dataset_id": "f" * 32}, NotFound, "dataset"),
        ({"settings": {"lr": "fast"}}, BadInput, "lr"),
        ({"settings": {"speed": 3}}, BadInput, "speed"),
        ({"method": "magic"}, BadInput, "method"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_stored(
    offline: Settings, ready: dict[str, str], change: dict[str, Any], error: type[SpeculoosError], message: str
) -> None:
    good = Train(method="medusa", base_id=ready["tiny"], dataset_id=ready["answers"])
    with pytest.raises(error, match=message):
        submit(good.changed(**change), settings=offline)
    with db.reading(offline) as session:
        assert session.query(Job).count() == 0 and session.query(Checkpoint).count() == 0


def test_an_input_whose_job_failed_is_refused_with_the_way_out(offline: Settings, ready: dict[str, str]) -> None:
    job = submit(ImportPrompts(path="/tmp/a.jsonl"), settings=offline)
    with db.writing(offline) as session:
        attempt = jobs.claim(session, job.id, "me", 30)
        jobs.fail(session, job.id, attempt, "bad_input", "no prompt")
    with pytest.raises(Conflict, match="retry the job that makes it"):
        submit(GenerateData(source_id=job.request["dataset_id"], base_id=ready["tiny"]), settings=offline)
    assert submitting.retry(job.id, offline).state == "QUEUED"
    generation = submit(GenerateData(source_id=job.request["dataset_id"], base_id=ready["tiny"]), settings=offline)
    assert generation.after_id == job.id


def test_generation_needs_someone_who_answers(offline: Settings, ready: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="the model that generates"):
        submit(GenerateData(source_id=ready["prompts"]), settings=offline)
    job = submit(GenerateData(source_id=ready["prompts"], endpoint="team"), settings=offline)
    assert job.queue == "io", "an endpoint needs no device"


def test_a_clone_asks_the_same_with_an_output_of_its_own(offline: Settings, ready: dict[str, str]) -> None:
    request = Train(method="medusa", base_id=ready["tiny"], dataset_id=ready["answers"], settings={"lr": 0.1})
    first = submit(request, name="heads", settings=offline)
    second = submitting.clone(first.id, settings=offline)
    assert second.request["settings"] == {"lr": 0.1}
    assert second.request["checkpoint_id"] != first.request["checkpoint_id"]
    with db.reading(offline) as session:
        assert queries.find_checkpoint(session, "tiny@medusa-answers").job_id == second.id


def test_the_name_starter_belongs_to_the_starter(offline: Settings) -> None:
    with pytest.raises(Conflict, match="starter"):
        submit(FetchModel(source="hub", location="a/b"), name="starter", settings=offline)
    job = submit(FetchModel(source="hub", location="Org/Model-1.5B"), settings=offline)
    assert job.name == "Add Org/Model-1.5B"
    folder = submit(FetchModel(source="folder", location="/models/Model-1.5B/"), settings=offline)
    assert folder.name == "Add Model-1.5B"


def test_the_starter_is_submitted_once_and_a_folder_of_its_name_gets_another(offline: Settings, tmp_path: Path) -> None:
    submit(FetchModel(source="starter", location="starter"), settings=offline)
    with pytest.raises(Conflict, match="starter"):
        submit(FetchModel(source="starter", location="starter"), settings=offline)
    folder = submit(FetchModel(source="folder", location=str(tmp_path / "starter")), settings=offline)
    assert folder.name == "Add starter-2"


@pytest.mark.parametrize("request_", [Train("medusa", "b", "d"), Evaluate("b"), ImportPrompts("p", limit=3)])
def test_requests_survive_their_rows(request_: Request) -> None:
    assert from_json(request_.kind, request_.to_json()) == request_


@pytest.mark.parametrize(
    ("kind", "field"),
    [("generate_data", "unique"), ("generate_shard", "unique"), ("plan", "draft_hidden_size")],
)
def test_fields_of_earlier_versions_are_ignored(kind: str, field: str) -> None:
    row = REQUESTS[kind]("d1", "b1").to_json()
    assert from_json(kind, {**row, field: 1}).to_json() == row


def test_unknown_kinds_and_fields_are_bad_input() -> None:
    with pytest.raises(BadInput, match="Unknown kind of job"):
        from_json("mine_coins", {})
    with pytest.raises(BadInput, match="unknown field"):
        from_json("evaluate", {"base_id": "b", "shell": "rm"})
    assert set(REQUESTS) >= {"fetch_model", "import_prompts", "generate_data", "train", "evaluate"}


def test_a_training_on_prompts_is_refused(offline: Settings, ready: dict[str, str]) -> None:
    with pytest.raises(BadInput, match="has prompts only; generate responses first"):
        submit(Train("medusa", ready["tiny"], ready["prompts"]), settings=offline)


def test_a_system_prompt_for_a_base_without_a_chat_template_is_refused(
    offline: Settings, ready: dict[str, str]
) -> None:
    with db.writing(offline) as session:
        session.get_one(Base, ready["tiny"]).card = {"chat_template": False}
    local = GenerateData(source_id=ready["prompts"], base_id=ready["tiny"], system_prompt="Be brief.")
    served = local.changed(endpoint="mine", api="completions")
    for request in (local, served):
        with pytest.raises(Unsupported, match="“tiny” has no chat template, so it cannot take a system prompt"):
            submit(request, settings=offline)
    with db.reading(offline) as session:
        assert not session.query(Job).count()
    submit(local.changed(system_prompt=""), settings=offline)
    submit(local.changed(endpoint="mine"), settings=offline)


@pytest.mark.parametrize(("layers", "kinds"), [(4, ["train", "evaluate"]), (7, ["train", "evaluate", "export"])])
def test_a_guided_run_exports_what_servers_can_load_once_it_is_measured(
    offline: Settings, ready: dict[str, str], layers: int, kinds: list[str]
) -> None:
    """With fewer than seven layers the three that EAGLE-3 reads by default are not distinct."""
    with db.writing(offline) as session:
        base = session.get_one(Base, ready["tiny"])
        base.card = {**(base.card or {}), "layers": layers}
    chain = submit_quickstart(offline, "tiny")
    with db.reading(offline) as session:
        created = [session.get_one(Job, job_id) for job_id in chain.job_ids]
        assert [job.kind for job in created][-len(kinds) :] == kinds
        assert created[-1].after_id == created[-2].id, "beside an evaluation it would slow it down"
