"""speculoos verify and the check of files by doctor: they report damage and what to do about it."""

import json
from pathlib import Path

import pytest

from cli.main import main
from models.base import load_base
from models.checkpoints import WEIGHTS, save_draft
from models.medusa import MedusaConfig, MedusaHeads
from ops.health import check as doctor
from speculoos.checksums import file_sha256
from speculoos.settings import Settings
from tests.models import hostile
from tests.tools.damage import flip
from tests.tools.homes import add_answers, add_base
from tracking.db import writing
from tracking.tables import Checkpoint


@pytest.fixture
def folder(home: Settings, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of the base `tiny`, in a home that also has its heads `tiny@heads` and the set `answers`."""
    monkeypatch.setenv("SPECULOOS_STARTER", str(tmp_path / "none"))
    folder = hostile.copy(tiny_base, tmp_path / "tiny")
    base_id = add_base(home, folder)
    add_answers(home, base_id)
    base = load_base(folder)
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, 2), base)
    saved = save_draft(home.home / "checkpoints" / "heads" / "attempt-1" / "final", heads, {})
    with writing(home) as session:
        sha256 = file_sha256(saved / WEIGHTS)
        row = Checkpoint(name="heads", method="medusa", base_id=base_id, state="ready", path=str(saved), sha256=sha256)
        session.add(row)
    return folder


def verify(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict]:
    capsys.readouterr()
    code = main(["verify", *arguments, "--json"])
    return code, json.loads(capsys.readouterr().out.strip().splitlines()[-1])


def damaged(report: dict) -> dict[str, dict]:
    return {finding["name"]: finding["damage"] for finding in report["findings"] if not finding["ok"]}


def test_undamaged_files_are_listed_by_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        *("ok  model tiny", "ok  draft tiny@heads", "ok  dataset answers", "3 checked, none damaged.")
    ]


def test_damaged_files_are_listed_with_a_remedy(
    folder: Path, home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    (weights,) = (home.home / "checkpoints").rglob(WEIGHTS)
    (shard,) = (home.home / "datasets").rglob("shard-*")
    assert doctor(home, ["files"])["files"].ok
    flip(folder / WEIGHTS)
    flip(weights)
    shard.write_text("".join(shard.read_text().splitlines(keepends=True)[:10]))
    code, report = verify(capsys)
    assert code == 1 and report["healthy"] is False and report["checked"] == 3
    assert damaged(report) == {
        "tiny": {"the weights": "changed: its sha256 differs from the added model's"},
        "tiny@heads": {WEIGHTS: "is damaged (its sha256 differs from SHA256SUMS)"},
        "answers": {"dataset.json": "counts 40 rows, the shards hold 10"},
    }
    assert all(finding["repair"] for finding in report["findings"])
    part = doctor(home, ["files"])["files"]
    assert not part.ok and "model tiny in" in part.detail and "And 2 more" in part.detail and "verify" in part.hint
    assert damaged(verify(capsys, "tiny@heads")[1]).keys() == {"tiny@heads"}
    assert damaged(verify(capsys, "tiny", "answers")[1]).keys() == {"tiny", "tiny@heads", "answers"}


def test_only_verify_sees_damage_that_keeps_the_time(
    folder: Path, home: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bit that flips on the disk does not change the file's time."""
    import os

    assert verify(capsys)[0] == 0
    before = (folder / WEIGHTS).stat()
    flip(folder / WEIGHTS, 1)
    os.utime(folder / WEIGHTS, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert doctor(home, ["files"])["files"].ok
    assert damaged(verify(capsys)[1]).keys() == {"tiny"}
    assert not doctor(home, ["files"])["files"].ok  # doctor reports it after verify has found it


def test_lost_folders_are_damage(folder: Path, home: Settings, capsys: pytest.CaptureFixture[str]) -> None:
    import shutil

    for path in (folder, home.home / "checkpoints", home.home / "datasets"):
        shutil.rmtree(path)
    assert damaged(verify(capsys)[1]).keys() == {"tiny", "tiny@heads", "answers"}


@pytest.mark.parametrize("part", ["base", "draft"])
def test_the_command_line_refuses_a_damaged_model_in_one_sentence(
    folder: Path, home: Settings, capsys: pytest.CaptureFixture[str], part: str, tmp_path: Path
) -> None:
    (weights,) = (home.home / "checkpoints").rglob(WEIGHTS)
    flip(folder / WEIGHTS if part == "base" else weights)
    assert main(["generate", "--model", "tiny@heads", "--prompt", "a fox", "--max-tokens", "4"]) == 1
    stderr = capsys.readouterr().err.strip().splitlines()[-1]
    assert ("the weights changed" if part == "base" else "is damaged") in stderr and "speculoos verify" in stderr
    if part == "draft":
        assert main(["export", "tiny@heads", "-o", str(tmp_path / "out.zip")]) == 1
        assert "'heads' is damaged" in capsys.readouterr().err and not (tmp_path / "out.zip").exists()
