"""Check the commands of an export's README without their servers: the options against a record of each server's
argument parser, the paths against the files that exist, and the model name in requests.

The record is from: vLLM (engine/arg_utils.py, config/speculative.py, entrypoints/openai/api_server.py), SGLang
0.5 (its documentation of server arguments, its tests of STANDALONE), TensorRT-LLM 1.x (commands/{serve,build}.py,
llmapi/llm_args.py, examples/{run,utils}.py, convert_checkpoint.py of examples/medusa and of examples/models/core/
{llama,qwen}), Text Generation Inference 3 (launcher), llama.cpp (common/arg.cpp).
"""

import ast
import json
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


@dataclass(frozen=True)
class Program:
    """The arguments of a program: the number of positional ones, the options with a value, the switches without one.
    `model_option` names the model ("": a positional argument does), `output_option` the file or folder it writes."""

    positional: int = 0
    options: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    model_option: str = ""
    output_option: str = ""


def program_with(*options: str, **more: Any) -> Program:
    return Program(options=frozenset(options), **more)


PROGRAMS = {
    "vllm serve": program_with(
        "--speculative-config", "--served-model-name", "--dtype", "--port", "--max-model-len", positional=1
    ),
    "python -m sglang.launch_server": program_with(
        *("--model-path", "--served-model-name", "--dtype", "--port", "--mem-fraction-static"),
        *("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps"),
        *("--speculative-eagle-topk", "--speculative-num-draft-tokens"),
        model_option="--model-path",
    ),
    "trtllm-serve": program_with("--backend", "--extra_llm_api_options", "--port", "--max_batch_size", positional=1),
    "trtllm-build": program_with(
        *("--checkpoint_dir", "--output_dir", "--speculative_decoding_mode", "--max_draft_len", "--max_batch_size"),
        "--use_paged_context_fmha",
        output_option="--output_dir",
    ),
    "python TensorRT-LLM/examples/medusa/convert_checkpoint.py": program_with(
        *("--model_dir", "--output_dir", "--dtype", "--tp_size", "--workers"),
        *("--medusa_model_dir", "--num_medusa_heads", "--num_medusa_layers", "--max_medusa_token_len"),
        output_option="--output_dir",
    ),
    "python TensorRT-LLM/examples/run.py": program_with(
        *("--engine_dir", "--tokenizer_dir", "--max_output_len", "--input_text", "--temperature"),
        "--medusa_choices",
    ),
    "text-generation-launcher": program_with(
        "--model-id", "--speculate", "--port", "--dtype", model_option="--model-id"
    ),
    "speculoos models gguf": program_with("--out", "--type", positional=1, output_option="--out"),
    "llama-server": program_with(
        *("-m", "--alias", "--port", "--ctx-size", "--model-draft", "--spec-type", "--spec-draft-n-max"),
        model_option="-m",
    ),
    "git clone": program_with("--depth", "--branch", positional=1),
    "hf download": program_with("--local-dir", positional=1, output_option="--local-dir"),
    "curl": program_with("-H", "-d", positional=1),
}
CHOICES = {
    "--speculative-algorithm": {"EAGLE", "EAGLE3", "STANDALONE", "DFLASH"},
    "--speculative_decoding_mode": {"draft_tokens_external", "medusa"},
    "--dtype": {"float16", "bfloat16"},
    "--backend": {"pytorch"},
    "--spec-type": {"draft-eagle3", "draft-simple", "draft-dflash"},
    "--use_paged_context_fmha": {"enable"},
}
"""Values that a server takes, where it takes only some; of types those that every server's GPU kernels have."""
INPUTS = {"--checkpoint_dir", "--engine_dir", "--draft_engine_dir"}
"""What an earlier command must have made."""
VLLM_METHODS = {"eagle", "eagle3", "medusa", "dflash", "draft_model"}
VLLM_CONFIG = {"method": VLLM_METHODS, "model": None, "num_speculative_tokens": None}
TRTLLM_CONFIG = {
    "Eagle3": {"max_draft_len", "speculative_model", "eagle3_layers_to_capture"},
    "Draft_Target": {"max_draft_len", "speculative_model"},
}
ANY_NAME = ("trtllm-serve", "text-generation-launcher")
"""Servers that do not compare a request's model with their own."""


@dataclass
class CheckState:
    """The state after the code blocks so far. `folder`: the parent folder of the export, where commands run."""

    folder: Path
    base: str
    created: set[str] = field(default_factory=set)
    programs: list[str] = field(default_factory=list)
    served_name: str = ""
    """The name that the last server answers to, "" for any."""


def check(readme: str, folder: Path, base: str) -> list[str]:
    """Check every command of a README and return their programs. `base`: the name of the base model in the commands."""
    state = CheckState(folder, base)
    for language, content in re.findall(r"^```(sh|yaml|python)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        {"sh": _shell, "yaml": _yaml, "python": _python}[language](content, state)
    return state.programs


def _shell(content: str, state: CheckState) -> None:
    for line in content.replace("\\\n", " ").splitlines():
        command = shlex.split(line)
        name = max((n for n in PROGRAMS if command[: len(n.split())] == n.split()), key=len, default="")
        assert name, f"no record of {line}"
        state.programs.append(name)
        _command(name, command[len(name.split()) :], state)


def _command(name: str, arguments: list[str], state: CheckState) -> None:
    program = PROGRAMS[name]
    positional, options = _parse(program, name, arguments)
    assert len(positional) == program.positional, (name, positional)
    if "convert_checkpoint" in name:
        assert "/" not in state.base or options["--model_dir"] in _folders(state), "converters read folders, no hub ids"
    if name.startswith("python TensorRT-LLM/"):
        assert "TensorRT-LLM" in state.created, "its repository must have been cloned"
    for option, value in options.items():
        assert option not in CHOICES or value in CHOICES[option], (name, option, value)
        assert option not in INPUTS or value in state.created, f"{name}: nothing made {value}"
        for inner in re.findall(r"\$\(cat (.*)\)", value):
            assert (state.folder / inner).is_file(), inner
    for value in (*positional, *options.values()):
        if value.startswith("./") and name != "hf download":
            assert value in state.created or (state.folder / value).exists(), f"{name}: {value} is not there"
    if name == "hf download":
        assert positional == [state.base], "the hub knows the base alone"
    if name == "git clone":
        state.created.add(positional[0].rpartition("/")[2])
    if program.output_option:
        state.created.add(options[program.output_option])
    if name == "curl":
        request = json.loads(options["-d"])
        assert state.served_name in ("", request["model"]), (
            f"the server knows {state.served_name!r}, not {request['model']!r}"
        )
        return
    _served(name, positional, options, state)


def _parse(program: Program, name: str, arguments: list[str]) -> tuple[list[str], dict[str, str]]:
    """The positional arguments, and the options with their values."""
    positional, options, rest = [], {}, iter(arguments)
    for argument in rest:
        if not argument.startswith("-"):
            positional.append(argument)
            continue
        assert argument in program.options | program.switches, f"{name} has no option {argument}"
        options[argument] = next(rest) if argument in program.options else ""
    return positional, options


def _served(name: str, positional: list[str], options: dict[str, str], state: CheckState) -> None:
    """Check the model and the options of a command that starts a server."""
    program = PROGRAMS[name]
    if not program.model_option and name not in ("vllm serve", "trtllm-serve"):
        for option in ("--model_dir", "--tokenizer_dir"):
            assert options.get(option, state.base) in (state.base, *_folders(state)), options[option]
        return
    model = options[program.model_option] if program.model_option else positional[0]
    assert model in (state.base, *_folders(state)), model
    state.served_name = "" if name in ANY_NAME else options.get("--served-model-name") or options.get("--alias", model)
    if config := options.get("--speculative-config"):
        speculative = json.loads(config)
        schedule = speculative.pop("num_speculative_tokens_per_batch_size", [])
        assert all(1 <= first <= last and tokens >= 0 for first, last, tokens in schedule)
        assert speculative.pop("parallel_drafting", True) is True
        assert speculative.keys() == VLLM_CONFIG.keys() and speculative["method"] in VLLM_CONFIG["method"]
        assert (state.folder / speculative["model"]).is_dir() and speculative["num_speculative_tokens"] >= 1
    if file := options.get("--extra_llm_api_options"):
        assert file in state.created, f"{file} is shown nowhere"


def _folders(state: CheckState) -> set[str]:
    """The folders that exist, and what commands have created."""
    return {f"./{path.name}" for path in state.folder.iterdir() if path.is_dir()} | state.created


def _yaml(content: str, state: CheckState) -> None:
    """TensorRT-LLM's options, which the README stores as speculative.yaml."""
    data = yaml.safe_load(content)
    assert data.keys() <= {"speculative_config", "disable_overlap_scheduler"}
    config = dict(data["speculative_config"])
    assert config.keys() - {"decoding_type"} == TRTLLM_CONFIG[config["decoding_type"]]
    assert (state.folder / config["speculative_model"]).is_dir() and config["max_draft_len"] >= 1
    state.created.add("speculative.yaml")


def _python(content: str, state: CheckState) -> None:
    """A program with transformers: it loads the base or a folder that exists."""
    state.programs.append("transformers")
    calls = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Call)]
    loads = [node for node in calls if getattr(node.func, "attr", "") == "from_pretrained"]
    assert len(loads) == 3
    for node in loads:
        assert node.args[0].value in (state.base, *_folders(state)), node.args[0].value
