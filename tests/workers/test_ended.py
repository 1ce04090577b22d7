"""Ends of long jobs are told once, whatever becomes of the reconciler, and never of what someone stopped."""

import logging
import time
from dataclasses import replace
from datetime import timedelta

import pytest

from speculoos import webhook
from speculoos.settings import Settings
from tests.tools.receiver import Receiver
from tracking.db import reading, writing
from tracking.states import JobState
from tracking.tables import Job, Preference, now
from workers.supervise import reconcile
from workers.supervise.reconcile import WebhookNotifier, collect_ended_jobs, message_of


def add_job(home: Settings, name: str, state: str = "RUNNING", minutes: float = 5.0, **values: object) -> str:
    with writing(home) as session:
        job = Job(name=name, kind="train", queue="gpu", state=state, **values)
        job.created_at = job.queued_at = now() - timedelta(minutes=minutes)
        session.add(job)
        session.flush()
        return job.id


def end(home: Settings, job_id: str, state: JobState = JobState.SUCCEEDED) -> None:
    with writing(home) as session:
        job = session.get_one(Job, job_id)
        job.state, job.finished_at = state, now()


def told(home: Settings) -> list[str]:
    with writing(home) as session:
        return [each.name for each in collect_ended_jobs(session)]


def test_an_end_is_told_once(home: Settings) -> None:
    ids = [add_job(home, name) for name in ("good", "bad", "stopped")]
    add_job(home, "over before", "SUCCEEDED")
    assert told(home) == []
    for job_id, state in zip(ids, (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), strict=True):
        end(home, job_id, state)
    assert sorted(told(home)) == ["bad", "good"]
    assert told(home) == []


def test_what_was_short_or_a_shard_is_not_told(home: Settings) -> None:
    whole = add_job(home, "whole")
    ids = [add_job(home, "short", minutes=0.5), add_job(home, "shard", parent_id=whole, number=0)]
    told(home)
    for job_id in ids:
        end(home, job_id)
    assert told(home) == []


def test_nothing_is_written_while_nothing_changes(home: Settings) -> None:
    add_job(home, "goes on")
    told(home)
    with reading(home) as session:
        before = session.get_one(Preference, reconcile.WATCHED).updated_at
    told(home)
    with reading(home) as session:
        assert session.get_one(Preference, reconcile.WATCHED).updated_at == before


def test_the_message_has_name_state_and_link_and_no_more(home: Settings) -> None:
    job_id = add_job(home, "my job")
    end(home, job_id, JobState.FAILED)
    with reading(home) as session:
        message = message_of(session.get_one(Job, job_id), "http://127.0.0.1:7860")
    link = f"http://127.0.0.1:7860/runs?id={job_id}"
    assert message["text"] == f"“my job” has failed: {link}"
    assert message["job"] == {"id": job_id, "name": "my job", "state": "FAILED", "seconds": 300}
    assert message["link"] == link and set(message) == {"text", "job", "link"}


def test_a_message_is_posted_and_one_that_cannot_be_is_logged_once(
    home: Settings,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    named = replace(home, webhook_hosts=(receiver.host,))
    webhook.store_webhook(named, f"http://{receiver.host}/hook")
    teller = WebhookNotifier(named)
    first, second, third = (add_job(home, name) for name in ("first", "second", "third"))
    teller.queue_messages()
    end(home, first)
    teller.queue_messages()
    wait(lambda: len(receiver.got) == 1)
    assert receiver.got[0][2]["job"]["name"] == "first"
    receiver.status = 500
    with caplog.at_level(logging.WARNING):
        for job_id in (second, third):
            end(home, job_id)
            teller.queue_messages()
        wait(lambda: len(receiver.got) == 3)
        time.sleep(0.2)
    assert [record.message.count("HTTP status 500") for record in caplog.records] == [1]


def test_a_host_that_hangs_holds_no_round_up(home: Settings, receiver: Receiver) -> None:
    named = replace(home, webhook_hosts=(receiver.host,))
    receiver.server.shutdown()
    webhook.store_webhook(named, f"http://{receiver.host}/hook")
    teller = WebhookNotifier(named)
    jobs = [add_job(home, f"job {n}") for n in range(3)]
    teller.queue_messages()
    started = time.monotonic()
    for job_id in jobs:
        end(home, job_id)
        teller.queue_messages()
    assert time.monotonic() - started < 10


def test_who_wants_to_hear_later_is_not_told_of_what_ended_before(home: Settings, receiver: Receiver) -> None:
    named = replace(home, webhook_hosts=(receiver.host,))
    job_id = add_job(home, "early")
    told(home)
    WebhookNotifier(named).queue_messages()
    end(home, job_id)
    webhook.store_webhook(named, f"http://{receiver.host}/hook")
    WebhookNotifier(named).queue_messages()
    time.sleep(0.3)
    assert not receiver.got


def wait(done) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
