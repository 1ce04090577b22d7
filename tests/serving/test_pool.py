"""Warm models: loaded once, least recently used out, loaded again when their weights change."""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.catalog import ModelRef
from serving.pool import Pool, default_budget
from speculoos.errors import NotFound, Unsupported

MEGABYTE = 2**20


@pytest.fixture
def refs(model_files: Path) -> dict[str, ModelRef]:
    """Refs to base cycle, base cycle2, and heads `right` and `wrong` on cycle."""
    cycle = ModelRef("cycle", "b1", str(model_files / "cycle"), "b" * 64)
    second = ModelRef("cycle2", "b2", str(model_files / "cycle2"), "d" * 64)
    made = {"cycle": cycle, "cycle2": second}
    for name in ("right", "wrong"):
        heads = {"checkpoint_id": name, "checkpoint_path": str(model_files / name), "checkpoint_sha256": name}
        made[name] = replace(cycle, name=f"cycle@{name}", method="medusa", **heads)
    return made


def pool(budget: int = 2**40) -> Pool:
    return Pool("cpu", "float32", budget)


def test_a_base_is_loaded_once_for_itself_and_all_its_heads(refs: dict[str, ModelRef]) -> None:
    warm = pool()
    base, right, wrong = (warm.get(refs[name]) for name in ("cycle", "right", "wrong"))
    assert base.target is right.target is wrong.target
    assert base.draft is None and right.draft is not wrong.draft
    assert warm.get(refs["right"]).draft is right.draft
    assert len(warm) == 1 and warm.nbytes > 0


def test_the_least_recently_used_base_goes_when_memory_is_short(refs: dict[str, ModelRef]) -> None:
    probe = pool()
    probe.get(refs["cycle"])
    warm = pool(budget=probe.nbytes + 1000)
    first = warm.get(refs["cycle"]).target
    warm.get(refs["cycle2"])
    assert not warm.is_warm(refs["cycle"]) and warm.is_warm(refs["cycle2"]) and len(warm) == 1
    assert warm.get(refs["cycle"]).target is not first and not warm.is_warm(refs["cycle2"])


def test_recent_use_protects_a_base_and_the_older_one_goes(refs: dict[str, ModelRef], model_files: Path) -> None:
    probe = pool()
    for name in ("cycle", "cycle2"):
        probe.get(refs[name])
    warm = pool(budget=probe.nbytes + 1000)
    warm.get(refs["cycle"])
    warm.get(refs["cycle2"])
    warm.get(refs["cycle"])
    warm.get(refs["right"])  # its heads need more than is left
    assert warm.is_warm(refs["right"]) and not warm.is_warm(refs["cycle2"])


def test_one_base_always_fits_and_its_older_heads_make_room(refs: dict[str, ModelRef]) -> None:
    warm = pool(budget=1)
    warm.get(refs["right"])
    warm.get(refs["wrong"])
    assert warm.is_warm(refs["wrong"]) and not warm.is_warm(refs["right"])


def test_new_weights_behind_a_name_are_loaded_again(refs: dict[str, ModelRef]) -> None:
    warm = pool()
    old = warm.get(refs["right"])
    new = warm.get(replace(refs["right"], checkpoint_sha256="new"))
    assert new.draft is not old.draft and new.target is old.target
    assert not warm.is_warm(refs["right"])
    other = warm.get(replace(refs["cycle"], base_sha256="e" * 64))
    assert other.target is not old.target and len(warm) == 1


def test_clear_lets_everything_go(refs: dict[str, ModelRef]) -> None:
    warm = pool()
    warm.get(refs["right"])
    warm.clear()
    assert len(warm) == 0 and warm.nbytes == 0 and not warm.is_warm(refs["cycle"])


def test_files_that_are_gone_are_said_in_a_sentence(refs: dict[str, ModelRef], tmp_path: Path) -> None:
    warm = pool()
    with pytest.raises(NotFound, match="bring the model here again"):
        warm.get(replace(refs["cycle"], base_path=str(tmp_path)))
    with pytest.raises(NotFound):
        warm.get(replace(refs["right"], checkpoint_path=str(tmp_path)))
    assert warm.get(refs["right"]).draft is not None


def test_heads_of_another_size_are_refused(refs: dict[str, ModelRef], tiny_base: Path) -> None:
    other = replace(refs["right"], base_path=str(tiny_base), base_sha256="f" * 64)
    with pytest.raises(Unsupported, match="hidden_size"):
        pool().get(other)


def test_the_budget_is_a_share_of_the_machine() -> None:
    assert 100 * MEGABYTE < default_budget("cpu") < 2**50
