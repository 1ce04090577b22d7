"""Trainings compared, from rows alone: which are found, how curves are placed and smoothed, what differs."""

import html
import json
import re

import pytest

from app.pages import trainings as page
from app.views import shell, trainings_tables, trainings_view
from app.views.trainings_view import TrainingsView, points_over_axis, smoothed
from speculoos.settings import Settings
from tracking import db, trainings
from tracking.reports import JobReport, write
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job, now
from workers.jobs.requests import Train

HOSTILE = "<img src=x onerror=alert(1)> ${alert(1)}"


@pytest.fixture
def filled(home: Settings) -> Settings:
    """Two trainings that differ in their learning rate, another job, and a training of before axes were kept."""
    with db.writing(home) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="/x", state="ready"))
        session.add(Dataset(id="data", name=HOSTILE, kind="conversations", state="ready", rows=100))
        session.flush()
        for name, rate in (("one", 0.001), ("two", 0.002), ("old", 0.001)):
            add_training(session, name, rate, axes=name != "old")
        session.add(Job(id="other", name="Plan it", kind="plan", queue="gpu", state="SUCCEEDED"))
        session.flush()
        session.add_all(
            [measured("one", 1.5, "GSM8K"), measured("two", 2.0, "GSM8K"), measured("two", 2.5, "MT-Bench")]
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


def measured(name: str, tau: float, questions: str) -> Evaluation:
    row = Evaluation(name=name, base_id="base", checkpoint_id=f"draft-{name}", state="ready", suite="own")
    row.questions, row.tau, row.tau_low, row.tau_high, row.speedup = questions, tau, tau - 0.1, tau + 0.1, tau / 2
    return row


def drawn(settings: Settings, **query: str) -> dict[str, str]:
    names = ("problem", "column", "differ", "axis", "charts", "more", "bars", "figures")
    with db.reading(settings) as session:
        return dict(zip(names, page.drawn(session, TrainingsView.of(query)), strict=True))


def lines(made: str, title: str) -> dict:
    """What the chart called `title` tells the script."""
    found = [json.loads(html.unescape(each)) for each in re.findall(r'data-chart="([^"]+)"', made)]
    return next(each for each in found if each["title"] == title)


def test_an_address_says_everything_and_comes_back() -> None:
    view = TrainingsView.of({"ids": "b,a,,b", "over": "time", "smooth": "0.6"})
    assert view.ids == ("b", "a") and view.address == "/trainings?ids=b,a&over=time&smooth=0.6"
    assert view.without("b").address == "/trainings?ids=a&over=time&smooth=0.6"
    for query in ({"over": "<b>"}, {"smooth": "nan"}, {"smooth": "-1"}, {"smooth": "x"}, {"ids": ""}):
        assert TrainingsView.of(query) == TrainingsView()
    assert TrainingsView.of({"smooth": "7"}).smooth == trainings_view.SMOOTHEST


def test_what_cannot_be_compared_is_said(filled: Settings) -> None:
    said = drawn(filled, ids="one,other,nowhere")["problem"]
    assert "“Plan it” is no training" in said and "One of these jobs is missing" in said and "Only one training" in said
    assert drawn(filled, ids="one,two")["problem"] == ""
    assert "Nothing to compare yet" in drawn(filled)["problem"]


def test_more_than_can_be_told_apart_are_named(filled: Settings) -> None:
    with db.reading(filled) as session:
        found = trainings.find(session, ["two", "one", "old"], most=2)
    assert [each.job.id for each in found.trainings] == ["two", "one"]
    assert "“Train old” is left out" in trainings_view.missing_jobs_notice(found)


def test_only_settings_that_differ_are_in_the_table(filled: Settings) -> None:
    made = drawn(filled, ids="one,two")["differ"]
    table, equal = made.split("<details")
    assert re.findall(r"<td>([^<]*)</td>|<td[^>]*>([^<]*)</td>", table)[0][0] == "lr"
    assert table.count("<tr>") == 2 and "0.001" in table and "0.002" in table
    assert re.search(r"\d+ settings are equal in all trainings", equal) and "batch_tokens" in equal
    assert "depends on the data" in equal[equal.index("batch_tokens") :][:80]
    assert "<img" not in made and "${" not in made


def test_a_training_on_several_sets_names_them_all(filled: Settings) -> None:
    with db.writing(filled) as session:
        session.add(Dataset(id="more", name="letters", kind="conversations", state="ready", rows=5))
        job = session.get_one(Job, "two")
        job.request = {**job.request, "more_dataset_ids": ["more"]}
    made = drawn(filled, ids="one,two")
    differ = made["differ"].split("<details")[0]
    assert "data set" in differ and "letters" in differ
    with db.reading(filled) as session:
        assert [row.id for row in trainings.find(session, ["two"]).trainings[0].datasets] == ["data", "more"]


def test_settings_of_another_method_are_a_dash() -> None:
    differ, equal = trainings_tables.split_settings([{"lr": 1.0, "heads": 3}, {"lr": 1.0}])
    assert differ == {"heads": ["3", "–"]} and equal == {"lr": "1"}


def test_a_request_of_another_version_is_shown_as_it_was(filled: Settings) -> None:
    with db.writing(filled) as session:
        job = session.get_one(Job, "one")
        job.request = {**job.request, "settings": {"warp": 9}, "gone": 1}
    assert "warp" in drawn(filled, ids="one,two")["differ"]


def test_curves_lie_over_each_other(filled: Settings) -> None:
    found = lines(drawn(filled, ids="one,two,old")["charts"], "Loss, training")
    assert found["names"] == ["one", "two", "old"] and found["across"] == "step" and len(found["points"][0]) == 10
    assert found["near"] and found["styles"] == ["sp-line-0", "sp-line-1", "sp-line-2"]


def test_over_tokens_and_time_come_from_rows(filled: Settings) -> None:
    over_tokens, over_time = (drawn(filled, ids="one,two,old", over=over) for over in ("tokens", "time"))
    tokens, time = (lines(made["charts"], "Loss, training") for made in (over_tokens, over_time))
    assert (
        tokens["names"] == ["one", "two"] and tokens["points"][0][-1][0] == 1000 and tokens["across"] == "tokens seen"
    )
    assert time["across"] == "seconds" and time["points"][1][3][0] == 60
    assert "“old”" in over_time["axis"] and drawn(filled, ids="one,two,old")["axis"] == ""
    assert "train/tokens" not in over_time["more"] and ">Tokens<" not in over_time["more"]


def test_a_place_between_two_known_steps_is_in_proportion() -> None:
    axis = [(10, 100.0), (20, 300.0)]
    assert points_over_axis([(5, 1.0), (15, 2.0), (20, 3.0), (30, 4.0)], axis) == [
        (50, 1),
        (200, 2),
        (300, 3),
        (300, 4),
    ]


def test_smoothing_leaves_the_first_value_and_a_flat_line_as_they_are() -> None:
    assert smoothed([(0, 2.0), (1, 2.0), (2, 2.0)], 0.9) == [
        (0, pytest.approx(2)),
        (1, pytest.approx(2)),
        (2, pytest.approx(2)),
    ]
    rising = smoothed([(0, 0.0), (1, 1.0)], 0.5)
    assert rising == [(0, 0.0), (1, pytest.approx(2 / 3))]


def test_smoothed_curves_keep_their_values_behind_and_held_out_ones_as_they_are(filled: Settings) -> None:
    made = drawn(filled, ids="one,two", smooth="0.5")["charts"]
    loss, tau = lines(made, "Loss, training"), lines(made, "Expected mean accepted length τ, held out")
    assert loss["behind"][0][-1] == [10, 3] and loss["points"][0][-1][1] > 3
    assert "behind" not in tau and tau["points"][0][-1] == [10, 1.5]
    assert made.count("sp-faint") == 2


def test_figures_stand_side_by_side_with_intervals(filled: Settings) -> None:
    made = drawn(filled, ids="one,two")
    assert "1.90 – 2.10" in made["figures"] and "MT-Bench" in made["figures"] and "1,000" in made["figures"]
    assert made["bars"].count("sp-interval-span") == 2 and "τ: GSM8K" in made["bars"]


def test_rows_that_nobody_has_are_left_out(filled: Settings) -> None:
    assert ">Size<" not in drawn(filled, ids="one,two")["figures"]


def test_what_is_shown_follows_the_rows(filled: Settings) -> None:
    with db.reading(filled) as session:
        before = page.now(session, "one,two")
        assert page.now(session, "one,two") == before
    with db.writing(filled) as session:
        session.add(measured("one", 3.0, "GSM8K"))
    with db.reading(filled) as session:
        after = page.now(session, "one,two")
        assert after != before
    with db.writing(filled) as session:
        session.get_one(Job, "two").version += 1
    with db.reading(filled) as session:
        assert page.now(session, "one,two") != after


def test_two_of_one_name_are_told_apart(filled: Settings) -> None:
    with db.writing(filled) as session:
        session.get_one(Checkpoint, "draft-two").job_id = None
        session.get_one(Job, "two").name = "one"
    assert ">one · 1<" in drawn(filled, ids="one,two")["figures"]


def test_names_that_look_numbered_are_told_apart_too(filled: Settings) -> None:
    with db.writing(filled) as session:
        for draft, name in (("draft-one", "a"), ("draft-two", "b"), ("draft-old", "c")):
            session.get_one(Checkpoint, draft).job_id = None
            session.get_one(Job, draft.removeprefix("draft-")).name = {"a": "a", "b": "a", "c": "a · 1"}[name]
    with db.reading(filled) as session:
        found = trainings.find(session, ["one", "two", "old"]).trainings
    assert len(set(trainings_view.labels(found))) == 3


def test_the_bar_marks_where_one_came_from() -> None:
    for _, path in shell.TAB_PAGES:
        assert '<a href="/jobs" aria-current="true">' in shell.bar(path)
