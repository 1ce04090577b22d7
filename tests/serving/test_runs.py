"""Rows of live runs: guarded transitions, replay from an index, and values that every database can store."""

import pytest
from sqlalchemy.exc import IntegrityError

from speculoos.errors import NotFound
from speculoos.settings import Settings
from tests.tools.stored_runs import step_count
from tracking import runs
from tracking.db import reading, writing


def record(index: int, text: str = "x") -> dict:
    return {"index": index, "tokens": [{"id": index, "text": text}], "draft": {"logprobs": [float("-inf")]}}


def new_run(settings: Settings, **values: object) -> str:
    with writing(settings) as db:
        return runs.create_run(db, "chat", "base", {"messages": []}, **values).id


def test_a_run_moves_forward_only_and_once(database: Settings) -> None:
    run_id = new_run(database)
    with writing(database) as db:
        assert not runs.finish_run(db, run_id, "early", {})
        assert runs.start_run(db, run_id) and not runs.start_run(db, run_id)
        assert runs.finish_run(db, run_id, "text", {"tokens": 1})
        assert not runs.cancel_run(db, run_id) and not runs.fail_run(db, run_id, "late")
    with reading(database) as db:
        run = runs.get_run(db, run_id)
        assert (run.state, run.text, run.error) == ("SUCCEEDED", "text", "") and run.finished_at
        assert runs.run_view(run)["ended"] is True


def test_steps_are_read_after_an_index_in_pages(database: Settings) -> None:
    run_id = new_run(database)
    with writing(database) as db:
        runs.add_steps(db, run_id, map(record, range(10)))
        runs.add_steps(db, run_id, [])
    with reading(database) as db:
        assert [r["index"] for r in runs.steps_after(db, run_id)] == list(range(10))
        assert [r["index"] for r in runs.steps_after(db, run_id, after=3, limit=2)] == [4, 5]
        assert runs.steps_after(db, run_id, after=9) == []
        assert step_count(db, run_id) == 10 and runs.token_ids(db, run_id) == list(range(10))


def test_a_step_is_stored_once(database: Settings) -> None:
    run_id = new_run(database)
    with writing(database) as db:
        runs.add_steps(db, run_id, [record(0)])
    with pytest.raises(IntegrityError), writing(database) as db:
        runs.add_steps(db, run_id, [record(0)])


def test_values_that_databases_refuse_are_replaced(database: Settings) -> None:
    run_id = new_run(database)
    with writing(database) as db:
        runs.start_run(db, run_id)
        runs.add_steps(db, run_id, [record(0, "a\x00b")])
        runs.finish_run(db, run_id, "a\x00b", {"speed": float("nan"), "list": [float("inf"), 1.5]})
    with reading(database) as db:
        step = runs.steps_after(db, run_id)[0]
        assert step["tokens"][0]["text"] == "a\ufffdb" and step["draft"]["logprobs"] == [None]
        run = runs.get_run(db, run_id)
        assert run.text == "a\ufffdb" and run.summary == {"speed": None, "list": [None, 1.5]}


def test_groups_are_ordered(database: Settings) -> None:
    with writing(database) as db:
        comparison = runs.create_comparison(db, [("a", {}), ("b", {}), ("c", {})])
    with reading(database) as db:
        assert [r.model for r in runs.group_runs(db, comparison[0].group_id)] == ["a", "b", "c"]


def test_only_ended_runs_are_deleted_with_their_steps(database: Settings) -> None:
    running, done = new_run(database), new_run(database)
    with writing(database) as db:
        for run_id in (running, done):
            runs.start_run(db, run_id)
            runs.add_steps(db, run_id, [record(0)])
        runs.finish_run(db, done, "", {})
        for run_id in (running, done):
            runs.delete_run(db, run_id)
    with reading(database) as db:
        assert runs.get_run(db, running).state == "RUNNING" and step_count(db, running) == 1
        assert step_count(db, done) == 0
        with pytest.raises(NotFound):
            runs.get_run(db, done)


@pytest.mark.parametrize(
    ("a", "b", "index"), [([], [], None), ([1, 2], [1, 2], None), ([1, 2], [1, 3], 1), ([1], [1, 2], 1), ([], [1], 0)]
)
def test_the_first_divergence_is_found(a: list[int], b: list[int], index: int | None) -> None:
    assert runs.first_divergence(a, b) == runs.first_divergence(b, a) == index
