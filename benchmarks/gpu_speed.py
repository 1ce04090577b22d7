"""Parts of benchmarks.gpu_check: tokens per second compared with transformers.generate, a large model compared with the
device's memory bandwidth, and the cost of tree nodes."""

import statistics
import time
from typing import Any

import torch

from benchmarks import decode
from benchmarks.gpu_bench import Bench
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.target import Target, fast_target
from evaluation.estimate import milliseconds
from evaluation.questions import BUILT_IN
from models.base import LoadedBase, wrap_model
from tests.tiny import tiny_tokenizer

SPEED_GOAL, BANDWIDTH_GOAL = 4.0, 0.8
CONTEXT = 512
"""Size of the KV caches in tokens: the longest built-in question with its answer."""
KEPT_FREE = 5 * 2**30
"""Bytes reserved for KV cache, fused weights and other processes when the large model is cut to fit."""
COPIES = 9
WARM_UP_STEPS = 4


def race(bench: Bench, dtype: str) -> None:
    """Plain decoding, prompt lookup and the starter's head compared with transformers.generate, batch 1, greedy; and
    the cost of verifying 1 … 64 nodes relative to one."""
    sizes = bench.sizes
    words = ["--model", str(bench.starter), "--questions", str(BUILT_IN), "--checkpoint", str(bench.head)]
    words += ["--limit", str(sizes.questions), "--max-tokens", str(sizes.answer_tokens)]
    words += ["--device", str(bench.device), "--context", str(CONTEXT)]
    results = decode.race(decode.parse(words), dtype)
    ratio = results["contenders"]["ours plain"]["ratio_to_transformers"]
    name = f"{dtype}, plain beside transformers.generate, starter, batch 1"
    bench.gpu_claim(name, f"≥ {SPEED_GOAL:g} ×", f"{ratio:.2f} ×", ratio >= SPEED_GOAL)
    for name, one in results["contenders"].items():
        bench.figures[f"{dtype}, {name}"] = (
            f"{one['tokens_per_second']:g} tokens/s ({one['ratio_to_transformers']:g} × transformers, "
            f"{one['ratio_to_our_plain']:g} × our plain, τ {one['tau']:g})"
        )
    for name, costs in results["forward_ms"].items():
        bench.figures[f"{dtype}, cost by nodes, {name}"] = relative(costs)
    bench.figures[f"{dtype}, a step, ms"] = results["step_ms"]


def relative(costs: dict[int, float]) -> dict[str, Any]:
    """Milliseconds of one node, and the cost of other node counts as multiples of it."""
    one = costs[1]
    return {"1": f"{one:g} ms"} | {str(n): f"{ms / max(one, 1e-9):.2f} ×" for n, ms in costs.items() if n > 1}


def large_shape(bench: Bench) -> None:
    """Plain decoding with the shape of Llama-3-8B in bf16 and random weights: bytes of weights read per second,
    compared with the bandwidth of a large copy."""
    moved = bandwidth(bench.device, bench.sizes.copied_mib)
    base = random_base(bench)
    read, layers = bytes_per_token(base), base.num_layers
    seconds = step_seconds(fast_target(base, CONTEXT), bench.sizes.shape_tokens)
    share = read / seconds / moved
    name = f"Llama-3-8B shape ({layers} layers), bf16, plain: bytes of weights read beside memory bandwidth"
    bench.gpu_claim(name, f"≥ {BANDWIDTH_GOAL:.0%}", f"{share:.0%}", share >= BANDWIDTH_GOAL)
    bench.figures |= {
        "memory bandwidth, GB/s": round(moved / 1e9, 1),
        "GB of weights a token": round(read / 1e9, 3),
        "ms a token": round(seconds * 1e3, 3),
        "tokens/s": round(1 / seconds, 1),
    }


def bandwidth(device: torch.device, mib: int) -> float:
    """Memory bandwidth in bytes per second (reads and writes) of copying `mib` MiB; median of several copies."""
    source = torch.zeros(mib * 2**20, dtype=torch.uint8, device=device)
    copy, seconds = torch.empty_like(source), []
    for _ in range(COPIES + 2):
        wait(device)
        began = time.perf_counter()
        copy.copy_(source)
        wait(device)
        seconds.append(time.perf_counter() - began)
    return 2 * source.nbytes / statistics.median(seconds[2:])


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def random_base(bench: Bench) -> LoadedBase:
    """A randomly initialised Llama of the requested shape with as many layers as fit into memory."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = {**bench.sizes.shape, "num_hidden_layers": fitting_layers(bench)}
    config = AutoConfig.for_model("llama", tie_word_embeddings=False, **shape)
    torch.manual_seed(0)
    with bench.device:
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    return wrap_model(model.to(bench.device), tiny_tokenizer(), "random")


def fitting_layers(bench: Bench) -> int:
    """Number of layers of the requested shape that fit into the device's free memory, at least one."""
    shape = bench.sizes.shape
    if bench.device.type != "cuda":
        return shape["num_hidden_layers"]
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    keys = shape["num_key_value_heads"] * (width // shape["num_attention_heads"])
    layer = 2 * width * (2 * width + 2 * keys + 3 * inner)
    torch.cuda.empty_cache()  # free cached blocks of the copies
    free = torch.cuda.mem_get_info(bench.device)[0] - KEPT_FREE - 2 * 2 * width * shape["vocab_size"]
    return max(1, min(shape["num_hidden_layers"], free // layer))


def bytes_per_token(base: LoadedBase) -> int:
    """Bytes of weights read by the forward pass of one token: all but the embedding table."""
    table = base.embed_tokens.weight
    return sum(weight.nbytes for weight in base.model.parameters()) - table.nbytes


def step_seconds(target: Target, tokens: int) -> float:
    """Median seconds of a plain decoding step."""
    config = GenerateConfig(max_tokens=tokens + WARM_UP_STEPS, eos_ids=frozenset())
    steps = list(generate(target, make_drafter(target), list(range(100, 132)), config))[1 + WARM_UP_STEPS :]
    return statistics.median(map(milliseconds, steps)) / 1e3
