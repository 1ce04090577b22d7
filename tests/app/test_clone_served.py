"""Cloning the evaluation of a server opens its form, as the browser asks for it."""

import json
from pathlib import Path

from tests.app.test_canary import EVENT, bench
from tests.tools.asgi import ask
from tests.tools.loops import run_async
from tracking.db import writing
from tracking.tables import Job
from workers.jobs.requests import Evaluate


def test_the_form_of_a_server_that_is_gone_opens_and_says_so(tmp_path: Path) -> None:
    made = bench(tmp_path)
    with writing(made.settings) as session:
        asked = Evaluate(endpoint="gone", limit=3).to_json()
        job = Job(name="served", kind="evaluate", queue="io", state="SUCCEEDED", request=asked)
        session.add(job)
    fn = next(
        f
        for f in made.blocks.fns.values()
        if f.name == "open_address" and any(getattr(b, "elem_id", "") == "served-endpoint" for b in f.outputs)
    )
    body = json.dumps({"data": [], "fn_index": fn._id, "session_hash": "clone"}).encode()
    cookie = run_async(ask(made.app, "GET", "/evaluations")).cookies()
    answer = run_async(ask(made.app, "POST", EVENT, body, query=f"clone={job.id}", cookie=cookie))
    assert answer.status == 200, answer.body
    assert "one of its values was deleted" in answer.body.decode()
