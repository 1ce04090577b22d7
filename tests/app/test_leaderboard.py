"""The leaderboard: its list, sorting, filters, CSV and forms."""

import csv
import io
import shlex
from datetime import timedelta
from typing import Any

import gradio as gr
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy.orm import Session
from starlette.datastructures import QueryParams

from app import downloads
from app.forms import matrix_request, served_request
from app.pages import evaluations
from app.pages.jobs import status_line
from app.views import checkpoint_rows, choices, evaluation_view, leaderboard, matrix_form, verdict
from app.views.manage import delete, save
from app.widgets.intervals import Bar, bar_chart
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import changes, db, jobs
from tracking import leaderboard as board
from tracking.leaderboard import LeaderboardView
from tracking.paging import page
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, now
from workers.jobs import builtin
from workers.jobs.requests import Evaluate
from workers.jobs.submit import add_built_in

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"
FORMULA = "=1+1"


@pytest.fixture
def filled(home: Settings) -> Settings:
    """Evaluations of two checkpoints on two suites, greedy and sampled, one of them on a server."""
    with db.writing(home) as session:
        session.add(Base(id="base", name=HOSTILE, source="folder", location="/x", path="/x", state="ready"))
        session.add(Dataset(id="gsm", name="gsm8k", kind="prompts", state="ready", rows=80, config={"suite": "gsm8k"}))
        session.flush()
        session.add(Checkpoint(id="one", name="one", method="medusa", state="ready", base_id="base"))
        session.add(Checkpoint(id="two", name=FORMULA, method="eagle3", state="ready", base_id="base"))
        session.flush()
        rows = [
            new_evaluation("a", "one", "Built-in questions", 1.5, 2.0),
            new_evaluation("b", "one", "GSM8K", 1.2, 2.5, temperature=1.0, tree="chain 4"),
            new_evaluation("c", "two", "GSM8K", None, 1.8, source="team", machine="vLLM"),
            new_evaluation("d", "two", "GSM8K", 2.5, 3.0),
            new_evaluation("e", "two", "GSM8K", None, None, state="pending"),
        ]
        for number, row in enumerate(rows):
            row.created_at = now() + timedelta(seconds=number)
        session.add_all(rows)
    return home


def new_evaluation(
    row_id: str, checkpoint: str, questions: str, speedup: float | None, tau: float | None, **columns: Any
) -> Evaluation:
    suite = "gsm8k" if questions == "GSM8K" else "built_in"
    request = Evaluate(base_id="base", checkpoint_id=checkpoint, dataset_id="gsm" if suite == "gsm8k" else "")
    values = {"state": "ready", "base_id": "base", "checkpoint_id": checkpoint, "questions": questions, "suite": suite}
    figures = {"speedup": speedup, "tau": tau, "tokens_per_second": 40.0, "machine": "A processor"}
    figures |= {"speedup_low": speedup and speedup - 0.1, "speedup_high": speedup and speedup + 0.1}
    result = {"prompts": 20, "max_tokens": 128, "identical_to_plain": True, "acceptance_by_depth": [0.8, 0.5]}
    result |= {"per_category": {"x": {"speedup": 1.4, "prompts": 3}, HOSTILE: {"mean_accepted_length": 2.0}}}
    if columns.get("source"):
        request = Evaluate(**{**request.to_json(), "endpoint": columns["source"]})
        result["source"] = {"endpoint": columns["source"], "model": HOSTILE, "server": "vLLM", "by": "counters"}
    all_values = {**values, **figures, "config": request.to_json(), "result": result, **columns}
    return Evaluation(id=row_id, name=f"base@{checkpoint}", **all_values)


def row_ids(session: Session, **query: str) -> list[str]:
    """Ids of the rows, in order."""
    return [row.id for row in session.scalars(LeaderboardView.of(query).select())]


def test_rows_are_sorted_with_missing_figures_last_and_unfinished_ones_left_out(filled: Settings) -> None:
    with db.reading(filled) as session:
        assert row_ids(session) == ["d", "a", "b", "c"]
        assert row_ids(session, sort="speedup") == ["b", "a", "d", "c"]
        assert row_ids(session, sort="-tau") == ["d", "b", "a", "c"]
        assert row_ids(session, sort="-made") == ["d", "c", "b", "a"]
        session.get_one(Evaluation, "c").speedup = 9.0
        session.flush()
        assert row_ids(session) == ["d", "a", "b", "c"], "a server's speedup has another basis"
        assert row_ids(session, sort="id; DROP TABLE") == ["d", "a", "b", "c"], "an unknown order is the usual one"


@pytest.mark.parametrize(
    ("query", "ids"),
    [
        ({"checkpoint": "one"}, ["a", "b"]),
        ({"suite": "GSM8K"}, ["d", "b", "c"]),
        ({"prompts": "20"}, ["d", "a", "b", "c"]),
        ({"prompts": "4"}, []),
        ({"prompts": "four"}, []),
        ({"temperature": "1"}, ["b"]),
        ({"temperature": "warm"}, []),
        ({"tree": "own"}, ["d", "a", "c"]),
        ({"tree": "chain 4"}, ["b"]),
        ({"source": "here"}, ["d", "a", "b"]),
        ({"source": "team", "machine": "vLLM"}, ["c"]),
        ({"base": "other"}, []),
        ({"nonsense": "x"}, ["d", "a", "b", "c"]),
    ],
)
def test_filters_narrow(filled: Settings, query: dict[str, str], ids: list[str]) -> None:
    with db.reading(filled) as session:
        assert row_ids(session, **query) == ids


def test_runs_on_few_and_on_many_questions_are_told_apart(filled: Settings) -> None:
    def chart(session: Session, **query: str) -> str:
        rows = session.scalars(LeaderboardView.of(query).select()).all()
        return leaderboard.chart(rows, leaderboard.names_of(session, rows), LeaderboardView.of(query))

    with db.writing(filled) as session:
        row = session.get_one(Evaluation, "c")
        row.speedup, row.source, row.machine = 1.1, "", "A processor"
        session.flush()
        alike = chart(session, suite="GSM8K", temperature="0")
        assert alike.count("<li>") == 2 and "20 questions" in alike and "Not compared" not in alike
        row.result = {**row.result, "prompts": 4}
        session.flush()
        view = LeaderboardView()
        assert "4 questions" in leaderboard.leaderboard(page(session, view.select()), {}, view)
        different = chart(session, suite="GSM8K", temperature="0")
        assert different.count("<li>") == 1 and "20 questions" in different and "Not compared: 1 with" in different
        assert "Not compared" not in chart(session, suite="GSM8K", temperature="0", prompts="4")
        assert row_ids(session, prompts="4") == ["c"]
        assert "4 questions" in leaderboard.settings_text(row), "also what trainings are compared by"
        assert [evaluation.id for evaluation in board.comparable_evaluations(session, row)] == ["c"], (
            "side by side: like with like"
        )
        assert ("4", "4") in board.filter_choices(session)["prompts"]


def test_an_evaluation_is_as_old_as_the_end_of_its_job(filled: Settings) -> None:
    with db.writing(filled) as session:
        job = jobs.create(session, kind="evaluate", queue="gpu", request={}, name="Evaluate")
        job.state, job.finished_at = "SUCCEEDED", now() - timedelta(hours=1, minutes=5)
        row = session.get_one(Evaluation, "d")
        row.job_id, row.created_at = job.id, now() - timedelta(hours=2, minutes=21)
    with db.reading(filled) as session:
        row = session.get_one(Evaluation, "d")
        html = leaderboard.leaderboard(page(session, LeaderboardView().select()), {}, LeaderboardView())
        html += evaluation_view.details(row) + checkpoint_rows.evaluations_table(
            session, session.get(Checkpoint, "two")
        )
        assert html.count("1 h 5 min ago") == 3 and "21 min" not in html
        assert row_ids(session, sort="made")[0] == "d"


def test_a_finished_evaluation_leads_to_its_page(filled: Settings) -> None:
    """Also an evaluation of a server, whose form leads to the job."""
    request = Evaluate(endpoint="team", evaluation_id="c").to_json()
    with db.writing(filled) as session:
        job = jobs.create(session, kind="evaluate", queue="io", request=request, name="Evaluate team")
        assert "/results" not in status_line(session, job)
        job.state = "SUCCEEDED"
        assert "/results?id=c" in status_line(session, job)


def test_the_address_of_a_view_shows_the_same_view(filled: Settings) -> None:
    from urllib.parse import parse_qsl

    view = LeaderboardView(suite="GSM8K", temperature="0", tree="chain 4", sort="-tau")
    assert LeaderboardView.of(dict(parse_qsl(view.query()))) == view
    assert leaderboard.address(LeaderboardView()) == "/results"
    assert (
        LeaderboardView().sorted_by("tau").sort == "-tau"
        and LeaderboardView(sort="-tau").sorted_by("tau").sort == "tau"
    )
    assert LeaderboardView().sorted_by("model").sort == "model"


def test_the_list_shows_names_as_text_intervals_and_ways_to_sort(filled: Settings) -> None:
    with db.reading(filled) as session:
        view = LeaderboardView()
        rows = page(session, view.select())
        names = leaderboard.names_of(session, rows.rows)
        html = leaderboard.leaderboard(rows, names, view) + leaderboard.chart(rows.rows, names, view)
    assert "<img" not in html and "${" not in html and "&lt;img" in html
    assert "2.50 ×" in html and "2.40 – 2.60" in html and "server team" in html
    assert 'href="/results?sort=-tau"' in html and 'data-pick="d"' in html
    assert "95 % from 2.40 to 2.60" in html


def test_the_csv_says_what_the_rows_say(filled: Settings) -> None:
    app = FastAPI()
    app.include_router(downloads.routes(filled))
    with TestClient(app) as client:
        response = client.get("/api/evaluations.csv?suite=GSM8K&sort=-tau")
    assert "attachment" in response.headers["content-disposition"]
    lines = list(csv.DictReader(io.StringIO(response.content.decode("utf-8-sig"))))
    with db.reading(filled) as session:
        rows = list(session.scalars(LeaderboardView(suite="GSM8K", sort="-tau").select()))
        assert [line["id"] for line in lines] == [row.id for row in rows] == ["d", "b", "c"]
        for line, row in zip(lines, rows, strict=True):
            for key in ("speedup", "speedup_low", "speedup_high", "tau", "tokens_per_second", "temperature", "top_p"):
                assert line[key] == ("" if getattr(row, key) is None else str(getattr(row, key))), key
            for key in ("name", "questions", "tree", "source", "machine", "dtype", "note"):
                assert line[key] == getattr(row, key), key
            assert (
                line["base"] == HOSTILE
                and line["suite"] == "GSM8K"
                and line["created_at"] == row.created_at.isoformat()
            )
    assert lines[0]["checkpoint"] == f"'{FORMULA}", "a spreadsheet shows the name and runs nothing"


def test_each_figure_has_the_command_that_measures_it_again(filled: Settings) -> None:
    with db.reading(filled) as session:
        row = session.get_one(Evaluation, "d")
        arguments = shlex.split(leaderboard.command(row, leaderboard.names_of(session, [row])))
        assert arguments[:2] == ["speculoos", "evaluate"]
        assert (
            arguments[arguments.index("--questions") + 1] == "gsm8k"
            and arguments[arguments.index("--checkpoint") + 1] == FORMULA
        )
        served = session.get_one(Evaluation, "c")
        assert "--endpoint team" in leaderboard.command(served, {})
        row.config = {"strange": 1}
        assert leaderboard.command(row, {}) == ""
        row.config = {}
        assert leaderboard.command(row, {}) == ""


def test_an_evaluation_is_shown_beside_that_of_the_server(filled: Settings) -> None:
    with db.reading(filled) as session:
        html = evaluation_view.view(session, session.get_one(Evaluation, "d"))
        alone = evaluation_view.view(session, session.get_one(Evaluation, "a"))
        assert [row.id for row in board.comparable_evaluations(session, session.get_one(Evaluation, "c"))] == ["d", "c"]
    assert "Local engine" in html and "Server team" in html
    assert "Local engine and servers" not in alone
    depths = alone[alone.index("Acceptance by depth") :]
    assert "80%" in depths and "50%" in depths
    assert "<img" not in html + alone and "speculoos evaluate" in html


def test_an_evaluation_is_noted_renamed_and_deleted(filled: Settings) -> None:
    assert save(filled, Evaluation, "evaluation", "a", "my figure", "why") == "Saved."
    with db.reading(filled) as session:
        assert "why" in evaluation_view.view(session, session.get_one(Evaluation, "a"))
        before = evaluations.EVALUATIONS.now(session, "")
    assert delete(filled, Evaluation, "evaluation", "a").startswith("Deleted “my figure”")
    with db.reading(filled) as session:
        assert "a" not in row_ids(session) and evaluations.EVALUATIONS.now(session, "") != before
    with gr.Blocks() as blocks:
        evaluations.build(filled)
    open_address = next(fn.fn for fn in blocks.fns.values() if fn.name == "open_address")
    assert "This evaluation does not exist" in open_address(gr.Request(query_params=QueryParams("id=a")))[2]


def test_filters_offer_what_there_is_and_what_the_address_asks_for(filled: Settings) -> None:
    with db.reading(filled) as session:
        choices = board.filter_choices(session)
        fields = evaluations.EVALUATIONS.field_values(session, {"suite": "Poems"})
    assert choices["suite"] == [("Built-in questions", "Built-in questions"), ("GSM8K", "GSM8K")]
    assert choices["temperature"] == [("0", "0"), ("1", "1")] and ("its own", "own") in choices["tree"]
    assert choices["source"] == [("this engine", "here"), ("team", "team")] and choices["base"] == [(HOSTILE, "base")]
    assert fields[3].value == "Poems" and ("Poems", "Poems") in fields[3].choices


def test_an_empty_leaderboard_says_how_it_fills(home: Settings) -> None:
    with db.reading(home) as session:
        assert "No evaluations yet" in leaderboard.leaderboard(
            page(session, LeaderboardView().select()), {}, LeaderboardView()
        )
        narrowed = LeaderboardView(suite="x")
        assert "No matches" in leaderboard.leaderboard(page(session, narrowed.select()), {}, narrowed)
        assert all(choices == [] for choices in board.filter_choices(session).values())


def test_plans_are_listed_below(home: Settings) -> None:
    with db.reading(home) as session:
        assert evaluations.plans(session) == ""
        before = evaluations.signature(session)
    with db.writing(home) as session:
        job = jobs.create(session, kind="plan", queue="gpu", request={}, name="my plan")
    with db.reading(home) as session:
        assert f"/runs?id={job.id}" in evaluations.table(session, LeaderboardView())
        assert evaluations.signature(session) != before


def test_charts_need_no_figure_and_bound_their_rows() -> None:
    assert bar_chart("x", []) == ""
    assert bar_chart("x", [Bar("a", 1.0, "b")] * 40).count("<li>") == 20


# --- the forms -------------------------------------------------------------------------------------------------------


def test_cells_outlive_their_matrix_and_stay_cells(filled: Settings) -> None:
    """Deleting a matrix keeps its evaluations, as with any job. A greedy cell of few questions does not become the
    evaluation that lists and verdicts show for its checkpoint."""
    with db.writing(filled) as session:
        job = jobs.create(session, kind="matrix", queue="gpu", request={}, name="all")
        session.add(
            new_evaluation("cell", "two", "GSM8K", 9.9, 9.9, matrix_id=job.id, created_at=now() + timedelta(hours=1))
        )
        session.flush()
        cell, two = session.get_one(Evaluation, "cell"), session.get_one(Checkpoint, "two")
        assert f"/runs?id={job.id}" in evaluation_view.view(session, cell)
        jobs.request_cancel(session, job.id)
        session.flush()
        changes.delete(session, filled, job)
        session.expire_all()
        cell = session.get_one(Evaluation, "cell")
        assert verdict.evaluation_of(session, two).id == "d"
        assert "speedup" not in checkpoint_rows.last_measured(session, ["two"]).get("two", {})
        assert row_ids(session, matrix=job.id) == ["cell"], "the leaderboard still shows the cells together"
        html = evaluation_view.view(session, cell)
    assert f"/runs?id={job.id}" not in html and f"matrix={job.id}" in html


def test_a_draft_shows_its_evaluation_on_the_built_in_questions(filled: Settings) -> None:
    with db.writing(filled) as session:
        for name, hours, tau in (("built_in", 1, 2.5), ("own", 2, 9.0)):
            at, result = now() + timedelta(hours=hours), {"mean_accepted_length": tau, "prompts": 20}
            values = {"suite": name, "questions": name, "result": result, "created_at": at, "state": "ready"}
            session.add(Evaluation(name=name, base_id="base", checkpoint_id="two", **values))
        session.flush()
        html = checkpoint_rows.checkpoints_table(session)
    assert "2.50" in html and "9.00" not in html and 'title="built_in, 20 questions"' in html


def test_the_built_in_questions_have_one_name(home: Settings) -> None:
    """Both as the built-in suite and as the dataset that the Data page makes of it."""
    added, _ = add_built_in(builtin.QUESTIONS, settings=home)
    config = {"original_name": "mine.jsonl", "path": "/x/mine.jsonl"}
    with db.writing(home) as session:
        session.get_one(Dataset, added).state = "ready"
        session.add(Dataset(id="mine", name=builtin.QUESTIONS + "-2", kind="prompts", state="ready", config=config))
        session.flush()
        columns = [Evaluate(base_id="", dataset_id=data).columns(session) for data in ("", added, "mine")]
        offered = [value for _, value in choices.suite_choices(session)]
    assert [(values["suite"], values["questions"]) for values in columns] == [
        ("built_in", "Built-in questions"),
        ("built_in", "Built-in questions"),
        ("own", "built-in-questions-2"),
    ]
    assert offered == ["built-in", "mine"]


def test_forms_become_requests() -> None:
    fields = {"models": ["b:c", "b:"], "suites": ["built-in", "d"], "temperatures": "0, 0.7"}
    request = matrix_request(**fields, tree_lines="own\nchain 4\n\nown", limit=5, max_tokens=64)
    assert request.models == [{"base_id": "b", "checkpoint_id": "c"}, {"base_id": "b", "checkpoint_id": ""}]
    assert (request.suites, request.temperatures, request.limit, request.max_tokens) == (["", "d"], [0.0, 0.7], 5, 64)
    assert request.drafting == [{}, {"tree": [[0, 0, 0, 0]]}]
    fields = {"endpoint": "team", "model": " m ", "plain_model": "", "serves": "b:c", "suite": "d"}
    served = served_request(**fields, limit=5, max_tokens=None)
    assert (served.endpoint, served.endpoint_model, served.base_id, served.checkpoint_id) == ("team", "m", "b", "c")
    assert (served.dataset_id, served.limit, served.max_tokens) == ("d", 5, 128)
    loaded = served_request(**fields, limit=5, max_tokens=None, plain_endpoint="other", concurrency=" 1, 4")
    assert (loaded.plain_endpoint, loaded.concurrency) == ("other", [1, 4]) and served.concurrency == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"models": None}, "Models: choose"),
        ({"suites": []}, "Suites: choose"),
        ({"temperatures": "warm"}, "Temperatures: expected one or more numbers from 0 to 5"),
        ({"temperatures": ""}, "Temperatures: expected one or more numbers from 0 to 5"),
        ({"temperatures": "9"}, "Temperatures: expected one or more numbers from 0 to 5"),
        ({"tree_lines": "oak"}, "Tree 'oak'"),
        ({"limit": 0}, "Max questions per suite"),
    ],
)
def test_an_incomplete_form_is_refused_with_the_missing_field(changes: dict[str, Any], sentence: str) -> None:
    form = {"models": ["b:"], "suites": ["d"], "temperatures": "0", "tree_lines": "", "limit": 5, "max_tokens": 64}
    with pytest.raises(BadInput, match=sentence):
        matrix_request(**{**form, **changes})


def test_forms_offer_models_with_their_checkpoints_and_sets_of_questions(filled: Settings) -> None:
    with db.reading(filled) as session:
        models, suites = matrix_form.model_choices(session), choices.suite_choices(session)
    assert [value for _, value in models] == ["base:", "base:two", "base:one"] or len(models) == 3
    assert suites == [("Built-in questions", "built-in"), ("GSM8K (gsm8k) · 80 questions", "gsm")]
