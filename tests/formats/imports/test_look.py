"""The first look says what the job finds, and refuses only what the job refuses; it reads headers, nothing else."""

from pathlib import Path
from typing import Any

import pytest
import torch

from formats.imports.inspect import DraftInspection, ExpectedDraft, draft_files, inspect_draft
from models.checkpoints import save_draft
from models.methods import METHODS
from speculoos.errors import BadInput, SpeculoosError, Unsupported
from tests.formats.imports import writers
from tests.formats.imports.conftest import read_here
from tests.serving.test_reuse import MAKERS

BASE = ExpectedDraft("tiny", writers.HIDDEN, writers.VOCABULARY)
SOME = torch.arange(0, 320, 2)
MADE = {
    "medusa": writers.medusa(),
    "vllm-medusa": writers.vllm_medusa(),
    "eagle": writers.eagle(layers=2),
    "eagle3": writers.eagle3(draft_ids=SOME, marked=True),
    "modelopt-eagle3": writers.eagle3(first="layers.0.", draft_ids=SOME),
    "vllm-eagle3": writers.eagle3(draft_ids=SOME, config={"architectures": ["Eagle3LlamaForCausalLM"]}),
}


def looked(folder: Path, base: ExpectedDraft = BASE, layout: str = "") -> DraftInspection:
    return inspect_draft(draft_files(sorted(folder.iterdir())), base, layout, folder.name)


@pytest.mark.parametrize("layout", MADE)
def test_a_first_look_finds_the_layout_that_the_job_finds(layout: str, tiny_base: Path, tmp_path: Path) -> None:
    folder = writers.write(tmp_path / "published", MADE[layout])
    found = looked(folder)
    (tmp_path / "scratch").mkdir()
    report = read_here(folder, tiny_base, tmp_path / "scratch")
    assert report["format"] == layout and dict(found.facts)["Format"] == report["title"]
    assert not found.refused


def test_it_says_what_people_ask_first(tmp_path: Path) -> None:
    eagle3 = dict(looked(writers.write(tmp_path / "a", MADE["eagle3"])).facts)
    assert (eagle3["Structure"], eagle3["Hidden size"]) == ("1 layer", "32") and "Method" not in eagle3
    assert eagle3["Draft vocabulary"] == "160 of 320" and eagle3["Weights"].startswith("15 tensors as float32, 0.1 MB")
    medusa = dict(looked(writers.write(tmp_path / "b", MADE["medusa"])).facts)
    assert medusa["Structure"].endswith("heads of 1 block") and "Draft vocabulary" not in medusa


@pytest.mark.parametrize("method", MAKERS)
def test_a_checkpoint_of_ours_and_a_plain_model_are_known(method: str, base: Any, tmp_path: Path) -> None:
    folder = save_draft(tmp_path / "ours", MAKERS[method](base), {"base": "tiny"})
    facts = dict(looked(folder).facts)
    assert facts["Format"] == "Speculoos checkpoint" and facts["Trained for"] == "tiny"
    assert facts["Method"] == METHODS[method].title
    model = dict(looked(base.path).facts)
    assert model["Format"] == "causal language model" and model["Structure"] == f"{writers.LAYERS} layers"


@pytest.mark.parametrize(
    ("made", "base", "says"),
    [
        (MADE["eagle3"], ExpectedDraft("big", 4096, 320), "hidden size is 32, big has 4,096"),
        (MADE["medusa"], ExpectedDraft("big", 4096, 320), "hidden size is 32"),
        (MADE["eagle"], ExpectedDraft("wide", 32, 1000), "vocabulary of 320 tokens, wide has 1,000"),
        (
            MADE["eagle3"],
            ExpectedDraft("short", 32, 320, {"eagle3": "It has no middle."}),
            "does not support this draft: It has no",
        ),
    ],
)
def test_what_cannot_be_for_the_base_is_said_before_the_job(
    made: Any, base: ExpectedDraft, says: str, tmp_path: Path
) -> None:
    assert says in looked(writers.write(tmp_path / "published", made), base).refused


def test_a_draft_narrower_than_its_base_is_not_refused(tmp_path: Path) -> None:
    config = {"hidden_size": 16, "target_hidden_size": 32, "intermediate_size": 40}
    made = writers.eagle3(target=32, table=writers.Random(8).matrix(320, 16), config=config)
    found = looked(writers.write(tmp_path / "narrow", made))
    assert not found.refused and dict(found.facts)["Hidden size"] == "32"


def test_pickles_are_not_opened_and_large_headers_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "pickled"
    folder.mkdir()
    (folder / "medusa_lm_head.pt").write_bytes(b"no pickle at all")
    assert "runs nothing" in dict(looked(folder).facts)["Weights"]
    (folder / "model.safetensors").write_bytes((1 << 40).to_bytes(8, "little"))
    assert "too large" in dict(looked(folder).facts)["Weights"]


def test_what_is_no_draft_is_one_sentence_without_a_path_of_the_server(tmp_path: Path) -> None:
    folder = writers.write(tmp_path / "published", ({}, {"strange.weight": torch.zeros(2, 2)}))
    with pytest.raises(Unsupported, match="published: not a supported draft .* strange.weight"):
        looked(folder)
    (folder / "model.safetensors").write_bytes(b"\x10" + bytes(7) + b"{")
    with pytest.raises(SpeculoosError) as error:
        looked(folder)
    assert str(error.value).startswith("model.safetensors: ") and str(tmp_path) not in str(error.value)
    (folder / "config.json").write_bytes(b"[" + b" " * (2 << 20))
    with pytest.raises(BadInput, match="config.json has 2.1 MB"):
        looked(folder)


def test_only_files_of_a_draft_are_taken(tmp_path: Path) -> None:
    names = ("model.safetensors", "config.json", "SHA256SUMS", "README.md", "notes.docx", "optimizer.safetensors")
    files = [tmp_path / name for name in names]
    assert {path.name for path in draft_files(files)} == {*names[:4]}
    with pytest.raises(BadInput, match="no weights of a draft"):
        draft_files(files[1:4])
    with pytest.raises(BadInput, match="heads.zip: unpack it"):
        draft_files([tmp_path / "heads.zip"])
    with pytest.raises(BadInput, match="two files called config.json"):
        draft_files([*files, tmp_path / "other" / "config.json"])
