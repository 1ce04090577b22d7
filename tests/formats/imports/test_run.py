"""Imports in a limited child process: they write a whole checkpoint or nothing, and refuse pickles with code without
running them; a checkpoint of ours is imported unchanged."""

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from formats.imports.run import TargetBase, draft_files, import_draft
from models.checkpoints import load_draft, read_config, update_draft_config
from models.hub import choose, choose_draft
from speculoos.errors import BadInput, NotFound, Unsupported
from speculoos.reporting import SilentReporter
from tests.conftest import CLONE
from tests.formats.imports import writers
from tests.formats.imports.conftest import read_here
from tests.tools.local_server import server_process

pytestmark = pytest.mark.integration


class Code:
    """Unpickling it creates a file, as a hostile pickle could."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return (Path.touch, (self.marker,))


@pytest.fixture
def target_base(tiny_base) -> TargetBase:
    return TargetBase(tiny_base, "tiny", "b" * 64)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


def test_a_draft_comes_in_whole_with_its_origin_on_the_card(tmp_path, target_base, base):
    source = writers.write(tmp_path / "heads", writers.medusa(), "medusa_lm_head.pt")
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# Heads")
    report = import_draft("folder", str(source), target_base, tmp_path / "made" / "attempt-1", SilentReporter())
    assert (report["format"], report["method"], report["licence"]) == ("medusa", "medusa", "apache-2.0")
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["attempt-1"]
    card = (tmp_path / "made" / "attempt-1" / "README.md").read_text()
    assert "| format | Medusa repository |" in card and "| licence | apache-2.0 |" in card and "org/base" in card
    config = read_config(tmp_path / "made" / "attempt-1")
    assert (config["base"], config["base_sha256"]) == ("tiny", "b" * 64)
    assert load_draft(tmp_path / "made" / "attempt-1", base, "b" * 64).notices == []


@pytest.mark.parametrize("name", ["pytorch_model.bin", "medusa_lm_head.pt"])
@pytest.mark.parametrize("form", ["torch", "bare"])
def test_a_pickle_with_code_is_refused_and_never_run(name, form, shared_child, tmp_path, target_base):
    marker = tmp_path / "marker"
    source = writers.write(tmp_path / "heads", writers.medusa())
    (source / "model.safetensors").unlink()
    hostile = {"0.0.linear.weight": Code(marker)}
    if form == "torch":
        torch.save(hostile, source / name)
    else:
        (source / name).write_bytes(pickle.dumps(hostile))
    with pytest.raises(BadInput, match=rf"{name}: this pickle holds code .*, which is never run"):
        import_draft("folder", str(source), target_base, tmp_path / "made" / "attempt-1", SilentReporter())
    assert not marker.exists() and files(tmp_path / "made") == []
    pickle.loads(pickle.dumps(hostile))
    assert marker.exists(), "the trap is a trap"


@pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 cut"])
def test_a_damaged_pickle_is_reported_in_one_sentence(content, shared_child, tmp_path, target_base):
    source = writers.write(tmp_path / "heads", writers.medusa())
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(content)
    with pytest.raises(BadInput, match="pytorch_model.bin: ") as error:
        import_draft("folder", str(source), target_base, tmp_path / "made", SilentReporter())
    assert "\n" not in str(error.value)


def test_an_unsupported_or_missing_draft_leaves_no_files(shared_child, tmp_path, target_base):
    source = writers.write(tmp_path / "heads", writers.medusa())
    refusing = TargetBase(target_base.path, "tiny", "", {"medusa": "Its lm_head has a bias."})
    with pytest.raises(Unsupported, match="heads: tiny does not support this draft: Its lm_head has a bias"):
        import_draft("folder", str(source), refusing, tmp_path / "made" / "attempt-1", SilentReporter())
    assert files(tmp_path / "made") == []
    with pytest.raises(NotFound, match="no such folder"):
        import_draft("folder", str(tmp_path / "none"), target_base, tmp_path / "made" / "attempt-1", SilentReporter())
    with pytest.raises(BadInput, match="--format nonsense: expected one of"):
        import_draft(
            "folder", str(source), target_base, tmp_path / "made" / "attempt-1", SilentReporter(), layout="nonsense"
        )


def test_pickles_of_a_hub_repository_are_fetched_only_without_safetensors():
    listed = {
        name: (1, "") for name in ("config.json", "pytorch_model.bin", "medusa_lm_head.pt", "modeling_x.py", "x.bin")
    }
    assert set(choose_draft(listed)) == {"config.json", "pytorch_model.bin", "medusa_lm_head.pt"}
    assert set(choose_draft({**listed, "model.safetensors": (1, "")})) == {"config.json", "model.safetensors"}
    assert set(choose(listed)) == {"config.json", "pytorch_model.bin"}
    assert set(choose({**listed, "model.safetensors": (1, "")})) == {"config.json", "model.safetensors"}


def test_a_checkpoint_of_ours_comes_back_with_its_tree(imported, tmp_path, tiny_base, base):
    folder, _ = imported(writers.eagle3(draft_ids=torch.arange(3, 200, 2)))
    update_draft_config(folder, drafting={"depth": 2, "top_k": 2, "nodes": 5}, tuning={"verdict": "fast"})
    scratch = tmp_path / "again"
    scratch.mkdir()
    report = read_here(folder, tiny_base, scratch, base_sha256="c" * 64)
    first, second = load_draft(folder, base), load_draft(scratch / "draft", base)
    assert report["format"] == "speculoos" and second.drafting == first.drafting
    assert all(torch.equal(value, second.state_dict()[name]) for name, value in first.state_dict().items())
    assert read_config(scratch / "draft")["base_sha256"] == "b" * 64
    with pytest.raises(BadInput, match="is the base model itself"):
        read_here(tiny_base, tiny_base, scratch)


HUB = """
import json, sys
from pathlib import Path
from formats.imports.run import TargetBase, import_draft
from speculoos.reporting import SilentReporter
base = TargetBase(Path(sys.argv[1]), "tiny")
print(json.dumps(import_draft("hub", "tests/tiny", base, Path(sys.argv[2]), SilentReporter())))
"""


def test_a_pickled_draft_comes_from_the_hub(tmp_path, tiny_base, base):
    offered = writers.write(tmp_path / "offered", writers.eagle(), "pytorch_model.bin")
    with server_process("tests.models.hub_server", tmp_path / "port", offered) as url:
        env = {**os.environ, "HF_ENDPOINT": url, "HF_HUB_OFFLINE": "0", "HF_HOME": str(tmp_path / "hf")}
        command = [sys.executable, "-c", HUB, str(tiny_base), str(tmp_path / "made" / "attempt-1")]
        completed = subprocess.run(command, env=env, cwd=CLONE, capture_output=True, text=True, timeout=200)
    assert completed.returncode == 0, completed.stderr
    assert json.loads(completed.stdout.splitlines()[-1])["format"] == "eagle"
    assert load_draft(tmp_path / "made" / "attempt-1", base).method == "eagle"
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["attempt-1"]


@pytest.mark.parametrize(
    "text", ["version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "<html>not found</html>"]
)
def test_a_file_that_is_no_pickle_is_not_reported_as_code(text, shared_child, tmp_path, target_base):
    source = writers.write(tmp_path / "heads", writers.medusa())
    (source / "model.safetensors").unlink()
    (source / "medusa_lm_head.pt").write_text(text)
    with pytest.raises(BadInput, match=r"medusa_lm_head.pt: is not a file written by torch.save; fetch it again"):
        import_draft("folder", str(source), target_base, tmp_path / "out", SilentReporter())


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
