"""Columns with the figures of evaluations, for new results and for those stored before the columns existed."""

import json

import pytest
import sqlalchemy as sa

from speculoos.settings import Settings
from speculoos.suites import BUILT_IN_SUITE_NAME, OWN_SUITE_NAME, suite_title
from tracking import db
from tracking.evaluations import columns_of
from tracking.tables import Base, Dataset, Evaluation
from workers.jobs import builtin

RESULT = {
    "mean_accepted_length": 2.5,
    "mean_accepted_length_interval": [2.4, 2.6],
    "speedup": 1.5,
    "speedup_interval": [1.4, 1.6],
    "tokens_per_second": 30.0,
    "plain_tokens_per_second": 20.0,
    "dtype": "float32",
    "machine": {"processor": "A processor", "device": "cpu"},
}
COLUMNS = {
    **{"tau": 2.5, "tau_low": 2.4, "tau_high": 2.6, "speedup": 1.5, "speedup_low": 1.4, "speedup_high": 1.6},
    **{"tokens_per_second": 30.0, "plain_tokens_per_second": 20.0, "dtype": "float32", "machine": "A processor"},
}


def test_a_result_fills_its_columns() -> None:
    assert columns_of(RESULT) == COLUMNS


@pytest.mark.parametrize(
    "result",
    [
        {},
        {"speedup": float("nan"), "speedup_interval": [1.0]},
        {"speedup": "fast", "speedup_interval": "wide", "machine": 7},
        {"speedup": None, "speedup_interval": None, "mean_accepted_length": True},
    ],
)
def test_missing_and_invalid_figures_are_empty(result: dict[str, object]) -> None:
    columns = columns_of(result)
    assert set(columns) == set(COLUMNS)
    assert all(columns[key] is None for key in columns if key not in ("dtype", "machine"))


def test_a_server_is_named_by_its_kind_and_a_gpu_by_its_name() -> None:
    assert columns_of({"source": {"server": "vLLM"}, "machine": {"gpu": "x"}})["machine"] == "vLLM"
    assert columns_of({"machine": {"gpu": "A GPU", "processor": "p"}})["machine"] == "A GPU"


def test_evaluations_of_earlier_versions_get_their_columns(database: Settings) -> None:
    with db.writing(database) as session:
        session.add(Base(id="b", name="b", source="folder", location="/x"))
        session.add(Dataset(id="d", name="my questions", kind="prompts"))
    db.downgrade(database, "0005")
    evaluation_config = {"base_id": "b", "dataset_id": "d", "drafting": {"depth": 3}}
    rows = [
        ("one", json.dumps(evaluation_config), json.dumps(RESULT), "ready"),
        ("two", json.dumps({"base_id": "b"}), json.dumps({}), "failed"),
    ]
    columns = "id, name, note, created_at, state, base_id, config, result"
    with db.engine(database).begin() as connection:
        for row_id, config, result, state in rows:
            connection.execute(
                sa.text(
                    f"INSERT INTO evaluations ({columns}) VALUES "
                    "(:id, :id, '', '2026-11-01 10:00:00', :state, 'b', :config, :result)"
                ),
                {"id": row_id, "state": state, "config": config, "result": result},
            )
    db.upgrade(database)
    with db.reading(database) as session:
        one, two = (session.get_one(Evaluation, row_id) for row_id in ("one", "two"))
        assert {key: getattr(one, key) for key in COLUMNS} == COLUMNS
        assert (one.suite, one.questions, one.tree, one.source, one.temperature) == (
            *("own", "my questions", '{"depth": 3}', ""),
            0.0,
        )
        assert (two.suite, two.speedup, two.tau_low, two.machine) == ("built_in", None, None, "")
        assert two.questions == suite_title(BUILT_IN_SUITE_NAME)


def test_the_built_in_questions_of_earlier_rows_have_the_name_of_new_ones(database: Settings) -> None:
    """Questions from a dataset are recognized by the file it was imported from or, if it is deleted, by its name."""
    name, new = builtin.QUESTIONS, (BUILT_IN_SUITE_NAME, suite_title(BUILT_IN_SUITE_NAME))
    request = builtin.find_built_in(name).request().to_json()
    old = {"original_name": f"{name}.jsonl", "path": "/a/clone/evaluation/questions.jsonl"}
    datasets = {
        "renamed": ("mine", request, new),
        "early": (name, old, new),
        "some": ("first-five", {**request, "limit": 5}, (OWN_SUITE_NAME, "first-five")),
        "theirs": (name, {**request, "path": "/x/questions.jsonl"}, (OWN_SUITE_NAME, name)),
        "gone": (name, None, new),
        "lost": ("other", None, (OWN_SUITE_NAME, "other")),
        "": ("", None, new),
    }
    db.downgrade(database, "0008")
    with db.writing(database) as session:
        session.add(Base(id="b", name="b", source="folder", location="/x"))
        for row_id, (dataset_name, config, _) in datasets.items():
            if config:
                session.add(Dataset(id=row_id, name=f"{dataset_name} {row_id}", kind="prompts", config=config))
            evaluation_config = {"base_id": "b", "dataset_id": row_id}
            suite = {"suite": OWN_SUITE_NAME if row_id else BUILT_IN_SUITE_NAME, "questions": dataset_name}
            session.add(Evaluation(id=row_id or "none", name="b", base_id="b", config=evaluation_config, **suite))
    db.upgrade(database)
    with db.reading(database) as session:
        actual = {row.id: (row.suite, row.questions) for row in session.scalars(sa.select(Evaluation))}
    assert actual == {row_id or "none": expected for row_id, (*_, expected) in datasets.items()}
