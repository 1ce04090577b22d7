"""Runs stored as rows: generated in the background, stored by step, cancelled, compared, and never left RUNNING."""

import threading
import time
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

import httpx
import psutil
import pytest

from serving.live import LiveRuns
from serving.queueing import Ticket
from speculoos import machine
from speculoos.cpu_load import OtherCpuLoad
from tests.serving.conftest import CYCLE_TEXT, HEADS, Served, until
from tracking import chats, leases, runs
from tracking.db import engine, reading, writing
from tracking.tables import Job, Run, now

pytestmark = pytest.mark.integration


def make_run(served: Served, model: str = "cycle@right", kind: str = "chat", **parameters: Any) -> str:
    """Create a QUEUED run as the web app does."""
    request = served.chat_request(model, **parameters)
    with writing(served.settings) as db:
        return runs.create_run(db, kind, model, request).id


def make_group(served: Served, *models: str, **parameters: Any) -> list[str]:
    with writing(served.settings) as db:
        return [
            run.id for run in runs.create_comparison(db, [(m, served.chat_request(m, **parameters)) for m in models])
        ]


def post(served: Served, path: str) -> httpx.Response:
    with served.client() as client:
        return client.post(f"/v1/runs/{path}")


def read_run(served: Served, run_id: str) -> Run:
    with reading(served.settings) as db:
        return runs.get_run(db, run_id)


def steps(served: Served, run_id: str, after: int = -1) -> list[dict[str, Any]]:
    with reading(served.settings) as db:
        return runs.steps_after(db, run_id, after)


def wait_until_ended(served: Served, run_id: str) -> Run:
    until(lambda: read_run(served, run_id).state in runs.ENDED)
    return read_run(served, run_id)


def test_a_posted_run_is_generated_and_stored_whole(served: Served) -> None:
    run_id = make_run(served)
    response = post(served, run_id)
    assert response.status_code == 202 and response.json() == {"id": run_id, "queued": [run_id]}
    run = wait_until_ended(served, run_id)
    assert run.state == "SUCCEEDED" and run.finished_at and not run.error
    records = steps(served, run_id)
    assert [r["index"] for r in records] == list(range(len(records)))
    assert "".join(t["text"] for r in records for t in r["tokens"]) == run.text
    assert run.text.startswith(CYCLE_TEXT + CYCLE_TEXT)
    assert run.summary["mean_accepted_length"] == HEADS + 1 and run.summary["finish"] == "length"
    assert run.summary["tokens"] == 40 == sum(len(r["tokens"]) for r in records)
    assert run.summary["decode_tokens_per_second"] > 0 and run.summary["shared_with"] == ""


def test_answers_leave_no_file_and_no_thread_behind(served: Served) -> None:
    """The short form of the soak drill."""

    def count_resources() -> list[int]:
        return [psutil.Process().num_fds(), threading.active_count()]

    def run_answers(count: int) -> None:
        for _ in range(count):
            run_id = make_run(served)
            post(served, run_id)
            assert wait_until_ended(served, run_id).state == "SUCCEEDED"

    run_answers(5)
    served.wait_idle()
    with ExitStack() as stack:  # connections that overlap stay open in the pool: open all it may have
        for _ in range(engine(served.settings).pool.size()):
            stack.enter_context(reading(served.settings)).connection()
    warm = count_resources()
    run_answers(25)
    until(lambda: all(now <= before for now, before in zip(count_resources(), warm, strict=True)), 30)


def test_steps_appear_while_the_run_goes_on_and_after_its_client_has_left(served: Served) -> None:
    run_id = make_run(served, "cycle", max_tokens=6000)
    post(served, run_id)  # its connection is closed by now
    until(lambda: len(steps(served, run_id)) > 5)
    seen = steps(served, run_id)[-1]["index"]
    until(lambda: bool(steps(served, run_id, after=seen)))
    assert read_run(served, run_id).state == "RUNNING"
    assert post(served, f"{run_id}/cancel").status_code == 202
    wait_until_ended(served, run_id)


def test_a_cancelled_run_stops_between_steps_and_keeps_its_text(served: Served) -> None:
    run_id = make_run(served, "cycle", max_tokens=8000)
    post(served, run_id)
    until(lambda: CYCLE_TEXT in "".join(token["text"] for step in steps(served, run_id) for token in step["tokens"]))
    assert post(served, f"{run_id}/cancel").json()["cancelled"] is True
    run = wait_until_ended(served, run_id)
    assert run.state == "CANCELLED" and run.text.startswith(CYCLE_TEXT) and run.summary["finish"] == "cancelled"
    assert post(served, f"{run_id}/cancel").json()["cancelled"] is False


def test_a_waiting_run_is_cancelled_at_once_and_never_starts(served: Served) -> None:
    finished, run_id = threading.Event(), make_run(served)
    served.engine.queue.submit("chat", lambda _: finished.wait(60))
    post(served, run_id)
    assert post(served, f"{run_id}/cancel").json()["cancelled"] is True
    assert read_run(served, run_id).state == "CANCELLED"
    finished.set()
    served.wait_idle()
    assert steps(served, run_id) == []


def test_a_run_is_cancelled_while_its_prompt_is_prepared(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The prompt queue's thread stores the end before `cancel` reads the row."""
    prepared, cancelled, run_id = threading.Event(), threading.Event(), make_run(served)
    render, cancel = served.engine.prompts.render, Ticket.cancel

    def slow_render(*arguments: Any) -> list[int]:
        prepared.set()
        assert cancelled.wait(60)
        return render(*arguments)

    def late_cancel(ticket: Ticket) -> bool:
        cancelled.set()
        until(lambda: read_run(served, run_id).state == "CANCELLED")
        return cancel(ticket)

    monkeypatch.setattr(served.engine.prompts, "render", slow_render)
    monkeypatch.setattr(Ticket, "cancel", late_cancel)
    post(served, run_id)
    assert prepared.wait(60)
    assert post(served, f"{run_id}/cancel").json()["cancelled"] is True
    served.wait_idle()
    assert read_run(served, run_id).state == "CANCELLED" and steps(served, run_id) == []


def test_posting_a_run_twice_generates_it_once(served: Served) -> None:
    run_id = make_run(served, "cycle", max_tokens=8000)
    answers = [post(served, run_id) for _ in range(2)]
    assert [a.json()["queued"] for a in answers] == [[run_id], []]
    post(served, f"{run_id}/cancel")
    wait_until_ended(served, run_id)
    again = post(served, run_id)
    assert again.status_code == 409 and "has ended" in again.json()["error"]["message"]


def test_an_unknown_run_is_not_found(served: Served) -> None:
    assert post(served, "f" * 32).status_code == post(served, f"{'f' * 32}/cancel").status_code == 404


@pytest.mark.parametrize(
    ("model", "parameters", "message"),
    [
        ("gone@right", {}, "There is no model 'gone'"),
        ("cycle", {"temperature": -1}, "temperature"),
        ("cycle", {"text": "word " * 9000}, "8192"),
        ("cycle", {"speculation": {"drafter": "magic"}}, "Unknown drafter"),
    ],
)
def test_a_run_that_cannot_be_generated_fails_with_a_sentence(
    served: Served, model: str, parameters: dict[str, Any], message: str
) -> None:
    run_id = make_run(served, model, **parameters)
    assert post(served, run_id).status_code == 202
    run = wait_until_ended(served, run_id)
    assert run.state == "FAILED" and message in run.error and "Traceback" not in run.error


def test_columns_of_a_comparison_run_in_order_with_the_device_to_themselves(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(OtherCpuLoad, "share", lambda self: 0.1)
    ids = make_group(served, "cycle", "cycle@right", "cycle@wrong", max_tokens=200)
    holders: list[str] = []
    done = threading.Event()

    def watch() -> None:
        while not done.is_set():
            with reading(served.settings) as db:
                if (
                    holder := leases.holder(db, machine.device_key("cpu", served.settings.home))
                ) and holder not in holders:
                    holders.append(holder)
            time.sleep(0.005)

    watching = threading.Thread(target=watch)
    watching.start()
    assert post(served, ids[1]).json()["queued"] == ids  # any member starts the group
    columns = [wait_until_ended(served, run_id) for run_id in ids]
    done.set()
    watching.join()
    assert holders == [f"run:{run_id}" for run_id in ids]
    assert [c.state for c in columns] == ["SUCCEEDED"] * 3
    assert columns[0].finished_at < columns[1].finished_at < columns[2].finished_at
    assert all(c.summary["cached_tokens"] == 0 and c.summary["shared_with"] == "" for c in columns)
    with reading(served.settings) as db:
        assert leases.holder(db, machine.device_key("cpu", served.settings.home)) == ""
        views = runs.compare(db, columns[0].group_id)
    assert [v["identical"] for v in views] == [True] * 3 and {v["token_count"] for v in views} == {200}
    assert views[1]["summary"]["plain_reference"]["same_prompt"]


@pytest.mark.parametrize("cut", [1, 2, 3, 7, 11])
def test_an_answer_that_was_cut_continues_token_by_token(served: Served, cut: int) -> None:
    """Also within the emoji, of whose four tokens only some are generated then."""
    whole = make_run(served, "cycle@right", max_tokens=30)
    with writing(served.settings) as db:
        request = served.chat_request("cycle@right", max_tokens=cut) | {"chat": {"after": ""}}
        first_id = runs.create_run(db, "chat", "cycle@right", request, "a" * 31 + str(cut % 10)).id
        fields = {"after": first_id, "continues": first_id}
        continuation = served.chat_request("cycle@right", max_tokens=30 - cut) | {"chat": fields}
        second_id = runs.create_run(db, "chat", "cycle@right", continuation, "a" * 31 + str(cut % 10), 1).id
    for run_id in (whole, first_id):
        post(served, run_id)
        wait_until_ended(served, run_id)
    post(served, second_id)
    first, second = wait_until_ended(served, first_id), wait_until_ended(served, second_id)
    with reading(served.settings) as db:
        ids = [runs.token_ids(db, run_id) for run_id in (whole, first_id, second_id)]
        assert chats.whole_response(second, [first, second]) == read_run(served, whole).text
    assert ids[1] + ids[2] == ids[0] and len(ids[1]) == cut
    assert second.summary["prompt_tokens"] == first.summary["prompt_tokens"] + cut


def test_columns_that_differ_have_their_first_divergence(served: Served) -> None:
    with writing(served.settings) as db:
        requests = [("cycle", served.chat_request("cycle", max_tokens=n)) for n in (10, 6)]
        requests.append(("cycle", served.chat_request("cycle", temperature=2.0, seed=1, max_tokens=10)))
        comparison = runs.create_comparison(db, requests)
    post(served, comparison[0].id)
    for run in comparison:
        wait_until_ended(served, run.id)
    with reading(served.settings) as db:
        same, shorter, sampled = runs.compare(db, comparison[0].group_id)
    assert same["identical"] and same["first_divergence"] is None
    assert not shorter["identical"] and shorter["first_divergence"] == 6
    assert not sampled["identical"] and sampled["first_divergence"] is not None


def test_figures_measured_while_a_job_runs_name_it(served: Served) -> None:
    with writing(served.settings) as db:
        job = Job(name="my training", kind="train", queue="gpu", state="RUNNING")
        db.add(job)
        db.flush()
        holder = f"job:{job.id}"
        assert leases.acquire(db, machine.device_key("cpu", served.settings.home), holder, 60)
    try:
        chat, (column, _) = make_run(served), make_group(served, "cycle", "cycle@right")
        post(served, chat)
        post(served, column)
        assert wait_until_ended(served, chat).summary["shared_with"] == "my training"
        assert wait_until_ended(served, column).summary["shared_with"] == "my training"
        with reading(served.settings) as db:
            assert leases.holder(db, machine.device_key("cpu", served.settings.home)) == holder
    finally:
        served.wait_idle()
        with writing(served.settings) as db:
            leases.release(db, holder)


def test_runs_of_a_killed_server_are_failed_with_a_sentence(served: Served) -> None:
    running, old, young = (make_run(served) for _ in range(3))
    with writing(served.settings) as db:
        assert runs.start_run(db, running)
        runs.get_run(db, old).created_at = now() - timedelta(hours=1)
        db.flush()
        assert runs.fail_leftovers(db) == 2  # in one transaction: the served server looks for orphaned runs too
    assert read_run(served, running).state == read_run(served, old).state == "FAILED"
    assert read_run(served, running).error == runs.LEFT_OVER
    assert read_run(served, young).state == "QUEUED"
    assert post(served, young).status_code == 202
    assert wait_until_ended(served, young).state == "SUCCEEDED"


def test_a_run_posted_just_before_its_server_was_killed_does_not_wait_for_ever(served: Served) -> None:
    """It was too young to count as left over when the next server started; that server checks again later."""
    lost, running, queued = make_run(served), make_run(served, "cycle", max_tokens=8000), make_run(served)
    post(served, running)
    post(served, queued)  # waits for its turn here, so it is not orphaned
    live = LiveRuns(served.settings, served.engine)
    live._tickets = {queued: Ticket(served.engine.queue, "pages", lambda _: None, lambda: None)}
    live.fail_orphaned()
    assert read_run(served, lost).state == "QUEUED"
    with writing(served.settings) as db:
        for run_id in (lost, queued):
            runs.get_run(db, run_id).created_at = now() - timedelta(seconds=31)
    live.fail_orphaned()
    assert (read_run(served, lost).state, read_run(served, queued).state) == ("FAILED", "QUEUED")
    assert read_run(served, lost).error == runs.LEFT_OVER
    post(served, f"{running}/cancel")
    assert wait_until_ended(served, queued).state == "SUCCEEDED"


def test_a_chat_does_not_wait_behind_every_request_of_a_data_generation(served: Served) -> None:
    finished: list[str] = []

    def generate() -> None:
        with served.client() as client:
            assert (
                client.post("/v1/chat/completions", json=served.chat_request("cycle", max_tokens=120)).status_code
                == 200
            )
        finished.append("api")

    threads = [threading.Thread(target=generate) for _ in range(8)]
    for thread in threads:
        thread.start()
    until(lambda: served.engine.queue.waiting >= 5)
    run_id = make_run(served)
    post(served, run_id)
    wait_until_ended(served, run_id)
    assert len(finished) <= 5
    for thread in threads:
        thread.join()


def test_a_speedup_is_only_reported_under_equal_conditions(served: Served, monkeypatch) -> None:
    """While a job runs, only a plain run during the same job is a reference."""
    monkeypatch.setattr(OtherCpuLoad, "share", lambda self: 0.1)
    with writing(served.settings) as db:
        job = Job(name="another training", kind="train", queue="gpu", state="RUNNING")
        db.add(job)
        db.flush()
        holder = f"job:{job.id}"
        assert leases.acquire(db, machine.device_key("cpu", served.settings.home), holder, 60)
    try:
        drafted, plain, again = (make_run(served, model) for model in ("cycle@right", "cycle", "cycle@right"))
        for run_id in (drafted, plain, again):
            post(served, run_id)
        first, _, last = (wait_until_ended(served, run_id).summary for run_id in (drafted, plain, again))
    finally:
        served.wait_idle()
        with writing(served.settings) as db:
            leases.release(db, holder)
    assert first["decode_tokens_per_second"] > 0 and "speedup" not in first
    expected = {"source": "plain run", "same_prompt": True, "tokens": 39, "shared_with": "another training"}
    assert last["plain_reference"] == expected
    assert last["speedup"] > 0
