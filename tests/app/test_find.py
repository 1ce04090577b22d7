"""What the command palette lists."""

from app.find import results
from speculoos.settings import Settings
from tests.app.test_shell import NASTY
from tracking.db import writing
from tracking.tables import Base, Job


def test_rows_are_found_by_all_words_and_shards_of_a_job_are_not_listed(home: Settings) -> None:
    with writing(home) as session:
        parent = Job(name="Generate answers", kind="generate_data", queue="gpu")
        session.add_all([parent, Base(name=NASTY[0], source="folder", location="/x", path="/x", state="ready")])
        session.flush()
        session.add(Job(name="Generate answers, shard 1", kind="generate_shard", queue="gpu", parent_id=parent.id))
        url = f"/runs?id={parent.id}"
    assert [result["to"] for result in results(home, "ANSWERS generate") if result["kind"] == "Job"] == [url]
    assert [result["name"] for result in results(home, "onerror")] == [NASTY[0]]
    assert {result["kind"] for result in results(home, "")} == {"Page", "Action"}
