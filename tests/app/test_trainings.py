"""Comparison of trainings: which are found, their curves, and the settings that differ."""

import html
import json
import re

import pytest

from app.pages import trainings as page
from app.views import shell, trainings_view
from app.views.trainings_view import comparison_url, ids_of
from speculoos.settings import Settings
from tracking import db, trainings
from tracking.reports import JobReport, write
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from workers.jobs.requests import Train

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"


@pytest.fixture
def filled(home: Settings) -> Settings:
    """Two trainings that differ in their learning rate, another job, and an old training without recorded axes."""
    with db.writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", state="ready"))
        session.add(Dataset(id="data", name=HOSTILE, kind="conversations", state="ready", rows=100))
        session.flush()
        for name, rate in (("one", 0.001), ("two", 0.002), ("old", 0.001)):
            add_training(session, name, rate, axes=name != "old")
        session.add(Job(id="other", name="Plan it", kind="plan", queue="gpu", state="SUCCEEDED"))
        session.flush()
        session.add_all(
            [
                new_evaluation("one", 1.5, "GSM8K"),
                new_evaluation("two", 2.0, "GSM8K"),
                new_evaluation("two", 2.5, "MT-Bench"),
            ]
        )
    return home


def add_training(session: db.Session, name: str, rate: float, axes: bool) -> None:
    request = Train("medusa", "base", "data", {"lr": rate}, checkpoint_id=f"draft-{name}").to_json()
    job = Job(id=name, name=f"Train {name}", kind="train", queue="gpu", state="RUNNING", attempt=1, request=request)
    session.add(job)
    draft = Checkpoint(id=f"draft-{name}", name=name, method="medusa", base_id="base", state="ready", job_id=name)
    draft.figures = {"tokens": 500, "mean_accepted_length": 1.4}
    session.add(draft)
    session.flush()
    report = JobReport()
    for step in range(1, 11):
        report.metrics |= {("train/loss", step): 4.0 - rate * 1000 * step / 10, ("eval/tau", step): 1 + step / 20}
        if axes:
            report.metrics |= {("train/tokens", step): 100.0 * step, ("train/minutes", step): step / 4}
    write(session, name, 1, report)
    job.state, job.done, job.started_at, job.finished_at = "SUCCEEDED", 10, now(), now()


def new_evaluation(name: str, tau: float, questions: str) -> Evaluation:
    row = Evaluation(name=name, base_id="base", checkpoint_id=f"draft-{name}", state="ready", suite="own")
    row.questions, row.tau, row.tau_low, row.tau_high, row.speedup = questions, tau, tau - 0.1, tau + 0.1, tau / 2
    return row


def page_parts(settings: Settings, ids: str = "") -> dict[str, str]:
    names = ("problem", "column", "differ", "charts", "figures")
    with db.reading(settings) as session:
        return dict(zip(names, page.drawn(session, ids), strict=True))


def chart_data(markup: str, title: str) -> dict:
    """The data that the chart called `title` passes to the script."""
    charts = [json.loads(html.unescape(chart)) for chart in re.findall(r'data-chart="([^"]+)"', markup)]
    return next(chart for chart in charts if chart["title"] == title)


def test_an_address_lists_each_job_once_and_comes_back() -> None:
    assert ids_of("b,a,,b") == ["b", "a"] and ids_of("") == []
    assert comparison_url(["b", "a"]) == "/runs/compare?ids=b,a"


def test_jobs_that_cannot_be_compared_are_reported(filled: Settings) -> None:
    problem = page_parts(filled, ids="one,other,nowhere")["problem"]
    assert "Not training runs: “Plan it”" in problem and "do not exist: 1" in problem and "Only one training" in problem
    assert page_parts(filled, ids="one,two")["problem"] == ""
    assert "Nothing to compare yet" in page_parts(filled)["problem"]


def test_trainings_above_the_limit_are_named(filled: Settings) -> None:
    with db.reading(filled) as session:
        comparison = trainings.find(session, ["two", "one", "old"], most=2)
    assert [training.job.id for training in comparison.trainings] == ["two", "one"]
    assert "Left out: “Train old”" in trainings_view.missing_jobs_notice(comparison)


def test_only_settings_that_differ_are_in_the_table(filled: Settings) -> None:
    markup = page_parts(filled, ids="one,two")["differ"]
    table, equal = markup.split("<details")
    assert re.findall(r"<td>([^<]*)</td>|<td[^>]*>([^<]*)</td>", table)[0][0] == "lr"
    assert table.count("<tr>") == 2 and "0.001" in table and "0.002" in table
    assert re.search(r"\d+ settings are equal in all training runs", equal) and "batch_tokens" in equal
    assert "depends on the data" in equal[equal.index("batch_tokens") :][:80]
    assert "<img" not in markup and "${" not in markup


def test_a_training_on_several_sets_names_them_all(filled: Settings) -> None:
    with db.writing(filled) as session:
        session.add(Dataset(id="more", name="letters", kind="conversations", state="ready", rows=5))
        job = session.get_one(Job, "two")
        job.request = {**job.request, "more_dataset_ids": ["more"]}
    parts = page_parts(filled, ids="one,two")
    differ = parts["differ"].split("<details")[0]
    assert "dataset" in differ and "letters" in differ
    with db.reading(filled) as session:
        assert [row.id for row in trainings.find(session, ["two"]).trainings[0].datasets] == ["data", "more"]


def test_settings_of_another_method_are_a_dash() -> None:
    differ, equal = trainings_view.split_settings([{"lr": 1.0, "heads": 3}, {"lr": 1.0}])
    assert differ == {"heads": ["3", "–"]} and equal == {"lr": "1"}


def test_a_request_of_another_version_is_shown_as_it_was(filled: Settings) -> None:
    with db.writing(filled) as session:
        job = session.get_one(Job, "one")
        job.request = {**job.request, "settings": {"warp": 9}, "gone": 1}
    assert "warp" in page_parts(filled, ids="one,two")["differ"]


def test_curves_lie_over_each_other(filled: Settings) -> None:
    chart = chart_data(page_parts(filled, ids="one,two,old")["charts"], "Loss, training")
    assert chart["names"] == ["one", "two", "old"] and chart["across"] == "step" and len(chart["points"][0]) == 10
    assert chart["near"] and chart["styles"] == ["sp-line-0", "sp-line-1", "sp-line-2"]


def test_figures_stand_side_by_side_with_intervals(filled: Settings) -> None:
    parts = page_parts(filled, ids="one,two")
    assert ">Size<" not in parts["figures"], "nobody has a size"
    assert "1.90 – 2.10" in parts["figures"] and "MT-Bench" in parts["figures"] and "1,000" in parts["figures"]


def test_what_is_shown_follows_the_rows(filled: Settings) -> None:
    with db.reading(filled) as session:
        before = page.now(session, "one,two")
        assert page.now(session, "one,two") == before
    with db.writing(filled) as session:
        session.add(new_evaluation("one", 3.0, "GSM8K"))
    with db.reading(filled) as session:
        after = page.now(session, "one,two")
        assert after != before
    with db.writing(filled) as session:
        session.get_one(Job, "two").version += 1
    with db.reading(filled) as session:
        assert page.now(session, "one,two") != after


def test_trainings_of_the_same_name_are_told_apart(filled: Settings) -> None:
    with db.writing(filled) as session:
        session.get_one(Checkpoint, "draft-two").job_id = None
        session.get_one(Job, "two").name = "one"
    assert ">one · two<" in page_parts(filled, ids="one,two")["figures"]


def test_names_that_look_numbered_are_told_apart_too(filled: Settings) -> None:
    with db.writing(filled) as session:
        for draft, name in (("draft-one", "a"), ("draft-two", "b"), ("draft-old", "c")):
            session.get_one(Checkpoint, draft).job_id = None
            session.get_one(Job, draft.removeprefix("draft-")).name = {"a": "a", "b": "a", "c": "a · 1"}[name]
    with db.reading(filled) as session:
        compared = trainings.find(session, ["one", "two", "old"]).trainings
    assert len(set(trainings_view.labels(compared))) == 3


def test_the_bar_marks_the_jobs_page() -> None:
    for name in ("experiments", "trainings"):
        assert '<a href="/runs" aria-current="true">' in re.sub("<svg.*?</svg>", "", shell.bar(name))
