"""Warm models are loaded once, unloaded by least recent use, and loaded again when their weights change."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from decoding.config import GenerateConfig
from decoding.generate import generate
from models.base import load_base
from models.checkpoints import WEIGHTS, update_draft_config
from models.memory import cache_bytes
from models.runtime.graphs import MAX_GRAPHS, GraphedForward
from serving.catalog import ModelRef
from serving.pool import MAX_CONTEXT, ModelPool, PooledModel, default_budget
from speculoos.checksums import file_sha256
from speculoos.errors import NotFound, Unavailable, Unsupported
from tests.tiny import make_tiny_base
from tests.tools.emulated_cuda import emulated_cuda
from tests.tools.gpu_memory import GpuMemory

MEGABYTE = 2**20


@pytest.fixture
def refs(model_files: Path) -> dict[str, ModelRef]:
    """Refs to base cycle, base cycle2, and heads `right` and `wrong` on cycle."""
    cycle = ModelRef("cycle", str(model_files / "cycle"), "b" * 64)
    second = ModelRef("cycle2", str(model_files / "cycle2"), "d" * 64)
    models = {"cycle": cycle, "cycle2": second}
    for name in ("right", "wrong"):
        models[name] = with_draft(replace(cycle, name=f"cycle@{name}"), model_files / name)
    return models


def with_draft(base: ModelRef, folder: Path) -> ModelRef:
    """The ref of `base` with the draft in `folder`, as its database row names it."""
    return replace(base, checkpoint_path=str(folder), checkpoint_sha256=file_sha256(folder / WEIGHTS))


def pool(budget: int = 2**40) -> ModelPool:
    return ModelPool("cpu", "float32", budget)


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
    assert not warm.is_loaded(refs["cycle"]) and warm.is_loaded(refs["cycle2"]) and len(warm) == 1
    assert warm.get(refs["cycle"]).target is not first and not warm.is_loaded(refs["cycle2"])


def test_recent_use_protects_a_base_and_the_older_one_goes(refs: dict[str, ModelRef], model_files: Path) -> None:
    warm = pool()
    generate_tokens(warm.get(refs["cycle"]))
    generate_tokens(warm.get(refs["cycle2"]))
    warm.budget = warm.nbytes + 1000
    warm.get(refs["cycle"])
    warm.get(refs["right"])  # its heads need more than is left
    assert warm.is_loaded(refs["right"]) and not warm.is_loaded(refs["cycle2"])


def test_one_base_always_fits_and_its_older_heads_are_unloaded(refs: dict[str, ModelRef]) -> None:
    warm = pool(budget=1)
    warm.get(refs["right"])
    warm.get(refs["wrong"])
    assert warm.is_loaded(refs["wrong"]) and not warm.is_loaded(refs["right"])


def test_new_weights_behind_a_name_are_loaded_again(refs: dict[str, ModelRef], tmp_path: Path) -> None:
    warm, folder = pool(), tmp_path / "heads"
    shutil.copytree(refs["right"].checkpoint_path, folder)
    before = with_draft(refs["right"], folder)
    old = warm.get(before)
    shutil.copytree(refs["wrong"].checkpoint_path, folder, dirs_exist_ok=True)
    new = warm.get(with_draft(before, folder))
    assert new.draft is not old.draft and new.target is old.target
    assert not warm.is_loaded(before)
    other = warm.get(replace(refs["cycle"], base_sha256="e" * 64))
    assert other.target is not old.target and len(warm) == 1


def generate_tokens(loaded: PooledModel, **options: Any) -> Any:
    """Generate eight tokens; returns the drafter."""
    drafter = loaded.drafter(options)
    list(generate(loaded.target, drafter, [1, 2, 3], GenerateConfig(max_tokens=8)))
    return drafter


def test_bytes_are_those_of_weights_and_cache(tmp_path: Path) -> None:
    folder = make_tiny_base(tmp_path / "base", hidden_size=64, max_position_embeddings=4096)
    warm = pool()
    target = warm.get(ModelRef("tiny", str(folder), "b" * 64)).target
    generate_tokens(PooledModel(next(iter(warm._bases.values())), None))
    weights = sum(weight.nbytes for weight in load_base(folder).model.parameters())
    assert warm.nbytes == pytest.approx(weights + target.cache.nbytes(), rel=0.2)
    assert cache_bytes(vars(target.base.config), MAX_CONTEXT, 4) == target.cache.nbytes()


def test_models_are_loaded_into_the_free_memory_of_a_gpu(
    refs: dict[str, ModelRef], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other base is unloaded first. CUDA graphs count, and memory that a job has reserved is not used."""
    monkeypatch.setattr(GraphedForward.__init__, "__defaults__", (False, MAX_GRAPHS))
    job: list[Any] = ["", 0]
    with emulated_cuda():

        def reserved() -> tuple[str, int]:
            assert warm.loading, "a job that asks now waits for the end of it"
            return job[0], job[1]

        warm = ModelPool("cuda:0", "float32", 2**40, reserved=reserved)
        memory = GpuMemory(2**40, used=lambda: warm.nbytes)
        memory.install(monkeypatch)
        loaded = warm.get(refs["cycle"])
        planned = warm.nbytes
        memory.used = lambda: 1000
        assert warm.planned_bytes == planned - 1000 and not warm.loading
        memory.used = lambda: warm.nbytes
        generate_tokens(loaded, drafter="none")
        graphs = sum(graph.nbytes for graph in loaded.target.cache.replays.values())
        assert warm.nbytes == planned + graphs > planned
        memory.total = planned + 1000
        warm.get(refs["cycle2"])
        assert warm.is_loaded(refs["cycle2"]) and not warm.is_loaded(refs["cycle"]) and warm.nbytes == planned
        memory.others = 2000
        with pytest.raises(Unavailable, match=r"cycle needs .* GB of memory on cuda:0, .* other programs use the rest"):
            warm.get(refs["cycle"])
        memory.others, job[:] = 0, ["my job", 2000]
        with pytest.raises(Unavailable, match="my job” has reserved"):
            warm.get(refs["cycle"])
        assert len(warm) == 0
        job[:] = ["my job", 1000]
        assert warm.get(refs["cycle"]).target.base.device.type == "cuda"


def test_clear_unloads_everything(refs: dict[str, ModelRef]) -> None:
    warm = pool()
    warm.get(refs["right"])
    warm.clear()
    assert len(warm) == 0 and warm.nbytes == 0 and not warm.is_loaded(refs["cycle"])


def test_missing_files_are_reported_in_a_sentence(refs: dict[str, ModelRef], tmp_path: Path) -> None:
    warm = pool()
    with pytest.raises(NotFound, match="import the model again"):
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


def test_a_draft_that_is_tuned_while_it_is_warm_drafts_by_its_new_tree(
    refs: dict[str, ModelRef], model_files: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(model_files / "right", tmp_path / "right"))
    ref, warm = with_draft(refs["cycle"], folder), pool()
    first = warm.get(ref)
    before = first.drafter({})
    assert before.growth.nodes > 2 and warm.get(ref).drafter({}) is before
    update_draft_config(folder, drafting={"tree": [[0]]}, tuning={})
    again = warm.get(ref)
    assert again.draft is first.draft, "the same weights"
    assert again.drafter({}).growth.nodes == 2
    (folder / "config.json").write_text("{")
    assert warm.get(ref).drafter({}).growth.nodes == 2, "what is warm goes on"
