"""How to serve an export: the exact command, the number of draft tokens, and a test request. Markdown, no torch."""

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from speculoos.loads import stops_paying_at, verdict
from speculoos.markdown import code_span, escape_text, fenced_code_block, markdown_table, yaml_scalar

Serve = Callable[[CheckpointFiles, CardFacts, str], str]
MAX_TOKENS = 32
SCHEDULE, SCHEDULE_VERSION = "num_speculative_tokens_per_batch_size", "0.32"
"""vLLM's option for draft tokens by batch size, and the version whose format is written."""
DEFAULT_TOKENS = {"eagle": 3, "eagle3": 3, "draft": 4}
"""Draft tokens per step of an untuned draft, as in the servers' own examples."""
VLLM_METHODS = {"draft": {"method": "draft_model"}, "peagle": {"method": "eagle3", "parallel_drafting": True}}
"""vLLM's options for methods that have another name there."""
SGLANG_ALGORITHMS = {"eagle3": "EAGLE3", "draft": "STANDALONE", "dflash": "DFLASH"}
"""SGLang's names of methods; others are EAGLE."""


def drafted_tokens(checkpoint: CheckpointFiles) -> int:
    """Number of tokens on the longest path of the tuned tree; a default for an untuned draft."""
    drafting = checkpoint.config.get("drafting") or {}
    if checkpoint.method == "medusa":
        return checkpoint.config["medusa_num_heads"]
    if checkpoint.tree:
        return max(map(len, checkpoint.tree))
    if depth := _positive(drafting, "depth"):
        return depth + (checkpoint.method in ("eagle", "eagle3", "peagle"))  # EAGLE's does not count the first level
    if checkpoint.method == "dflash":
        return checkpoint.config["block_size"] - 1
    return checkpoint.config.get("num_depths") or DEFAULT_TOKENS.get(checkpoint.method, 3)


def served_tokens(
    checkpoint: CheckpointFiles, facts: CardFacts, server: str
) -> tuple[int, Sequence[Mapping[str, Any]]]:
    """(draft tokens per step, measured loads): as `server` was measured, else `drafted_tokens` and no loads."""
    if facts.loads.get("server") != server:
        return drafted_tokens(checkpoint), ()
    config = checkpoint.config
    most = config.get("medusa_num_heads") or config.get("num_depths") or config.get("block_size", MAX_TOKENS + 1) - 1
    return min(facts.loads.get("tokens") or drafted_tokens(checkpoint), most), facts.loads["loads"]


def measured(checkpoint: CheckpointFiles) -> str:
    """A sentence on the settings that were measured best, or that the draft was not tuned."""
    drafting, tuning = checkpoint.config.get("drafting") or {}, checkpoint.config.get("tuning") or {}
    tuned = f" ({escape_text(tuning['verdict']).rstrip('.')})" if tuning.get("verdict") else ""
    if not drafting and tuning:
        return (
            f"In the workbench, tuning found plain decoding fastest{tuned}; on another machine, start with "
            f"{drafted_tokens(checkpoint)} draft tokens."
        )
    if not drafting:
        return f"This draft was not tuned; start with {drafted_tokens(checkpoint)} draft tokens."
    longest = max(map(len, checkpoint.tree)) if checkpoint.tree else drafted_tokens(checkpoint)
    return (
        f"Measured best in the workbench: {code_span(json.dumps(drafting))}{tuned}; its longest path has {longest} "
        f"{'token' if longest == 1 else 'tokens'}. On another machine or with more concurrent requests, fewer tokens "
        "may be better."
    )


def vllm(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """vLLM drafts chains. `method` is set, because vLLM otherwise guesses it from the path."""
    tokens, loads = served_tokens(checkpoint, facts, "vLLM")
    options = vllm_draft(checkpoint.method, f"./{folder}", tokens)
    schedule = tokens_by_load(tokens, loads)
    options |= {SCHEDULE: schedule} if schedule else {}
    command = f"vllm serve {_model(facts)}{_served_name(facts)} --speculative-config {shlex.quote(json.dumps(options))}"
    sentence = f"is written as vLLM {SCHEDULE_VERSION} reads it; if another version refuses it, leave it out."
    note = f"\n{code_span(SCHEDULE)} {sentence}\n" if schedule else ""
    return _served(command, facts, 8000) + note


def vllm_draft(method: str, model: str, tokens: int) -> dict[str, Any]:
    """vLLM's speculative config for a draft of `method` in the folder `model`."""
    return {"method": method, **VLLM_METHODS.get(method, {}), "model": model, "num_speculative_tokens": tokens}


def tokens_by_load(tokens: int, loads: Sequence[Mapping[str, Any]]) -> list[list[int]]:
    """vLLM's schedule [[first, last batch size, draft tokens], …]: no drafting from the load at which it was measured
    to stop paying. vLLM continues a range up to the next one, and the last one to its largest batch, so nothing is
    written about loads that were not measured. [] if no load was slower, or the lowest one already."""
    stop = stops_paying_at(loads)
    below = [load["concurrency"] for load in loads if stop and load["concurrency"] < stop]
    return [[1, max(below), tokens], [stop, stop, 0]] if stop and below else []


def by_load(facts: CardFacts) -> str:
    """A table of the speedups by load, and when the draft pays; "" without any."""
    if not (loads := facts.loads.get("loads")):
        return ""
    rows = {
        f"{load['concurrency']} concurrent": f"{load['speedup']:.2f} × ({load['speedup_interval'][0]:.2f} to "
        f"{load['speedup_interval'][1]:.2f} at 95 %), {load['drafted']['tokens_per_second']:.1f} tokens/s"
        for load in loads
    }
    where = (
        f"Throughput with the draft over without it, on {escape_text(facts.loads['server'])}, {facts.loads['date']}."
    )
    return f"## By load\n\n{where} {verdict(loads)}\n\n{markdown_table(rows)}"


def speculators(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """The config names the base model, so vLLM takes only the draft's folder. Without `--served-model-name`, requests
    would have to use that folder as the model's name."""
    command = f"vllm serve {_path(folder)} --served-model-name {shlex.quote(facts.served_name)}"
    return _served(command, facts, 8000) + (
        f"\nThe path of the base model is in config.json (`speculators_config.verifier.name_or_path`: "
        f"{code_span(facts.location)}); change it there if the base model is in another folder.\n"
    )


def sglang(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """Trees by top-k and number of nodes with the root; chains for an untuned draft."""
    drafting, steps = checkpoint.config.get("drafting") or {}, drafted_tokens(checkpoint)
    top_k, nodes = _positive(drafting, "top_k") or 1, _positive(drafting, "nodes")
    nodes = nodes if top_k > 1 and nodes else steps + 1
    algorithm = SGLANG_ALGORITHMS.get(checkpoint.method, "EAGLE")
    shape = f"--speculative-num-steps {steps} \\\n  --speculative-eagle-topk {top_k} "
    if checkpoint.method == "dflash":  # `nodes` is the size of its block there
        shape = "\\\n  "
    return _served(
        f"python -m sglang.launch_server --model-path {_model(facts)}{_served_name(facts)} \\\n"
        f"  --speculative-algorithm {algorithm} \\\n"
        f"  --speculative-draft-model-path {_path(folder)} {shape}"
        f"--speculative-num-draft-tokens {nodes} --dtype {served_dtype(checkpoint)}",
        facts,
        30000,
    )


def trtllm(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """EAGLE-3 and standalone drafts by trtllm-serve and its YAML; Medusa by building an engine."""
    if checkpoint.method == "medusa":
        return _medusa_engine(checkpoint, facts, folder)
    pair = checkpoint.method == "draft"
    kind, older = ("Draft_Target", "DraftTarget") if pair else ("Eagle3", "Eagle")
    lines = [
        *(["disable_overlap_scheduler: true"] if pair else []),
        "speculative_config:",
        f"  decoding_type: {kind}",
        f"  max_draft_len: {drafted_tokens(checkpoint)}",
        f"  speculative_model: {yaml_scalar(f'./{folder}')}",
        *([] if pair else [f"  eagle3_layers_to_capture: {json.dumps(list(checkpoint.aux_layers))}"]),
    ]
    command = f"trtllm-serve {_model(facts)} --backend pytorch --extra_llm_api_options speculative.yaml"
    norms = [f"`{key}`" for key in ("norm_before_fc", "fc_norm", "norm_output") if checkpoint.config.get(key)]
    month = "March" if norms == ["`norm_before_fc`"] else "June"
    newer = f"The draft has {' and '.join(norms)}, which TensorRT-LLM reads since {month} 2026.\n\n" if norms else ""
    return (
        f"{newer}`speculative.yaml` (releases without these names take `decoding_type: {older}` and "
        f"`speculative_model_dir`):\n\n{fenced_code_block(chr(10).join(lines), 'yaml')}\n"
        f"{_served(command, facts, 8000)}"
    )


CLONE = "git clone --depth 1 --branch v1.2.1 https://github.com/NVIDIA/TensorRT-LLM\n"
"""Clones the examples of the last release that builds engines."""


def _medusa_engine(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    heads, layers = checkpoint.config["medusa_num_heads"], checkpoint.config["medusa_num_layers"]
    tokens = len(checkpoint.tree or range(heads))
    download, base = "", _model(facts)
    if facts.on_the_hub:  # the converter needs a folder
        download, base = f"hf download {_model(facts)} --local-dir ./base\n", "./base"
    return "Up to TensorRT-LLM 1.2, at temperature 0 only:\n\n" + fenced_code_block(
        f"{CLONE}{download}python TensorRT-LLM/examples/medusa/convert_checkpoint.py --model_dir {base} \\\n"
        f"  --medusa_model_dir {_path(folder)} --output_dir converted --dtype {served_dtype(checkpoint)} \\\n"
        f"  --num_medusa_heads {heads} --num_medusa_layers {layers} --max_medusa_token_len {max(tokens, heads)}\n"
        "trtllm-build --checkpoint_dir converted --output_dir engine --speculative_decoding_mode medusa\n"
        f"python TensorRT-LLM/examples/run.py --engine_dir engine --tokenizer_dir {base} \\\n"
        f'  --medusa_choices "$(cat {_path(folder)}/medusa_choices.json)" --temperature 0 --max_output_len 100 \\\n'
        '  --input_text "Why is the sky blue?"',
        "sh",
    )


def tgi(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """TGI takes the export's folder as the model and reads the base model's path from its config.json."""
    heads = checkpoint.config["medusa_num_heads"]
    launch = f"text-generation-launcher --model-id {_path(folder)} --speculate {heads} --port 8080"
    note = f"The path of the base model is in config.json (`base_model_name_or_path`: {code_span(facts.location)}).\n"
    if heads != 5:
        note += (
            f"\nThe Medusa repository's own loader always builds five heads (this export has {heads}): set "
            "`medusa_num_heads` in its `from_pretrained`, or load the state dict into that number of heads.\n"
        )
    return f"{_served(launch, facts, 8080)}\n{note}"


def huggingface(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """A program with `assistant_model`, and the commands of the servers that take a draft model."""
    base, draft = (json.dumps(path, ensure_ascii=False) for path in (facts.model, f"./{folder}"))
    block = checkpoint.method == "dflash"
    kind, option = ("AutoModel", ', speculation_type="dflash"') if block else ("AutoModelForCausalLM", "")
    tokens = "" if block else f"draft.generation_config.num_assistant_tokens = {drafted_tokens(checkpoint)}\n"
    program = (
        f"from transformers import {'AutoModel, ' if block else ''}AutoModelForCausalLM, AutoTokenizer\n\n"
        f"base = AutoModelForCausalLM.from_pretrained({base})\n"
        f"draft = {kind}.from_pretrained({draft})\n"
        f"{tokens}"
        f"tokenizer = AutoTokenizer.from_pretrained({base})\n"
        'chat = [{"role": "user", "content": "Why is the sky blue?"}]\n'
        "inputs = tokenizer.apply_chat_template(\n"
        '    chat, add_generation_prompt=True, return_tensors="pt", return_dict=True\n)\n'
        f"answer = base.generate(**inputs, assistant_model=draft{option}, do_sample=False, max_new_tokens=200)\n"
        "print(tokenizer.decode(answer[0], skip_special_tokens=True))"
    )
    servers = {} if block else {"vLLM": vllm, "SGLang": sglang, "TensorRT-LLM": trtllm}
    return f"{fenced_code_block(program, 'python')}\n{_each(servers, checkpoint, facts, folder)}"


def draft_model(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """The servers that read an 8-bit standalone draft."""
    return _each({"vLLM": vllm, "SGLang": sglang}, checkpoint, facts, folder)


def llamacpp(checkpoint: CheckpointFiles, facts: CardFacts, folder: str, file: str = "") -> str:
    """llama-server drafts chains with the draft's `file`. The base model is a GGUF file too, which the workbench
    writes; any other GGUF file of the same model does as well."""
    kind = {"draft": "draft-simple", "dflash": "draft-dflash"}.get(checkpoint.method, "draft-eagle3")
    path, (tokens, _) = _path(f"{folder}/{file}"), served_tokens(checkpoint, facts, "llama.cpp")
    command = (
        f"speculoos models gguf {shlex.quote(facts.name)} --out base-f16.gguf\n"
        f"llama-server -m base-f16.gguf --alias {shlex.quote(facts.served_name)} \\\n"
        f"  --model-draft {path} --spec-type {kind} --spec-draft-n-max {tokens}"
    )
    return _served(command, facts, 8080)


def modelopt(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    """The servers that read ModelOpt's exports; ModelOpt itself is not a server."""
    return _each({"TensorRT-LLM": trtllm, "SGLang": sglang}, checkpoint, facts, folder)


def _each(servers: Mapping[str, Serve], checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    return "\n".join(f"### {name}\n\n{serve(checkpoint, facts, folder)}" for name, serve in servers.items())


def speculoos(checkpoint: CheckpointFiles, facts: CardFacts, folder: str) -> str:
    prompt = '--prompt "Why is the sky blue?"'
    return fenced_code_block(f"speculoos generate --model {_model(facts)} --checkpoint {_path(folder)} {prompt}", "sh")


def _positive(drafting: dict[str, Any], key: str) -> int:
    """A positive integer of the tuned settings; 0 if it is missing or invalid, as in a third party's checkpoint."""
    value = drafting.get(key)
    return value if type(value) is int and value > 0 else 0


def served_dtype(checkpoint: CheckpointFiles) -> str:
    """The base model's precision; bfloat16 for float32, because attention kernels on GPUs need 16 bits."""
    return "bfloat16" if checkpoint.base_dtype == "float32" else checkpoint.base_dtype


def _model(facts: CardFacts) -> str:
    return shlex.quote(facts.model)


def _path(folder: str) -> str:
    return shlex.quote(f"./{folder}")


def _served_name(facts: CardFacts) -> str:
    """The option that lets requests use the base model's name instead of its path."""
    return "" if facts.served_name == facts.model else f" --served-model-name {shlex.quote(facts.served_name)}"


def _served(command: str, facts: CardFacts, port: int) -> str:
    chat: dict[str, Any] = {
        "model": facts.served_name,
        "messages": [{"role": "user", "content": "Why is the sky blue?"}],
        "max_tokens": 128,
    }
    call = (
        f"curl http://localhost:{port}/v1/chat/completions "
        f"-H 'Content-Type: application/json' \\\n  -d {shlex.quote(json.dumps(chat))}"
    )
    return f"{fenced_code_block(command, 'sh')}\nTry it:\n\n{fenced_code_block(call, 'sh')}"
