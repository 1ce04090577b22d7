"""The training loop learns, resumes exactly, stops on request, and reports errors in one sentence."""

import json
import os
import signal
import sys
import time
import weakref
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target
from models.base import load_base
from models.checkpoints import load_draft, read_config, verify_sums
from models.methods import train_config
from speculoos.errors import BadInput, Cancelled, NotFound, Unavailable, Unsupported
from speculoos.reporting import SilentReporter
from tests.tiny import GRANITE, make_tiny_base
from tests.tools.zygote import begin
from tests.training.conftest import answer, write_dataset
from training.loop import Trainer, train
from training.resume_points import all_resume_points, latest_resume_point
from training.setup import make_accelerator
from training.stream import FeatureStore

SHORT = {"max_length": 256, "batch_tokens": 128, "max_steps": 12, "epochs": 0, "held_out": 0.2, "lr": 2e-3}
SHORT |= {"eval_every": 4, "save_every": 5, "samples": 0, "draft_num_layers": 2, "device": "cpu"}
METHODS = ("medusa", "eagle", "eagle3", "peagle", "dflash", "draft")


def config(method="medusa", **changes):
    return train_config(**{"method": method, **SHORT, **changes})


class Notebook(SilentReporter):
    """Records what is reported; requests a stop once `stop_after` steps are reported."""

    def __init__(self, stop_after=None):
        self.values, self.lines, self.stop_after = {}, [], stop_after

    def metrics(self, step, values):
        self.values.setdefault(step, {}).update(values)

    def log(self, message, level="info"):
        self.lines.append(message)

    def stop_requested(self):
        return self.stop_after is not None and len(self.values) >= self.stop_after

    def curve(self, name="train/loss"):
        return {step: values[name] for step, values in self.values.items() if name in values}


def check_it_learned(notes, method, factor=0.95):
    """The last ten of 40 steps have a lower loss than the first ten. EAGLE-3's and P-EAGLE's last norm starts low, so
    their first predictions are nearly uniform, like those of a tiny random base: there is less to gain."""
    losses = list(notes.curve().values())
    assert len(losses) == 40 and sum(losses[-10:]) < (0.99 if method in ("eagle3", "peagle") else factor) * sum(
        losses[:10]
    )


@pytest.mark.parametrize("method", METHODS)
def test_a_run_learns_reports_and_leaves_a_checkpoint(method, tiny_base, base, dataset, tmp_path):
    notes = Notebook()
    settings = config(method, max_steps=40, lr=5e-3)
    result = train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes, info={"base": "tiny"})
    check_it_learned(notes, method)
    assert {"train/tokens_per_second", "train/lr", "train/grad_norm", "train/memory_mb"} <= set(notes.values[1])
    assert notes.curve("train/tokens")[40] == result.metrics["tokens"] > 0
    assert sorted(notes.curve("train/minutes").values()) == list(notes.curve("train/minutes").values())
    assert {"eval/tau"} <= set(notes.values[4]) and result.metrics["mean_accepted_length"] >= 1
    draft = load_draft(result.folder, base)
    verify_sums(result.folder)
    stored = read_config(result.folder)
    assert draft.method == method == stored["speculoos_method"] and len(stored["base_sha256"]) == 64
    assert stored["training"]["settings"]["max_steps"] == 40
    assert "tiny" in (result.folder / "README.md").read_text()
    assert not list((tmp_path / "out").glob(".*"))


EAGLE31 = {"fc_norm": True, "norm_output": True, "ttt_loss": "dpace"}


@pytest.mark.parametrize(
    ("method", "save_dtype", "changes"),
    [*((name, "float32", {}) for name in METHODS), ("medusa", "bfloat16", {}), ("eagle3", "float32", EAGLE31)],
)
def test_a_stopped_and_resumed_run_equals_one_that_was_not(method, save_dtype, changes, tiny_base, dataset, tmp_path):
    whole, first, second = Notebook(), Notebook(stop_after=7), Notebook()
    settings = config(method, save_dtype=save_dtype, **changes)
    straight = train(settings, tiny_base, dataset, tmp_path / "a", reporter=whole)
    with pytest.raises(Cancelled, match="after step 7"):
        train(settings, tiny_base, dataset, tmp_path / "b", reporter=first)
    weights = load_file(tmp_path / "b" / "state-7" / "draft.safetensors")
    assert {tensor.dtype for tensor in weights.values() if tensor.is_floating_point()} == {torch.float32}
    resumed = train(settings, tiny_base, dataset, tmp_path / "c", tmp_path / "b", reporter=second)
    assert read_config(resumed.folder)["dtype"] == save_dtype
    assert {**first.curve(), **second.curve()} == whole.curve()
    assert {**first.curve("train/tokens"), **second.curve("train/tokens")} == whole.curve("train/tokens")
    assert second.curve("eval/tau") == {s: v for s, v in whole.curve("eval/tau").items() if s > 7}
    a, b = (load_file(r.folder / "model.safetensors") for r in (straight, resumed))
    assert all(torch.equal(a[name], b[name]) for name in a)
    assert resumed.metrics["mean_accepted_length"] == straight.metrics["mean_accepted_length"]
    assert resumed.metrics["tokens"] == straight.metrics["tokens"]


def test_points_of_several_steps_are_the_same_after_a_stop_between_them(tiny_base, dataset, tmp_path):
    """The charts' point at step 8 is a mean over steps 5 to 8, some of them before the stop."""
    whole, first, second = Notebook(), Notebook(), Notebook()
    settings = config(max_steps=12, log_every=4, eval_every=0)
    train(settings, tiny_base, dataset, tmp_path / "a", reporter=whole)
    trainer = Trainer(settings, tiny_base, dataset, tmp_path / "b", first, {})
    first.stop_requested = lambda: trainer.step == 6
    with pytest.raises(Cancelled):
        trainer.run()
    train(settings, tiny_base, dataset, tmp_path / "c", tmp_path / "b", reporter=second)
    for name in ("train/loss", "train/top1_head1", "train/tokens"):
        assert {**first.curve(name), **second.curve(name)} == whole.curve(name)


def test_a_small_model_with_dropout_resumes_exactly_too(tmp_path):
    folder = make_tiny_base(tmp_path / "gpt2", "gpt2", n_embd=32, n_layer=2, n_head=4)
    base = load_base(folder)
    assert base.config.attn_pdrop > 0
    data = write_dataset(tmp_path / "data", [answer(base, f"count {i}", 20) for i in range(6)])
    whole, first, second = Notebook(), Notebook(stop_after=2), Notebook()
    settings = config("draft", max_steps=5, eval_every=0)
    train(settings, folder, data, tmp_path / "a", reporter=whole)
    with pytest.raises(Cancelled):
        train(settings, folder, data, tmp_path / "b", reporter=first)
    train(settings, folder, data, tmp_path / "c", tmp_path / "b", reporter=second)
    assert {**first.curve(), **second.curve()} == whole.curve()


class Slow(SilentReporter):
    """Prints every loss; after step 11 it waits until it is killed."""

    def metrics(self, step, values):
        if "train/loss" in values:
            print(json.dumps([step, values["train/loss"]]), flush=True)
            if step == 11:
                time.sleep(600)


@pytest.mark.integration
def test_a_run_killed_at_any_step_goes_on_to_the_same_weights(tiny_base, dataset, tmp_path):
    settings = {"method": "medusa", **SHORT, "max_steps": 14, "save_every": 3}
    straight = train(train_config(**settings), tiny_base, dataset, tmp_path / "a", reporter=(whole := Notebook()))
    arguments = json.dumps([settings, str(tiny_base), str(dataset), str(tmp_path / "b"), None])
    reading, writing = os.pipe()
    child = begin("tests.training.test_loop", [arguments], out=writing)
    os.close(writing)
    with open(reading) as output:
        losses = [json.loads(line) for line in islice((line for line in output if line.startswith("[")), 11)]
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    assert [step for step, _ in losses] == list(range(1, 12))
    second = Notebook()
    resumed = train(train_config(**settings), tiny_base, dataset, tmp_path / "c", tmp_path / "b", reporter=second)
    assert min(second.curve()) >= 10 and {**dict(losses), **second.curve()} == pytest.approx(whole.curve(), abs=1e-6)
    a, b = (load_file(r.folder / "model.safetensors") for r in (straight, resumed))
    assert all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


def test_only_the_last_states_are_kept_and_a_half_written_one_is_not_a_state(tiny_base, dataset, tmp_path):
    train(config(save_every=2, keep_last=2), tiny_base, dataset, tmp_path / "out")
    assert [p.name for p in all_resume_points(tmp_path / "out")] == ["state-10", "state-12"]
    (tmp_path / "out" / "state-99").mkdir()
    assert latest_resume_point(tmp_path / "out").name == "state-12"
    assert latest_resume_point(tmp_path / "out" / "state-10").name == "state-10"
    assert latest_resume_point(tmp_path / "nothing") is None and latest_resume_point(None) is None


def test_resuming_with_other_settings_is_refused_but_a_longer_run_is_not(tiny_base, dataset, tmp_path):
    train(config(), tiny_base, dataset, tmp_path / "out")
    with pytest.raises(BadInput, match="lr"):
        train(config(lr=1e-4), tiny_base, dataset, tmp_path / "b", tmp_path / "out")
    longer = train(config(max_steps=14), tiny_base, dataset, tmp_path / "c", tmp_path / "out")
    assert longer.step == 14


def test_resuming_on_other_data_is_refused(tiny_base, dataset, rows, tmp_path):
    train(config(max_steps=5), tiny_base, dataset, tmp_path / "out")
    other = write_dataset(tmp_path / "other", rows[:-1])
    with pytest.raises(BadInput, match=r"data: .* conversations with"):
        train(config(), tiny_base, other, tmp_path / "b", tmp_path / "out")


def test_no_state_is_newer_than_what_is_stored(tiny_base, dataset, tmp_path):
    """A state newer than the stored values (the database was locked for too long) would make a resumed run skip
    steps."""

    class LockedDatabase(Notebook):
        def keep(self):
            return len(self.values) <= 4

    train(
        config(max_steps=8, save_every=1, keep_last=20), tiny_base, dataset, tmp_path / "out", reporter=LockedDatabase()
    )
    assert {path.name for path in all_resume_points(tmp_path / "out")} == {f"state-{step}" for step in (1, 2, 3, 4)}


def test_a_resumed_run_removes_what_the_killed_one_left_on_the_disk(tiny_base, dataset, tmp_path):
    train(config(), tiny_base, dataset, tmp_path / "out")
    for name in (".features-0-1.0", ".state-10.77.tmp"):
        (tmp_path / "out" / name).mkdir()
        (tmp_path / "out" / name / "large").touch()
    train(config(max_steps=14), tiny_base, dataset, tmp_path / "b", tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*")) and all_resume_points(tmp_path / "out")


def test_resuming_with_another_number_of_processes_is_refused(tiny_base, dataset, tmp_path, monkeypatch):
    """Each step would use other batches."""
    train(config(held_out=0), tiny_base, dataset, tmp_path / "out")
    monkeypatch.setattr("accelerate.Accelerator.num_processes", 2)
    with pytest.raises(BadInput, match="processes"):
        train(config(held_out=0), tiny_base, dataset, tmp_path / "b", tmp_path / "out")


def test_the_learning_rate_by_the_clock_is_the_first_processes(tiny_base, dataset, tmp_path):
    trainer = Trainer(config(max_minutes=5.0), tiny_base, dataset, tmp_path / "out", SilentReporter(), {})
    other = {"device": torch.device("cpu"), "reduce": lambda tensor, reduction: tensor + 0.25}
    trainer.accelerator, trainer.is_main = SimpleNamespace(num_processes=2, **other), False
    assert trainer._broadcast_progress(0.75) == 0.25


def test_the_scale_of_fp16_gradients_is_part_of_a_state(tiny_base, dataset, tmp_path):
    def trainer():
        result = Trainer(config(), tiny_base, dataset, tmp_path / "out", SilentReporter(), {})
        result.accelerator.scaler = torch.amp.GradScaler("cpu")
        return result

    first, second = trainer(), trainer()
    first.accelerator.scaler.load_state_dict(first.accelerator.scaler.state_dict() | {"scale": 512.0})
    first._save_resume_point()
    second._resume(tmp_path / "out")
    assert second.accelerator.scaler.state_dict()["scale"] == 512.0


def test_the_bases_hash_is_known_even_where_the_caller_does_not_know_it(tiny_base, dataset, tmp_path):
    trainer = Trainer(
        config(), tiny_base, dataset, tmp_path / "out", SilentReporter(), {"base": "tiny", "base_sha256": ""}
    )
    assert len(trainer.info["base_sha256"]) == 64 and trainer.info["base"] == "tiny"


def test_a_prompt_that_cannot_be_answered_gives_no_sample_and_ends_no_training(tiny_base, base, dataset, tmp_path):
    """An imported row may count from its first token on."""
    row = {"id": "odd", "messages": [], "token_ids": list(range(40, 70)), "loss_spans": [[0, 12]]}
    data = write_dataset(tmp_path / "data", [row, {**row, "id": "other"}])
    result = train(config(max_steps=2, samples=2, held_out=0.5), tiny_base, data, tmp_path / "out")
    assert result.step == 2


def test_a_device_that_cannot_be_used_is_refused(tiny_base, dataset, tmp_path, monkeypatch):
    with pytest.raises(BadInput, match="fp16 needs a GPU"):
        train(config(mixed_precision="fp16"), tiny_base, dataset, tmp_path / "out")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    with pytest.raises(BadInput, match="2 GPUs"):
        train(config(device="cuda:2"), tiny_base, dataset, tmp_path / "out")
    devices = []
    monkeypatch.setattr("torch.cuda.set_device", devices.append)
    monkeypatch.setattr("accelerate.Accelerator", lambda **_options: None)
    make_accelerator(config(device="cuda:1"))
    assert devices == [torch.device("cuda:1")]


def test_the_best_draft_on_held_out_data_is_the_one_kept(tiny_base, dataset, tmp_path):
    """With a learning rate that ruins the heads, the best measured draft is kept, not the last one."""
    notes = Notebook()
    ruinous = config(lr=1.0, clip=0.0, eval_every=1, schedule="constant", warmup_ratio=0.5)
    result = train(ruinous, tiny_base, dataset, tmp_path / "out", reporter=notes)
    taus = notes.curve("eval/tau")
    assert result.metrics["mean_accepted_length"] == max(taus.values())
    assert result.metrics["best_step"] == min(s for s, tau in taus.items() if tau == max(taus.values()))


def test_patience_ends_a_run_that_no_longer_improves(tiny_base, dataset, tmp_path):
    notes, evaluated = Notebook(), []
    notes.metrics = lambda step, values: evaluated.append(step) if "eval/tau" in values else None
    settings = config(lr=1e-9, eval_every=1, patience=3, max_steps=50)
    result = train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes)
    assert result.step == 4 and evaluated == [1, 2, 3, 4]


def test_the_clock_ends_a_run(tiny_base, dataset, tmp_path, monkeypatch):
    seconds = iter(range(0, 10**6, 5))
    monkeypatch.setattr("training.loop.time", SimpleNamespace(monotonic=lambda: next(seconds)))
    settings = config(max_steps=0, max_minutes=3, eval_every=0, save_every=0)
    result = train(settings, tiny_base, dataset, tmp_path / "out")
    assert 3 < result.step < 36 and result.metrics["minutes"] > 3


def test_one_pass_sees_every_training_token_once(tiny_base, dataset, conversations, tmp_path):
    from training.batches import split_held_out

    result = train(config(max_steps=0, epochs=1, held_out=0.2), tiny_base, dataset, tmp_path / "out")
    training, _ = split_held_out(conversations, 0.2, 64, 0)
    assert result.metrics["tokens"] == sum(len(c) for c in training)


def test_the_tokens_since_the_last_log_line_are_counted(tiny_base, dataset, tmp_path):
    notes = Notebook()
    settings = config(max_steps=3, log_every=2, eval_every=3)
    result = train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes)
    assert result.metrics["tokens"] == notes.curve("train/tokens")[3] > notes.curve("train/tokens")[2]


def test_held_out_features_are_in_memory_one_batch_at_a_time(tiny_base, dataset, tmp_path):
    settings = config(cache_features_mb=0, held_out=0.5)
    trainer = Trainer(settings, tiny_base, dataset, tmp_path, Notebook(), {})
    computed, earlier = trainer.held_out.features, []

    def features(*arguments):
        assert not any(reference() is not None for reference in earlier)
        result = computed(*arguments)
        earlier.append(weakref.ref(result["hidden"]))
        return result

    trainer.held_out.features = features
    trainer._evaluate()
    assert trainer.best["tau"] >= 1 and len(earlier) > 1


def test_features_kept_in_memory_or_on_disk_change_nothing(tiny_base, dataset, tmp_path):
    notes = [Notebook(), Notebook(), Notebook()]
    for note, options in zip(notes, ({}, {"cache_disk_gb": 0.1}, {"cache_disk_gb": 0.0}), strict=True):
        settings = config("eagle3", **({"cache_features_mb": 0} if options else {}), **options)
        train(settings, tiny_base, dataset, tmp_path / str(id(note)), reporter=note)
    assert notes[0].curve() == notes[1].curve() == notes[2].curve()
    assert any("100% of them fit in the cache" in line for line in notes[1].lines)
    assert not list(tmp_path.rglob("*features*"))


def test_the_store_fills_memory_then_disk_then_forgets(tmp_path):
    store = FeatureStore(100, 100, tmp_path / "kept")
    for index in range(3):
        store.put(index, {"hidden": torch.full((25,), float(index))})
    assert store.get(0)["hidden"][0] == 0 and store.get(1)["hidden"][0] == 1 and store.get(2) is None
    assert [p.name for p in (tmp_path / "kept").iterdir()] == ["features-000001.safetensors"]
    store.clear()
    assert not (tmp_path / "kept").exists()


def test_accumulation_equals_one_larger_batch(tiny_base, base, conversations):
    """With unequal masks, dividing by the count of the whole step makes two small batches equal one large one."""
    from training.batches import collate
    from training.method import make_method

    method = make_method(config("eagle3"), base, conversations)
    whole = method.features(collate(conversations[:4]))
    parts = [method.features(collate(conversations[i : i + 2])) for i in (0, 2)]
    counts = sum(method.counts(p) for p in parts)
    assert torch.equal(counts, method.counts(whole)) and len(set(counts.tolist())) > 1
    scale = torch.tensor(method.weights) / counts

    def gradient(features):
        method.zero_grad()
        for f in features:
            method(f, scale=scale).loss.backward()
        return torch.cat([p.grad.flatten() for p in method.parameters() if p.grad is not None])

    assert torch.allclose(gradient([whole]), gradient(parts), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("method", "precision"), [("tied", "no"), ("eagle3", "bf16"), ("draft", "no")])
def test_a_half_precision_base_and_mixed_precision_learn_too(method, precision, tiny_base, dataset, tmp_path):
    notes = Notebook()
    changes = {"mixed_precision": precision, "base_dtype": "bfloat16", "save_dtype": "bfloat16", "samples": 1}
    changes |= {"method": "medusa", "medusa_tie_lm_head": True} if method == "tied" else {"method": method}
    settings = config(max_steps=40, lr=5e-3, **changes)
    result = train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes)
    check_it_learned(notes, method, factor=0.98)
    assert read_config(result.folder)["dtype"] == "bfloat16"


def test_a_loss_that_is_no_number_is_reported_with_a_hint(tiny_base, dataset, tmp_path):
    ruinous = config("eagle", lr=10.0, optimizer="sgd", clip=0, max_steps=60, eagle_feature_weight=1e6)
    with pytest.raises(BadInput, match="at step .* lower lr") as error:
        train(ruinous, tiny_base, dataset, tmp_path / "out")
    assert error.value.hint


def test_a_full_disk_is_reported_and_leaves_nothing_half_written(tiny_base, dataset, tmp_path, monkeypatch):
    import shutil

    usage = shutil.disk_usage(tmp_path)
    # as on a full disk; tests/drills/test_disk.py fills a real one
    monkeypatch.setattr("training.resume_points.shutil.disk_usage", lambda _: usage._replace(free=1000))
    with pytest.raises(Unavailable, match="free"):
        train(config(held_out=0), tiny_base, dataset, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


def test_no_memory_is_reported_with_what_to_change(tiny_base, dataset, tmp_path, monkeypatch):
    def greedy(*_a, **_k):
        torch.empty(1 << 60)

    monkeypatch.setattr("training.medusa.medusa_labels", greedy)
    with pytest.raises(Unavailable, match="memory") as error:
        train(config(), tiny_base, dataset, tmp_path / "out")
    assert "batch_tokens" in error.value.hint


def test_what_the_base_cannot_take_is_refused_before_training(tiny_base, dataset, tmp_path):
    with pytest.raises(BadInput, match="max_length"):
        train(config(max_length=100_000), tiny_base, dataset, tmp_path / "out")
    with pytest.raises(BadInput, match="draft_num_layers"):
        train(config("draft", draft_num_layers=40), tiny_base, dataset, tmp_path / "out")
    with pytest.raises(BadInput, match="draft_vocab_size"):
        train(config("eagle3", draft_vocab_size=10**6), tiny_base, dataset, tmp_path / "out")
    for method in ("eagle3", "peagle", "dflash"):
        with pytest.raises(BadInput, match="aux_layers: this base has layers 0 to"):
            train(config(method, aux_layers=(1, 99)), tiny_base, dataset, tmp_path / "out")
    for method in ("peagle", "dflash"):
        with pytest.raises(BadInput, match="mask_token_id: this base has"):
            train(config(method, mask_token_id=10**6), tiny_base, dataset, tmp_path / "out")


@pytest.mark.parametrize("init", ["pruned", "random"])
def test_a_draft_of_another_width_learns_and_drafts_exactly(init, tiny_base, dataset, tmp_path):
    notes = Notebook()
    sizes = {"draft_init": init, "draft_hidden_size": 16, "draft_intermediate_size": 24, "draft_loss": "ce"}
    settings = config("draft", **sizes, max_steps=16, lr=2e-2, eval_every=0)
    result = train(settings, tiny_base, dataset, tmp_path / "out", reporter=notes)
    losses = list(notes.curve().values())
    assert sum(losses[-4:]) < 0.9 * sum(losses[:4])
    base = load_base(tiny_base)
    draft = load_draft(result.folder, base)
    assert draft.model.config.hidden_size == 16 and draft.model.config.intermediate_size == 24
    plain, drafted = ([token.id for step in steps_of(base, model) for token in step.tokens] for model in (None, draft))
    assert plain == drafted


def steps_of(base, draft):
    target = Target(base, 96)
    drafter = make_drafter(target, draft, {"depth": 3} if draft else {})
    return list(generate(target, drafter, list(range(20, 40)), GenerateConfig(max_tokens=24)))


def test_the_default_length_is_cut_to_the_base(tiny_base, dataset, tmp_path):
    options = {name: value for name, value in SHORT.items() if name != "max_length"}
    default = train_config("medusa", **{**options, "max_steps": 1, "eval_every": 0})
    assert default.max_length == 2048
    result = train(default, tiny_base, dataset, tmp_path / "out")
    assert read_config(result.folder)["training"]["settings"]["max_length"] == 512


def test_a_base_that_drafts_cannot_be_made_for_is_refused_by_name(dataset, tmp_path, monkeypatch):
    with pytest.raises(Unsupported, match="bert attends to later tokens"):
        train(config(), make_tiny_base(tmp_path / "bert", "bert"), dataset, tmp_path / "out")
    granite = make_tiny_base(tmp_path / "granite", "granite", logits_scaling=4.0)
    monkeypatch.setattr("models.families.LOGIT_DIVISORS", {})
    with pytest.raises(Unsupported, match="How granite applies logits_scaling to its logits"):
        train(config(), granite, dataset, tmp_path / "out")
    monkeypatch.setattr("models.families.LOGIT_KEYS", ())
    with pytest.raises(Unsupported, match="GraniteForCausalLM computes its logits .* in an unknown way"):
        train(config(), granite, dataset, tmp_path / "out")


def test_other_families_train_too(tmp_path):
    """test_losses.py, test_peagle.py and test_dflash.py check each method's loss with heads of other families."""
    sizes_of = {"gpt2": {"n_embd": 32, "n_layer": 4, "n_head": 4}, "granite": GRANITE}
    methods_of = {"gpt2": METHODS, "phi": ("medusa", "eagle3", "draft"), "granite": ("eagle", "peagle", "dflash")}
    for family, methods in methods_of.items():
        sizes = sizes_of.get(family, {})
        folder = make_tiny_base(tmp_path / family, family, **sizes)
        rows = [answer(load_base(folder), f"count {i}", 20) for i in range(4)]
        data = write_dataset(tmp_path / f"{family}-data", rows)
        for method in methods:
            result = train(config(method, max_steps=2), folder, data, tmp_path / f"{family}-{method}")
            assert result.step == 2 and Path(result.folder, "model.safetensors").exists()


@pytest.mark.parametrize("method", METHODS)
def test_a_checkpoint_is_trained_further(method, base, tiny_base, dataset, tmp_path):
    """It starts with the weights and the vocabulary of the first run, and with a lower loss than a fresh run."""
    sizes = {"draft_vocab_size": 100} if method in ("medusa", "eagle3", "peagle", "dflash") else {}
    first = train(config(method, **sizes), tiny_base, dataset, tmp_path / "first")
    notes, fresh = Notebook(), Notebook()
    settings = config(method, draft_path=str(first.folder), max_steps=4, warmup_ratio=0.0)
    trainer = Trainer(settings, tiny_base, dataset, tmp_path / "more", notes, {})
    stored = load_draft(first.folder, base)
    initial = trainer.method.draft.state_dict()
    assert all(torch.equal(initial[name], tensor) for name, tensor in stored.state_dict().items())
    result = trainer.run()
    train(config(method, **sizes, max_steps=4, warmup_ratio=0.0), tiny_base, dataset, tmp_path / "fresh", None, fresh)
    assert list(notes.curve().values())[0] < list(fresh.curve().values())[0]
    assert read_config(result.folder).get("draft_vocab_size") == sizes.get("draft_vocab_size")
    flags = {name: p.requires_grad for name, p in trainer.method.draft.named_parameters()}
    fresh_method = Trainer(config(method, **sizes), tiny_base, dataset, tmp_path / "n", SilentReporter(), {}).method
    assert flags == {name: p.requires_grad for name, p in fresh_method.draft.named_parameters()}


def test_a_checkpoint_of_another_method_is_refused(tiny_base, dataset, tmp_path):
    heads = train(config(max_steps=1), tiny_base, dataset, tmp_path / "heads").folder
    with pytest.raises(BadInput, match="draft_path: .* holds a draft of the method medusa, not eagle3"):
        train(config("eagle3", draft_path=str(heads)), tiny_base, dataset, tmp_path / "out")
    with pytest.raises(NotFound, match="nowhere"):
        train(config("eagle3", draft_path=str(tmp_path / "nowhere")), tiny_base, dataset, tmp_path / "out")


def test_two_sets_train_as_one(tiny_base, rows, tmp_path):
    """Their rows are read one after the other: the same losses as of one set that holds all of them."""
    parts = [write_dataset(tmp_path / "first", rows[:5]), write_dataset(tmp_path / "second", rows[5:])]
    curves = []
    for number, data in enumerate((write_dataset(tmp_path / "whole", rows), parts)):
        notes = Notebook()
        train(config(max_steps=4), tiny_base, data, tmp_path / f"out-{number}", None, notes)
        curves.append(notes.curve())
    assert curves[0] == curves[1] and len(curves[0]) == 4


if __name__ == "__main__":
    options, *folders = json.loads(sys.argv[1])
    train(train_config(**options), *folders, Slow())
