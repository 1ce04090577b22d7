"""The end of a long job is reported once, also after a restart of the reconciler; the end of a stopped job is not."""

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


def ended_names(home: Settings) -> list[str]:
    with writing(home) as session:
        return [each.name for each in collect_ended_jobs(session)]


def test_an_end_is_reported_once(home: Settings) -> None:
    ids = [add_job(home, name) for name in ("good", "bad", "stopped")]
    add_job(home, "over before", "SUCCEEDED")
    assert ended_names(home) == []
    for job_id, state in zip(ids, (JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED), strict=True):
        end(home, job_id, state)
    assert sorted(ended_names(home)) == ["bad", "good"]
    assert ended_names(home) == []


def test_short_jobs_and_shards_are_not_reported(home: Settings) -> None:
    whole = add_job(home, "whole")
    ids = [add_job(home, "short", minutes=0.5), add_job(home, "shard", parent_id=whole, number=0)]
    ended_names(home)
    for job_id in ids:
        end(home, job_id)
    assert ended_names(home) == []


def test_nothing_is_written_while_nothing_changes(home: Settings) -> None:
    add_job(home, "goes on")
    ended_names(home)
    with reading(home) as session:
        before = session.get_one(Preference, reconcile.WATCHED).updated_at
    ended_names(home)
    with reading(home) as session:
        assert session.get_one(Preference, reconcile.WATCHED).updated_at == before


def test_the_message_has_name_state_and_link_and_no_more(home: Settings) -> None:
    job_id = add_job(home, "my job")
    end(home, job_id, JobState.FAILED)
    with writing(home) as session:
        job = session.get_one(Job, job_id)
        job.finished_at = job.queued_at + timedelta(minutes=5)
        message = message_of(job, "http://127.0.0.1:7860")
    link = f"http://127.0.0.1:7860/runs?id={job_id}"
    assert message["text"] == f"“my job” has failed: {link}"
    assert message["job"] == {"id": job_id, "name": "my job", "state": "FAILED", "seconds": 300}
    assert message["link"] == link and set(message) == {"text", "job", "link"}


def test_a_message_is_posted_and_one_that_cannot_be_is_logged_once(
    home: Settings,
    receiver: Receiver,
    caplog: pytest.LogCaptureFixture,
) -> None:
    settings = replace(home, webhook_hosts=(receiver.host,))
    webhook.store_webhook(settings, f"http://{receiver.host}/hook")
    notifier = WebhookNotifier(settings)
    first, second, third = (add_job(home, name) for name in ("first", "second", "third"))
    notifier.queue_messages()
    end(home, first)
    notifier.queue_messages()
    wait(lambda: len(receiver.got) == 1)
    assert receiver.got[0][2]["job"]["name"] == "first"
    receiver.status = 500
    with caplog.at_level(logging.WARNING):
        for job_id in (second, third):
            end(home, job_id)
            notifier.queue_messages()
        wait(lambda: len(receiver.got) == 3)
        time.sleep(0.2)
    assert [record.message.count("HTTP status 500") for record in caplog.records] == [1]


def test_a_host_that_hangs_delays_no_round(home: Settings, receiver: Receiver) -> None:
    settings = replace(home, webhook_hosts=(receiver.host,))
    receiver.may_respond.clear()
    webhook.store_webhook(settings, f"http://{receiver.host}/hook")
    notifier = WebhookNotifier(settings)
    jobs = [add_job(home, f"job {n}") for n in range(3)]
    notifier.queue_messages()
    started = time.monotonic()
    for job_id in jobs:
        end(home, job_id)
        notifier.queue_messages()
    assert time.monotonic() - started < 10


def test_a_webhook_gets_no_ends_from_before_it_was_set(home: Settings, receiver: Receiver) -> None:
    settings = replace(home, webhook_hosts=(receiver.host,))
    job_id = add_job(home, "early")
    ended_names(home)
    WebhookNotifier(settings).queue_messages()
    end(home, job_id)
    webhook.store_webhook(settings, f"http://{receiver.host}/hook")
    WebhookNotifier(settings).queue_messages()
    time.sleep(0.3)
    assert not receiver.got


def wait(done) -> None:
    deadline = time.monotonic() + 90
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.02)
