"""The examples of docs/library.md: a base gets a draft, Hugging Face's Trainer trains it, and it is restored."""

import re
import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

import speculoos
from decoding.target import fast_target
from models.base import load_base
from models.chat import render
from models.checkpoints import load_draft, stored_tensors, verify_sums
from models.identity import weights_sha256
from models.runtime.linear import packing_works
from models.runtime.weights import pack_supported
from speculoos.errors import BadInput, NotFound, Unsupported
from tests.tiny import make_tiny_base
from training.convert import TrainableDraft, collate_rows, conversations_from, convert

LIBRARY = Path(__file__).resolve().parents[2] / "docs" / "library.md"


def test_the_training_example_runs_and_restores_what_was_trained(tiny_base, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", LIBRARY.read_text(encoding="utf-8"), flags=re.DOTALL)
    names = {"BASE": tiny_base}
    exec(compile(next(b for b in blocks if "TrainingArguments" in b), "library.md", "exec"), names)
    trained, restored = names["heads"].draft.state_dict(), names["restored"].state_dict()
    assert trained.keys() == restored.keys() and all(torch.equal(trained[k].cpu(), restored[k]) for k in trained)
    fresh = convert(names["base"], "medusa", medusa_num_heads=2, medusa_tie_lm_head=True).draft.state_dict()
    assert any(not torch.equal(trained[k].cpu(), fresh[k]) for k in trained)
    assert (tmp_path / "my-heads" / "README.md").exists()
    exec(compile(next(b for b in blocks if "speculoos.load" in b), "library.md", "exec"), names)
    loaded = names["heads"].draft.state_dict()
    assert all(torch.equal(trained[name].cpu(), loaded[name]) for name in trained)


def test_a_batch_on_another_device_than_the_base_is_one_sentence(base, conversations):
    heads = convert(base, "medusa", medusa_num_heads=2, medusa_tie_lm_head=True)
    batch = {name: tensor.to("meta") for name, tensor in collate_rows(conversations[:2]).items()}
    with pytest.raises(BadInput, match="load the base on the device that trains"):
        heads(**batch)
    assert not any(name.startswith("_base") for name in heads.state_dict())


def test_rows_are_cut_to_the_base_where_no_length_is_given(base):
    row = {"messages": [], "token_ids": [5] * 600, "loss_spans": [[10, 600]]}
    assert [len(c) for c in conversations_from([row], base)] == [512]
    with pytest.raises(BadInput, match="max_length: this base takes at most 512 tokens, got 600"):
        conversations_from([row], base, 600)


def test_a_base_whose_weights_were_taken_over_is_refused(tiny_base):
    fast = load_base(tiny_base)
    fast_target(fast)
    with pytest.raises(Unsupported, match="load it again to train"):
        convert(fast, "medusa")


@pytest.mark.parametrize("works", [True, False])
def test_a_base_whose_layers_were_packed_is_refused_and_one_that_nothing_packs_is_not(tiny_base, works, monkeypatch):
    monkeypatch.setattr("models.runtime.linear.packing_works", lambda dtype: works and packing_works(dtype))
    base = load_base(tiny_base)
    pack_supported(base, head=False)
    packed = works and packing_works(base.dtype)
    with pytest.raises(Unsupported, match="load it again to train") if packed else nullcontext():
        convert(base, "draft")


SMALL = {
    "medusa": {"medusa_num_heads": 2, "medusa_tie_lm_head": True},
    "eagle3": {"ttt_steps": 2, "draft_vocab_size": 64},
    "draft": {"draft_num_layers": 1},
}


def trained(draft, data, folder: Path, resume: Path | None = None) -> Trainer:
    arguments = TrainingArguments(
        str(folder),
        max_steps=2,
        per_device_train_batch_size=2,
        learning_rate=1e-2,
        remove_unused_columns=False,
        save_steps=1,
        disable_tqdm=True,
        report_to=[],
        use_cpu=True,
    )
    trainer = Trainer(draft, arguments, train_dataset=data, data_collator=collate_rows)
    trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    return trainer


def tensors(draft) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in stored_tensors(draft).items()}


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("method", SMALL)
def test_what_trainer_saves_is_restored_to_generate_and_to_train_on(method, base, conversations, tmp_path):
    data, out = conversations[:4], tmp_path / "out"
    draft = convert(base, method, data, **SMALL[method])
    fresh = tensors(draft.draft)
    trainer = trained(draft, data, out)
    ours = tensors(draft.draft)
    assert not same(ours, fresh)
    trainer.save_model()
    assert (out / "checkpoint-1").exists() and same(tensors(load_draft(out, base)), ours)
    assert 'speculoos.load("THIS_FOLDER")' in (out / "README.md").read_text()
    restored = speculoos.load(out, conversations=data)
    assert same(tensors(restored.draft), ours) and restored.settings == draft.settings and restored.notices == []
    prompt = "say 3 fox 21"
    plain = base.model.generate(
        torch.tensor([render(base.tokenizer, [{"role": "user", "content": prompt}])]),
        max_new_tokens=12,
        do_sample=False,
    )
    answer = restored.generate(prompt, max_tokens=12)
    assert answer.token_ids == plain[0, -len(answer.token_ids) :].tolist() and answer.summary.mean_accepted_length >= 1
    restored(**collate_rows(data[:2]))["loss"].backward()
    assert any(value.grad is not None and value.grad.abs().sum() > 0 for value in restored.parameters())
    resumed = convert(base, method, data, **SMALL[method])
    trained(resumed, data, tmp_path / "resumed", out / "checkpoint-1")
    assert same(tensors(resumed.draft), ours)


def test_a_folder_with_its_base_can_be_moved_and_saved_over_itself(tiny_base, conversations, tmp_path):
    base = load_base(tiny_base)
    convert(base, "medusa", **SMALL["medusa"]).save(tmp_path / "whole", copy_base=True, base="tiny")
    (tmp_path / "whole").rename(tmp_path / "moved")
    moved = speculoos.load(str(tmp_path / "moved"))
    assert moved.base.path == tmp_path / "moved" / "base" and moved.base_sha256() == weights_sha256(tiny_base)
    moved.draft.blocks[0][0].linear.bias.data.fill_(0.5)
    moved.save(tmp_path / "moved")
    again = TrainableDraft.from_pretrained(tmp_path / "moved")
    assert same(tensors(again.draft), tensors(moved.draft)) and again.generate("fox", max_tokens=2).token_ids
    verify_sums(tmp_path / "moved")


def test_a_folder_whose_base_is_gone_or_another_says_so(tiny_base, tmp_path):
    source = shutil.copytree(tiny_base, tmp_path / "source")
    convert(load_base(source), "medusa", **SMALL["medusa"]).save(tmp_path / "heads")
    shutil.rmtree(source)
    with pytest.raises(NotFound, match="source is not here; load it and pass it as base="):
        speculoos.load(tmp_path / "heads")
    other = load_base(make_tiny_base(tmp_path / "other", seed=3))
    assert "fewer draft tokens" in speculoos.load(tmp_path / "heads", base=other).notices[0]
    assert speculoos.load(tmp_path / "heads", base=load_base(tiny_base)).notices == []


@pytest.mark.parametrize("method", ["medusa", "eagle3"])
def test_a_draft_vocabulary_needs_conversations(method, base, conversations):
    with pytest.raises(BadInput, match="need conversations"):
        convert(base, method, draft_vocab_size=64)
    draft = convert(base, method, conversations=conversations, draft_vocab_size=64).draft
    assert len(draft.draft_ids) == 64 and {*conversations[0].token_ids[conversations[0].mask].tolist()} & {
        *draft.draft_ids.tolist()
    }


@pytest.mark.parametrize("method", ["draft", "eagle3"])
def test_a_gathered_state_dict_is_stored_by_the_names_of_a_checkpoint(method, base, conversations, tmp_path):
    draft = convert(base, method, conversations=conversations, **SMALL[method])
    state = draft.state_dict()
    other = {
        name: torch.full_like(value, 0.25) if value.is_floating_point() else value for name, value in state.items()
    }
    draft.save_pretrained(tmp_path / "saved", state_dict=other)
    draft.save_pretrained(tmp_path / "not", is_main_process=False)
    assert not (tmp_path / "not").exists()
    restored = tensors(speculoos.load(tmp_path / "saved", base=base).draft)
    assert restored.keys() == stored_tensors(draft.draft).keys() and all(
        (v == 0.25).all() for v in restored.values() if v.is_floating_point()
    )
    with pytest.raises(BadInput, match="does not belong to this draft .first wrong tensor"):
        draft.load_state_dict({"odd": torch.zeros(1)})
