"""What each kind of job leaves behind when it is stopped, refused or has bad input. Runs in this process, tiny base."""

import importlib
import json
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from corpus.shards import read_rows
from models import trial
from models.base import load_tokenizer, read_eos_ids
from models.memory import model_bytes
from speculoos.errors import BadInput, Cancelled
from speculoos.settings import Settings, load
from tests.corpus.labelling_server import LabellingServer
from tests.models import hostile
from tests.models.gguf_file import write_gguf
from tests.tools.damage import cut, flip
from tracking import db, jobs, leases, reports
from tracking.shards import ShardPlan
from tracking.tables import Base, Dataset, Job
from training.batches import load_conversations
from training.resume_points import latest_undamaged_resume_point, save_resume_point
from workers.child import gpu_memory
from workers.child.context import JobContext
from workers.child.work import generate_data, import_prompts, measure, models, train
from workers.jobs.requests import (
    KINDS,
    Evaluate,
    FetchModel,
    GenerateData,
    GenerateShard,
    ImportAnswered,
    ImportPrompts,
    Request,
    Train,
)
from workers.jobs.submit import submit
from workers.timing import JobTiming

pytestmark = pytest.mark.integration

Begin = Callable[[Request], tuple[Any, JobContext]]


@pytest.fixture
def begin(home: Settings) -> Begin:
    """Submit a request and claim its job, as a worker would; returns the stored request and its context."""

    def start(request: Request) -> tuple[Any, JobContext]:
        job = submit(request, settings=home)
        with db.writing(home) as session:
            attempt = jobs.claim(session, job.id, "test", 60)
        return type(request)(**job.request), JobContext(home, job.id, attempt, JobTiming())

    return start


def row(context: JobContext, table: type, row_id: str) -> Any:
    with db.reading(context.settings) as session:
        return session.get_one(table, row_id)


def write_prompts(path: Path, count: int = 12) -> Path:
    path.write_text("".join(json.dumps({"prompt": f"number {n}"}) + "\n" for n in range(count)))
    return path


def imported(begin: Begin, path: Path) -> Dataset:
    request, context = begin(ImportPrompts(path=str(write_prompts(path))))
    import_prompts.run(request, context)
    return row(context, Dataset, request.dataset_id)


def fetched(begin: Begin, folder: Path) -> Base:
    request, context = begin(FetchModel(source="folder", location=str(folder)))
    models.run_fetch_model(request, context)
    return row(context, Base, request.base_id)


def test_a_folder_becomes_a_base_with_its_identity_and_card(begin: Begin, tiny_base: Path) -> None:
    base = fetched(begin, tiny_base)
    assert (base.state, base.path) == ("ready", str(tiny_base.resolve()))
    assert len(base.weights_sha256) == len(base.tokenizer_sha256) == 64
    assert base.card["layers"] == 4 and base.card["weights_sha256"] == base.weights_sha256


def test_an_upload_is_removed_once_it_is_imported_and_kept_when_it_is_not(begin: Begin, tmp_path: Path) -> None:
    good = write_prompts(tmp_path / "good.jsonl")
    request, context = begin(ImportPrompts(path=str(good), original_name="mine.jsonl", delete_after=True))
    assert import_prompts.run(request, context)["rows"] == 12
    assert not good.exists() and row(context, Dataset, request.dataset_id).name == "mine"
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{not json\n")
    request, context = begin(ImportPrompts(path=str(bad), delete_after=True))
    with pytest.raises(BadInput, match="line 1"):
        import_prompts.run(request, context)
    assert bad.exists() and row(context, Dataset, request.dataset_id).state == "pending"


def test_answered_conversations_become_data_that_can_be_trained_on(
    begin: Begin, tiny_base: Path, tmp_path: Path
) -> None:
    base, file = fetched(begin, tiny_base), tmp_path / "chats.jsonl"
    turns = [{"from": "human", "value": "the fox?"}, {"from": "gpt", "value": "lazy dog"}]
    rows = [{"conversations": turns, "finish": reason} for reason in ("stop", "length")]
    file.write_text("".join(json.dumps(each) + "\n" for each in [*rows, {"prompt": "alone"}]))
    request, context = begin(ImportAnswered(path=str(file), base_id=base.id))
    result = import_prompts.run(request, context)
    assert {key: result[key] for key in ("rows", "bad_rows", "cut_answers")} == {
        "rows": 2,
        "bad_rows": 1,
        "cut_answers": 1,
    }
    data = row(context, Dataset, request.dataset_id)
    assert (data.kind, data.state, data.base_id) == ("conversations", "ready", base.id)
    tokenizer = load_tokenizer(base.path)
    loaded, report = load_conversations(data.path, tokenizer, 64, tokenizer_sha256=base.tokenizer_sha256)
    assert report.loss_tokens == result["answer_tokens"] and len(loaded) == 2
    ended, cut = (tokenizer.decode(each.token_ids[each.mask].tolist()) for each in loaded)
    assert ended.startswith("lazy dog") and cut == "lazy dog" != ended, "no end of turn after a cut"
    with pytest.raises(BadInput, match="another tokenizer"):
        load_conversations(data.path, tokenizer, 64, tokenizer_sha256="0" * 64)
    assert (Path(data.path) / "preview.json").is_file()


def test_jobs_on_a_gpu_wait_for_their_memory_before_they_load(
    home: Settings, begin: Begin, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base, prompts = fetched(begin, tiny_base), imported(begin, tmp_path / "p.jsonl")
    estimates = []

    def wait(context: JobContext, devices: Iterable[object], estimate: Callable[[], float]) -> None:
        estimates.append(estimate())
        assert [str(device) for device in devices] == ["cpu"]
        raise Cancelled("Stopped while it waited.")

    for module in (gpu_memory, measure, train):
        monkeypatch.setattr(module, "wait_for_memory", wait)
    generation = GenerateData(source_id=prompts.id, base_id=base.id, max_tokens=4, batch_size=2)
    with db.writing(home) as session:
        answers = Dataset(name="answers", kind="conversations", state="ready", rows=prompts.rows, path=prompts.path)
        session.add(answers)
    training = Train(base_id=base.id, dataset_id=answers.id, method="medusa")
    for submitted in (generation, Evaluate(base_id=base.id, drafting={"drafter": "ngram"}), training):
        request, context = begin(submitted)
        with pytest.raises(Cancelled, match="while it waited"):
            request.run(context)
        with context.session() as session:
            leases.release(session, f"job:{context.job_id}")
    weights, cache = model_bytes(tiny_base, 4, gpu_memory.CACHE_TOKENS)
    assert estimates[1] == gpu_memory.MARGIN * (weights + cache) + gpu_memory.CONTEXT_BYTES
    assert gpu_memory.CONTEXT_BYTES < estimates[0] < estimates[1] and estimates[2] > weights > 10_000


def test_answers_made_before_a_stop_can_be_used_and_continued(
    begin: Begin, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lowered: list[str]
) -> None:
    base, prompts = fetched(begin, tiny_base), imported(begin, tmp_path / "p.jsonl")
    generation = GenerateData(source_id=prompts.id, base_id=base.id, max_tokens=4, batch_size=2)
    request, context = begin(generation)
    progress = context.progress

    def stop_after_four(done: int, *rest: Any) -> None:
        progress(done, *rest)
        if done >= 4:
            with db.writing(context.settings) as session:
                if not session.get_one(Job, context.job_id).cancel_requested:
                    jobs.request_cancel(session, context.job_id)
            context.flush()

    monkeypatch.setattr(context, "progress", stop_after_four)
    with pytest.raises(Cancelled, match=r"the \d+ finished rows can be used"):
        generate_data.run(request, context)
    assert lowered == ["cpu"], "a job leaves the pages their share of the CPU"
    data = row(context, Dataset, request.dataset_id)
    assert data.state == "ready" and 4 <= data.rows < 12 and data.report["complete"] is False
    assert data.report["lengths"] == [[32, data.rows]]
    before = {r["id"] for r in read_rows(data.path)}
    with db.writing(context.settings) as session:
        jobs.finish_cancelled(session, context.job_id, 1)
        jobs.retry(session, context.job_id)
        attempt = jobs.claim(session, context.job_id, "test", 60)
    next_context = JobContext(context.settings, context.job_id, attempt, JobTiming())
    assert generate_data.run(request, next_context)["rows"] == 12
    after = [r["id"] for r in read_rows(data.path)]
    assert before < set(after) and len(after) == len(set(after)) == 12, "every row once"
    assert row(next_context, Dataset, request.dataset_id).rows == 12


def test_a_worker_that_stops_leaves_the_answers_for_the_next_attempt(
    begin: Begin, tiny_base: Path, tmp_path: Path
) -> None:
    base, prompts = fetched(begin, tiny_base), imported(begin, tmp_path / "p.jsonl")
    request, context = begin(GenerateData(source_id=prompts.id, base_id=base.id, max_tokens=4, batch_size=2))
    context.interrupted.set()
    with pytest.raises(Cancelled):
        generate_data.run(request, context)
    assert row(context, Dataset, request.dataset_id).state == "pending", "not ready: it will go on by itself"


def test_an_extension_that_an_earlier_version_queued_is_refused(begin: Begin, tiny_base: Path, tmp_path: Path) -> None:
    base, prompts = fetched(begin, tiny_base), imported(begin, tmp_path / "p.jsonl")
    request, context = begin(GenerateData(source_id=prompts.id, base_id=base.id, max_tokens=4))
    with db.writing(context.settings) as session:
        session.get_one(Dataset, request.dataset_id).rows = 3
    with pytest.raises(BadInput, match="can no longer be extended"):
        generate_data.run(request, context)
    assert not list((context.settings.home / "datasets" / request.dataset_id).glob("shard-*"))


def test_an_unknown_endpoint_is_named_with_the_known_ones(begin: Begin, tmp_path: Path) -> None:
    prompts = imported(begin, tmp_path / "p.jsonl")
    request, context = begin(GenerateData(source_id=prompts.id, endpoint="team"))
    with pytest.raises(BadInput, match="no endpoint named 'team' in settings.toml; known are: none yet"):
        generate_data.run(request, context)


@pytest.mark.parametrize("shard_rows", [None, 5])
def test_answers_of_the_server_of_a_base_train_at_once_with_exact_labels(
    begin: Begin, home: Settings, tiny_base: Path, tmp_path: Path, shard_rows: int | None
) -> None:
    base, prompts = fetched(begin, tiny_base), imported(begin, tmp_path / "p.jsonl")
    tokenizer = load_tokenizer(base.path)
    with LabellingServer(tokenizer, "vllm") as server:
        table = ("[endpoints.it]", f'url = "{server.url}"', 'model = "m"', "concurrency = 2")
        (home.home / "settings.toml").write_text("\n".join(table) + "\n")
        generation = GenerateData(source_id=prompts.id, endpoint="it", base_id=base.id, shard_rows=shard_rows)
        request, context = begin(generation)
        context.settings = replace(context.settings, endpoints=load({"SPECULOOS_HOME": str(home.home)}).endpoints)
        result = generate_data.run(request, context)
        while isinstance(result, ShardPlan):
            for shard in result.shards:
                generate_data.run(GenerateShard(**shard.request), context)
            result = generate_data.run(request, context)
    data = row(context, Dataset, request.dataset_id)
    assert (data.state, data.rows, data.bad_rows, data.base_id) == ("ready", 12, 0, base.id)
    assert data.report["labels"] == {"exact": 12} and data.report["left_out"] == {}
    eos_ids = sorted(read_eos_ids(base.path, tokenizer))
    loaded, report = load_conversations(
        data.path, tokenizer, 256, eos_ids=eos_ids, tokenizer_sha256=base.tokenizer_sha256
    )
    assert report.mask_sources == {"tokens": 12} and (Path(data.path) / "preview.json").is_file()
    assert tokenizer.decode(loaded[0].token_ids[loaded[0].mask].tolist()).startswith("you said: number")
    if shard_rows is None:
        context.flush()
        with db.reading(home) as session:
            assert reports.generation_progress(session, context.job_id).rows == 12
            answers = reports.generation_samples(session, context.job_id, reports.ANSWERS, 9)
        assert len(answers) == 3 and answers[0]["text"].startswith("you said: number")


@pytest.mark.parametrize("shard_rows", [None, 5])
def test_a_generation_of_which_nothing_is_left_says_why(
    begin: Begin, home: Settings, tiny_base: Path, tmp_path: Path, shard_rows: int | None
) -> None:
    prompts = imported(begin, tmp_path / "p.jsonl")
    with LabellingServer(load_tokenizer(tiny_base), "vllm") as server:
        table = ("[endpoints.it]", f'url = "{server.url}"', 'model = "m"')
        (home.home / "settings.toml").write_text("\n".join(table) + "\n")
        options = {"max_tokens": 2, "drop_cut": True, "shard_rows": shard_rows}
        request, context = begin(GenerateData(source_id=prompts.id, endpoint="it", **options))
        context.settings = replace(context.settings, endpoints=load({"SPECULOOS_HOME": str(home.home)}).endpoints)
        with pytest.raises(BadInput, match="Every conversation was skipped: 12 cut"):
            while isinstance(result := generate_data.run(request, context), ShardPlan):
                for shard in result.shards:
                    generate_data.run(GenerateShard(**shard.request), context)
    assert row(context, Dataset, request.dataset_id).state == "pending"


def test_every_kind_of_request_has_its_work() -> None:
    for kind in KINDS:
        module, _, function = (kind.work or f"workers.child.work.{kind.kind}").partition(":")
        assert callable(getattr(importlib.import_module(module), function or "run"))


def test_a_refused_model_leaves_nothing_but_its_message(
    begin: Begin, home: Settings, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "TEMPLATE_SECONDS", 1.0)
    folder = hostile.copy(tiny_base, tmp_path / "foreign")
    (folder / "chat_template.jinja").write_text(hostile.ENDLESS)
    request, context = begin(FetchModel(source="folder", location=str(folder)))
    with pytest.raises(BadInput, match=r"foreign: chat_template\.jinja: .* did not end within 1 s; correct the chat"):
        models.run_fetch_model(request, context)
    file = write_gguf(folder, tmp_path / "foreign.gguf")
    request, context = begin(FetchModel(source="gguf", location=str(file)))
    with pytest.raises(BadInput, match=r"foreign\.gguf: chat_template\.jinja: .* did not end within 1 s"):
        models.run_fetch_model(request, context)
    assert list((home.home / "models").iterdir()) == []
    assert row(context, Base, request.base_id).state == "pending"  # the job's end marks it failed


def test_a_training_falls_back_to_the_newest_whole_state_and_its_log_says_so(begin: Begin, home: Settings) -> None:
    _request, context = begin(ImportPrompts(path="/nowhere"))
    folders = [home.home / "checkpoints" / "c" / f"attempt-{n}" for n in (2, 1)]
    for folder, steps in zip(folders, ((30,), (10, 20)), strict=True):
        for step in steps:
            save_resume_point(folder, {"w": torch.zeros(64)}, {"0.step": torch.zeros(1)}, {"step": step}, keep_last=2)

    def resume_point() -> Path | None:
        return latest_undamaged_resume_point(folders, lambda text: context.log(text, "warning"))

    assert resume_point() == folders[0] / "state-30"
    cut(folders[0] / "state-30" / "draft.safetensors")
    assert resume_point() == folders[1] / "state-20"
    flip(folders[1] / "state-20" / "optimizer.safetensors", 1)
    assert resume_point() == folders[1] / "state-10"
    cut(folders[1] / "state-10" / "state.json")
    assert resume_point() is None
    context.keep()
    with db.reading(home) as session:
        messages = [line.message for line in reports.logs(session, context.job_id)]
    assert messages[0].startswith("attempt-2/state-30 is damaged (draft.safetensors is damaged")
    assert messages[-1] == "No intact training state is left, so the training starts from the beginning."
