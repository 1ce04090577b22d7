"""An export that is stopped during its proof ends by itself within seconds and leaves no partial files. Before that it
shows the progress of the proof."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from formats.proof import COMPARING_NOTE
from formats.store import exports_folder
from speculoos.settings import Settings
from tests.tools.homes import add_base
from tests.workers.conftest import Bench
from tracking import db
from tracking.tables import Checkpoint, new_id
from workers.jobs.requests import Export
from workers.jobs.submit import request_cancel, submit

pytestmark = pytest.mark.integration

LAYERS = 250
"""So deep that the base's own continuation, of which the proof consists for the most part, takes a while."""


@pytest.fixture
def patient(home: Settings, broker: str) -> Iterator[Bench]:
    """A worker that waits a minute before it kills a job that does not stop."""
    bench = Bench(
        replace(home, redis_url=f"{broker}?virtual_host=7"),
        forked=True,
        **{"SPECULOOS_GRACE_SECONDS": "60", "SPECULOOS_STOP_SECONDS": "60", "SPECULOOS_WORK_MODULES": ""},
    )
    bench.worker("io")
    yield bench
    bench.end()


def test_a_stop_is_met_in_the_middle_of_the_proof(patient: Bench, tmp_path) -> None:
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.medusa import MedusaConfig, MedusaHeads
    from tests.tiny import make_tiny_base

    settings = patient.settings
    deep = make_tiny_base(tmp_path / "deep", num_hidden_layers=LAYERS)
    base_id, row_id = add_base(settings, deep), new_id()
    heads = MedusaHeads.from_base(MedusaConfig(32, 320, 2, 1), load_base(deep))
    folder = save_draft(settings.home / "checkpoints" / row_id / "attempt-1", heads, {"base": "tiny"})
    row = {"id": row_id, "name": "heads", "base_id": base_id, "method": "medusa", "state": "ready"}
    with db.writing(settings) as session:
        session.add(Checkpoint(**row, path=str(folder)))
    job = submit(Export(checkpoint_id=row_id, format="vllm"), settings=settings)
    running = patient.wait_for(job.id, lambda j: j.progress_note == COMPARING_NOTE, "the proof", 240)
    assert (running.unit, running.total) == ("prompts", 3) and running.done < 3
    request_cancel(job.id, settings)
    ended = patient.wait(job.id, "CANCELLED")
    assert ended.done < 3
    assert "finished work is kept" in ended.error, "it stopped by itself"
    assert not [*exports_folder(settings.home, row_id).glob("*")]
