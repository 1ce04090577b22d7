"""Memory of a training step: linear in the length, and as forecast from the shapes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from benchmarks.training_memory import TABLE, table
from models.base import LoadedBase
from models.methods import train_config
from models.methods.record import BaseShape
from tests.tools.meta_memory import MetaMemory, eagle3_peak
from training.batches import Batch
from training.method import find_method
from workers.jobs.training_memory import RUNTIME_BYTES, Forecast

SIZES = {"hidden_size": 64, "intermediate_size": 160, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"num_hidden_layers": 4, "vocab_size": 256}
CARD = {"hidden_size": 64, "intermediate_size": 160, "heads": 4, "kv_heads": 2, "layers": 4, "vocabulary": 256}
TOKENS, ROWS = 512, 4


def test_unrolled_steps_take_memory_linear_in_the_length() -> None:
    short, middle, long = (eagle3_peak(SIZES, length, 3, 256) for length in (256, 512, 1024))
    assert (long - middle) == pytest.approx(2 * (middle - short), rel=0.02)


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("medusa", {"medusa_tie_lm_head": True}),
        ("medusa", {"medusa_loss": "dpace"}),
        ("eagle", {}),
        ("eagle3", {"ttt_steps": 4}),
        ("eagle3", {"fc_norm": True, "norm_output": True}),
        ("eagle3", {"ttt_loss": "kl"}),
        ("eagle3", {"ttt_loss": "tv"}),
        ("eagle3", {"ttt_loss": "dpace"}),
        ("eagle3", {"norm_before_fc": True, "norm_output": True}),
        ("peagle", {"mask_token_id": 0}),
        ("peagle", {"mask_token_id": 0, "num_depths": 8, "eagle_num_layers": 2}),
        ("dflash", {"mask_token_id": 3}),
        ("dflash", {"mask_token_id": 3, "dflash_num_layers": 4, "block_size": 16}),
        ("draft", {}),
        ("draft", {"draft_loss": "tv"}),
        ("draft", {"gradient_checkpointing": True, "draft_loss": "ce"}),
    ],
)
def test_a_step_takes_what_is_forecast(method: str, settings: dict) -> None:
    """Within 15 % of the measured peak of features, forward and backward on a CPU, beside weights and gradients."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES)).eval().requires_grad_(False)
    base = LoadedBase(model, None, Path(), torch.float32, torch.device("cpu"), frozenset())
    config = train_config(method, batch_tokens=TOKENS, max_length=TOKENS, base_dtype="float32", **settings)
    trainer = find_method(method).load("trainer")(config, base).train()
    for parameter in trainer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    mask = torch.ones(ROWS, TOKENS // ROWS, dtype=torch.bool)
    mask[:, :2] = False
    batch = Batch(torch.randint(0, base.vocab_size, mask.shape), mask, torch.full((ROWS,), mask.shape[1]))
    with MetaMemory(fused_norms=False) as memory:
        trainer(trainer.features(batch), 0, torch.ones(len(trainer.weights))).loss.backward()
    shape = BaseShape.from_card(CARD | {"parameters": model.num_parameters()})
    forecast = Forecast(shape, config).of_process("cpu")
    assert forecast.draft == pytest.approx(
        16 * sum(p.numel() for p in trainer.parameters() if p.requires_grad), rel=0.01
    )
    assert forecast.step - RUNTIME_BYTES["cpu"] == pytest.approx(memory.peak, rel=0.15)


def test_the_documented_table_is_what_the_forecast_says() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    assert text.partition(TABLE[0])[2].partition(TABLE[1])[0].strip() == table()


def test_an_option_that_fits_is_found() -> None:
    shape = BaseShape.from_card(CARD | {"parameters": 8e9, "hidden_size": 4096, "vocabulary": 128_256})
    config = train_config("medusa", batch_tokens=4096, max_length=4096, base_dtype="float32")
    alone = Forecast(shape, config)
    assert alone.option_that_fits("cuda", 70e9) == "base_dtype=bfloat16"
    assert alone.option_that_fits("cuda", 26e9).startswith("base_dtype=bfloat16, mixed_precision=bf16, ")
    assert alone.option_that_fits("cuda", 1e9) == ""
    sharded = Forecast(shape, config.model_copy(update={"base_dtype": "bfloat16"}), processes=8)
    assert sharded.option_that_fits("cuda", sharded.device_memory("cuda") - 1e10) == "sharding=fsdp"
