"""Names, references, deletion and its messages, the starter's row, and the zip of a checkpoint."""

import hashlib
import json
import tracemalloc
import zipfile
from pathlib import Path

import pytest

from models import archive
from ops.starter import ensure_starter
from speculoos.checksums import checksums_text
from speculoos.errors import BadInput, Conflict, NotFound
from speculoos.settings import Settings
from tracking import changes, db, names, queries
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Job


@pytest.fixture
def ids(database: Settings) -> dict[str, str]:
    """Two bases with a checkpoint of the same name, on data that came from prompts. Ids by name."""
    with db.writing(database) as session:
        one = Base(name="one", source="folder", location="/x", state="ready")
        two = Base(name="two", source="folder", location="/y")
        session.add_all([one, two])
        session.flush()
        prompts = Dataset(name="prompts", kind="prompts", state="ready")
        session.add(prompts)
        session.flush()
        answers = Dataset(name="answers", kind="conversations", source_id=prompts.id, base_id=one.id, state="ready")
        session.add(answers)
        session.flush()
        heads = Checkpoint(name="heads", method="medusa", base_id=one.id, dataset_id=answers.id, state="ready")
        other = Checkpoint(name="heads", method="medusa", base_id=two.id)
        session.add_all([heads, other])
        session.flush()
        evaluation = Evaluation(name="eval", base_id=one.id, checkpoint_id=heads.id)
        session.add(evaluation)
        session.flush()
        rows = {"one": one, "two": two, "prompts": prompts, "answers": answers, "heads": heads, "eval": evaluation}
        return {name: row.id for name, row in rows.items()}


def test_models_are_found_as_base_or_base_at_checkpoint(database: Settings, ids: dict[str, str]) -> None:
    with db.reading(database) as session:
        assert queries.find_model(session, "one")[0].id == ids["one"]
        base, checkpoint = queries.find_model(session, "one@heads")
        assert (base.id, checkpoint.id) == (ids["one"], ids["heads"])
        assert queries.model_name(session, base.id, checkpoint.id) == "one@heads"
        assert queries.find_checkpoint(session, ids["heads"]).name == "heads"
        assert queries.find_checkpoint(session, "heads", base_id=ids["one"]).id == ids["heads"]
        with pytest.raises(BadInput, match="MODEL@heads"):
            queries.find_checkpoint(session, "heads")
        with pytest.raises(NotFound, match="no model 'three'; known are two, one"):
            queries.find_model(session, "three")
        with pytest.raises(NotFound, match="no draft 'one@hats'"):
            queries.find_model(session, "one@hats")


def test_a_base_that_is_not_ready_is_refused(database: Settings, ids: dict[str, str]) -> None:
    with db.reading(database) as session:
        queries.must_be_ready(queries.find_base(session, "one"))
        with pytest.raises(Conflict, match="still being created"):
            queries.must_be_ready(queries.find_base(session, "two"))


@pytest.mark.parametrize("name", ["", "  ", "a@b", "tab\there", "x" * 121, ":heads", "a:ngram", " a:mtp "])
def test_names_that_would_confuse_are_refused(name: str) -> None:
    with pytest.raises(BadInput):
        names.check_name(name)
    assert names.check_name(allowed := names.to_allowed_name(name[:120])) == allowed


def test_generated_names_are_free_and_allowed(database: Settings, ids: dict[str, str]) -> None:
    with db.reading(database) as session:
        assert names.free_name(session, Dataset, "prompts") == "prompts-2"
        assert names.free_name(session, Dataset, "new one") == "new one"
        assert names.free_name(session, Checkpoint, "heads", ids["one"]) == "heads-2"
        assert names.free_name(session, Dataset, "we@ird\n") == "we-ird"
        assert names.free_name(session, Base, "qwen:mtp") == "qwen-mtp"
        assert names.free_name(session, Base, "qwen:4b") == "qwen:4b"
        with pytest.raises(Conflict, match="dataset named 'prompts'"):
            names.check_free_name(session, Dataset, "prompts")


def test_renaming_keeps_names_unique_and_the_starter_itself(database: Settings, ids: dict[str, str]) -> None:
    with db.writing(database) as session:
        data = queries.find_dataset(session, "prompts")
        changes.rename(session, data, "  questions ")
        changes.set_note(session, data, " from MT-Bench ")
        assert (data.name, data.note) == ("questions", "from MT-Bench")
        with pytest.raises(Conflict):
            changes.rename(session, data, "answers")
        with pytest.raises(Conflict, match="same weights"):
            changes.rename(session, queries.find_base(session, "one"), "starter")


def test_deletion_names_dependents_and_force_deletes_them(database: Settings, ids: dict[str, str]) -> None:
    folder = database.home / "checkpoints" / ids["heads"] / "attempt-1"
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(b"x" * 100)
    half = database.home / "models" / f".{ids['one']}.partial"  # a download that was given up
    half.mkdir(parents=True)
    (half / "model.safetensors").write_bytes(b"x" * 10)
    with pytest.raises(Conflict) as error, db.writing(database) as session:
        changes.delete(session, database, session.get_one(Base, ids["one"]))
    assert "the draft “heads”" in str(error.value) and "the dataset “answers”" in str(error.value)
    with db.writing(database) as session:
        paths = changes.delete(session, database, session.get_one(Base, ids["one"]), force=True)
    assert changes.remove_files(paths) == 110 and not folder.parent.exists() and not half.exists()
    with db.reading(database) as session:
        assert session.get(Checkpoint, ids["heads"]) is None and session.get(Evaluation, ids["eval"]) is None
        assert session.get_one(Dataset, ids["answers"]).base_id is None, "answers stay without their base"


def test_nothing_is_deleted_while_a_job_uses_it(database: Settings, ids: dict[str, str]) -> None:
    with db.writing(database) as session:
        job = Job(name="Train", kind="train", queue="gpu", request={"dataset_id": ids["answers"]}, state="RUNNING")
        session.add(job)
    with pytest.raises(Conflict, match="“Train”"), db.writing(database) as session:
        changes.delete(session, database, session.get_one(Dataset, ids["answers"]), force=True)
    with pytest.raises(Conflict, match="cancel it first"), db.writing(database) as session:
        changes.delete(session, database, session.get_one(Job, job.id))


def test_an_ended_job_is_deleted_with_its_log_but_without_its_outputs(database: Settings, ids: dict[str, str]) -> None:
    with db.writing(database) as session:
        job = Job(name="Train", kind="train", queue="gpu", state="SUCCEEDED")
        session.add(job)
        session.flush()
        session.get_one(Checkpoint, ids["heads"]).job_id = job.id
    log = database.home / "logs" / f"{job.id}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("line")
    with pytest.raises(Conflict, match="log and charts"), db.writing(database) as session:
        changes.delete(session, database, session.get_one(Job, job.id))
    with db.writing(database) as session:
        changes.remove_files(changes.delete(session, database, session.get_one(Job, job.id), force=True))
    with db.reading(database) as session:
        assert session.get_one(Checkpoint, ids["heads"]).job_id is None
    assert not log.exists()


def test_an_experiment_is_found_created_and_deleted_without_its_contents(database: Settings) -> None:
    with db.writing(database) as session:
        experiment = queries.ensure_experiment(session, "first try")
        assert queries.ensure_experiment(session, "first try").id == experiment.id
        session.add(Dataset(name="d", kind="prompts", experiment_id=experiment.id))
    with db.writing(database) as session:
        changes.delete(session, database, session.get_one(Experiment, experiment.id))
        assert queries.find_dataset(session, "d").experiment_id is None


def test_the_starter_appears_once_it_is_installed(
    database: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "starter"
    monkeypatch.setenv("SPECULOOS_STARTER", str(folder))
    with db.writing(database) as session:
        assert ensure_starter(session, database) is None
    folder.mkdir()
    (folder / "card.json").write_text(json.dumps({"weights_sha256": "a" * 64, "layers": 30}))
    for _ in range(2):
        with db.writing(database) as session:
            base = ensure_starter(session, database)
    assert (base.name, base.state, base.path) == ("starter", "ready", str(folder))
    assert (base.weights_sha256, base.card["layers"]) == ("a" * 64, 30)
    with db.writing(database) as session:
        assert len(queries.bases(session)) == 1
        with pytest.raises(Conflict, match="belongs to the installation"):
            changes.delete(session, database, base, force=True)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(bytes(range(256)) * 9000)
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text("# heads")
    (folder / "optimizer.safetensors").write_bytes(b"not for others")
    (folder / "SHA256SUMS").write_text(checksums_text(archive.archive_files(folder)))
    return folder


@pytest.mark.parametrize("standalone", [False, True])
def test_the_zip_holds_the_checkpoint_and_its_sums_in_little_memory(
    checkpoint: Path, tmp_path: Path, standalone: bool
) -> None:
    if standalone:  # a complete model, with its end tokens
        (checkpoint / "generation_config.json").write_text("{}")
    tracemalloc.start()
    target = archive.write_zip(checkpoint, tmp_path / "heads.zip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2 * archive.CHUNK
    with zipfile.ZipFile(target) as zipped:
        assert zipped.testzip() is None
        expected = [name for name in archive.CHECKPOINT_FILES if standalone or name != "generation_config.json"]
        assert zipped.namelist() == expected
        for line in zipped.read("SHA256SUMS").decode().splitlines():
            digest, name = line.split()
            assert hashlib.sha256(zipped.read(name)).hexdigest() == digest


def test_the_written_zip_is_whole_or_absent(checkpoint: Path, tmp_path: Path) -> None:
    target = archive.write_zip(checkpoint, tmp_path / "out" / "heads.zip")
    assert zipfile.ZipFile(target).testzip() is None
    (checkpoint / "model.safetensors").unlink()
    with pytest.raises(NotFound, match="are missing"):
        archive.write_zip(checkpoint, tmp_path / "out" / "second.zip")
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["heads.zip"]


def test_damage_is_found_by_the_checksums(checkpoint: Path) -> None:
    weights = hashlib.sha256((checkpoint / "model.safetensors").read_bytes()).hexdigest()
    assert archive.checkpoint_problems(checkpoint, weights) == {}
    assert list(archive.checkpoint_problems(checkpoint, "0" * 64)) == ["model.safetensors"]
    (checkpoint / "config.json").write_text("{ }")
    (checkpoint / "README.md").unlink()
    problems = archive.checkpoint_problems(checkpoint)
    assert "differs" in problems.pop("config.json") and problems == {"README.md": "is missing"}


def test_archive_names_suit_every_system() -> None:
    assert archive.archive_name("Org/Model 1.5B", "köpfe: neu") == "Org-Model-1.5B-k-pfe-neu.zip"
