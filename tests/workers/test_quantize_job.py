"""A base quantized by a job generates, trains and exports as a separate base."""

import json
import zipfile
from pathlib import Path
from typing import Any

import gradio as gr
import pytest

from app.pages.models import ModelPanel
from speculoos.errors import Unsupported
from speculoos.settings import Settings
from tests.tools.homes import add_base
from tests.workers.test_bodies import Begin, begin, row, write_prompts
from tracking import db, leases
from tracking.tables import Base, Checkpoint, Dataset
from workers.child.work import generate_data, import_prompts, models, train
from workers.jobs.requests import Export, GenerateData, ImportPrompts, Quantize, Request, Train
from workers.jobs.submit import submit

__all__ = ["begin"]

pytestmark = pytest.mark.integration


def test_a_quantized_base_answers_trains_and_is_named_by_exports(
    begin: Begin, home: Settings, tiny_base: Path, tmp_path: Path
) -> None:
    def run_job(request: Request, work: Any, table: type, field: str) -> Any:
        stored, context = begin(request)
        work(stored, context)
        context.flush()
        with db.writing(home) as session:
            leases.release(session, f"job:{context.job_id}")  # as its supervisor does
        return row(context, table, getattr(stored, field))

    original = add_base(home, tiny_base)
    base = run_job(Quantize(base_id=original, scheme="w8a16"), models.run_quantize, Base, "quantized_id")
    assert (base.name, base.source, base.location, base.state) == ("tiny-w8a16", "quantized", "tiny, w8a16", "ready")
    assert base.card["quantization"] == "compressed-tensors, 8 bits" and base.weights_sha256 != original
    with pytest.raises(Unsupported, match="tiny-w8a16 is quantized already"):
        submit(Quantize(base_id=base.id), settings=home)
    with gr.Blocks(), db.reading(home) as session:
        panel = ModelPanel(home, gr.Textbox())
        views = [panel.view(session, session.get_one(Base, each), {}) for each in (original, base.id)]
        assert [values[panel.outputs.index(panel.quantize)].visible for values in views] == [True, False]

    prompts = run_job(
        ImportPrompts(path=str(write_prompts(tmp_path / "p.jsonl"))), import_prompts.run, Dataset, "dataset_id"
    )
    generation = GenerateData(source_id=prompts.id, base_id=base.id, max_tokens=8)
    answers = run_job(generation, generate_data.run, Dataset, "dataset_id")
    few = {"max_steps": 3, "epochs": 0, "eval_every": 0, "samples": 0, "max_length": 64, "batch_tokens": 128}
    training = Train(method="medusa", base_id=base.id, dataset_id=answers.id, settings=few)
    heads = run_job(training, train.run, Checkpoint, "checkpoint_id")
    assert heads.state == "ready" and heads.base_sha256 == base.weights_sha256
    export, context = begin(Export(checkpoint_id=heads.id, format="vllm"))
    models.run_export(export, context)
    archive = zipfile.ZipFile(next((home.home / "exports").rglob("*.zip")))
    texts = {name.rpartition("/")[2]: archive.read(name).decode() for name in archive.namelist() if ".safe" not in name}
    assert f"| model | {base.name} |" in texts["README.md"] and base.weights_sha256 in texts["README.md"]
    assert "quantization_config" not in json.loads(texts["config.json"])
