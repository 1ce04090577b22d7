"""A base whose files changed since it was added is refused when it is loaded."""

import json
from pathlib import Path

import pytest

from models.base import load_base
from models.card import make_card
from models.damage import BaseChecksums, base_problems
from speculoos.checksums import ChecksumCache
from speculoos.errors import Damaged
from tests.models import hostile
from tests.tools.damage import cut, flip


@pytest.fixture
def folder(tiny_base: Path, tmp_path: Path) -> Path:
    return hostile.copy(tiny_base, tmp_path / "copy")


@pytest.fixture
def checksums(folder: Path) -> BaseChecksums:
    card = make_card(folder)
    return BaseChecksums.of(card["weights_sha256"], card["tokenizer_sha256"], card)


def test_a_whole_base_loads_and_its_weights_are_hashed_once(
    folder: Path, checksums: BaseChecksums, tmp_path: Path
) -> None:
    checksum_cache = ChecksumCache(tmp_path / "sums.json")
    load_base(folder, known=checksums, checksum_cache=checksum_cache)
    ((_, entry),) = json.loads((tmp_path / "sums.json").read_text()).items()
    assert entry["sum"] == checksums.weights_sha256
    entry["sum"] = "f" * 64  # a cached sum is used while size, time and inode stay the same
    (tmp_path / "sums.json").write_text(json.dumps({f"weights:{folder}": entry}))
    assert "weights" in str(base_problems(folder, checksums, checksum_cache))
    assert base_problems(folder, checksums, ChecksumCache(tmp_path / "sums.json", anew=True)) == {}
    assert base_problems(folder, checksums, checksum_cache) == {}


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_512_flipped_bytes_are_reported_with_the_file(
    folder: Path, checksums: BaseChecksums, tmp_path: Path, name: str
) -> None:
    checksum_cache = ChecksumCache(tmp_path / "sums.json")
    load_base(folder, known=checksums, checksum_cache=checksum_cache)
    flip(folder / name)
    with pytest.raises(Damaged, match="the weights changed" if name.startswith("model") else f"{name} changed"):
        load_base(folder, known=checksums, checksum_cache=checksum_cache)


def test_a_cut_file_of_weights_is_reported(folder: Path, checksums: BaseChecksums) -> None:
    cut(folder / "model.safetensors")
    with pytest.raises(Damaged, match="the weights cannot be read"):
        load_base(folder, known=checksums)


def test_a_config_edited_after_the_import_is_not_trusted(folder: Path, checksums: BaseChecksums) -> None:
    hostile.put(folder, "config.json", rope_theta=3.0)
    with pytest.raises(Damaged, match=r"config\.json changed: its sha256 differs"):
        load_base(folder, known=checksums)


def test_an_added_or_removed_file_is_named(folder: Path, checksums: BaseChecksums) -> None:
    (folder / "added_tokens.json").write_text("{}")
    (folder / "generation_config.json").unlink()
    assert base_problems(folder, checksums) == {
        "generation_config.json": "is missing",
        "added_tokens.json": "was not there when the model was added",
    }


def test_a_row_of_an_earlier_version_is_checked_by_its_two_sums(folder: Path, checksums: BaseChecksums) -> None:
    old = BaseChecksums(checksums.weights_sha256, checksums.tokenizer_sha256)
    load_base(folder, known=old)
    flip(folder / "tokenizer.json", 64)
    with pytest.raises(Damaged, match="the tokenizer changed"):
        load_base(folder, known=old)


def test_a_cache_that_cannot_be_read_or_written_costs_time_only(
    folder: Path, checksums: BaseChecksums, tmp_path: Path
) -> None:
    (tmp_path / "sums.json").write_text("[broken")
    load_base(folder, known=checksums, checksum_cache=ChecksumCache(tmp_path / "sums.json"))
    load_base(folder, known=checksums, checksum_cache=ChecksumCache(tmp_path / "nowhere" / "sums.json"))
