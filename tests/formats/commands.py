"""Commands of an export's README, checked without their servers: by a record of the options that each server's own
argument parser has, the files that are there, and the name that requests call the model by.

Where the record is from: vLLM (engine/arg_utils.py, config/speculative.py, entrypoints/openai/api_server.py), SGLang
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
    """One program's arguments: how many stand alone, which options take a value, which none; `named` is the option that
    gives the model, "" where it stands alone, `made` the one that names what is written."""

    alone: int = 0
    options: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    named: str = ""
    made: str = ""


def known(*options: str, **more: Any) -> Program:
    return Program(options=frozenset(options), **more)


PROGRAMS = {
    "vllm serve": known("--speculative-config", "--served-model-name", "--dtype", "--port", "--max-model-len", alone=1),
    "python -m sglang.launch_server": known(
        *("--model-path", "--served-model-name", "--dtype", "--port", "--mem-fraction-static"),
        *("--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps"),
        *("--speculative-eagle-topk", "--speculative-num-draft-tokens"),
        named="--model-path",
    ),
    "trtllm-serve": known("--backend", "--extra_llm_api_options", "--port", "--max_batch_size", alone=1),
    "trtllm-build": known(
        *("--checkpoint_dir", "--output_dir", "--speculative_decoding_mode", "--max_draft_len", "--max_batch_size"),
        "--use_paged_context_fmha",
        made="--output_dir",
    ),
    "python TensorRT-LLM/examples/medusa/convert_checkpoint.py": known(
        *("--model_dir", "--output_dir", "--dtype", "--tp_size", "--workers"),
        *("--medusa_model_dir", "--num_medusa_heads", "--num_medusa_layers", "--max_medusa_token_len"),
        made="--output_dir",
    ),
    "python TensorRT-LLM/examples/run.py": known(
        *("--engine_dir", "--tokenizer_dir", "--max_output_len", "--input_text", "--temperature"),
        "--medusa_choices",
    ),
    "text-generation-launcher": known("--model-id", "--speculate", "--port", "--dtype", named="--model-id"),
    "speculoos models gguf": known("--out", "--type", alone=1, made="--out"),
    "llama-server": known(
        *("-m", "--alias", "--port", "--ctx-size", "--model-draft", "--spec-type", "--spec-draft-n-max"), named="-m"
    ),
    "git clone": known("--depth", "--branch", alone=1),
    "hf download": known("--local-dir", alone=1, made="--local-dir"),
    "curl": known("-H", "-d", alone=1),
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
IN = {"--checkpoint_dir", "--engine_dir", "--draft_engine_dir"}
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
class Checked:
    """What was found in the blocks so far. `place`: the folder that the export lies in, where commands run."""

    place: Path
    base: str
    made: set[str] = field(default_factory=set)
    programs: list[str] = field(default_factory=list)
    served: str = ""
    """The name that the last server answers to, "" for any."""


def check(readme: str, place: Path, base: str) -> list[str]:
    """The programs of the commands in a README, after everything in them was checked; `base` is what they call it."""
    found = Checked(place, base)
    for language, content in re.findall(r"^```(sh|yaml|python)\n(.*?)^```$", readme, re.MULTILINE | re.DOTALL):
        {"sh": _shell, "yaml": _yaml, "python": _python}[language](content, found)
    return found.programs


def _shell(content: str, found: Checked) -> None:
    for line in content.replace("\\\n", " ").splitlines():
        words = shlex.split(line)
        name = max((n for n in PROGRAMS if words[: len(n.split())] == n.split()), key=len, default="")
        assert name, f"no record of {line}"
        found.programs.append(name)
        _command(name, words[len(name.split()) :], found)


def _command(name: str, words: list[str], found: Checked) -> None:
    program = PROGRAMS[name]
    alone, options = _sorted(program, name, words)
    assert len(alone) == program.alone, (name, alone)
    if "convert_checkpoint" in name:
        assert "/" not in found.base or options["--model_dir"] in _folders(found), "converters read folders, no hub ids"
    if name.startswith("python TensorRT-LLM/"):
        assert "TensorRT-LLM" in found.made, "its repository must have been cloned"
    for option, value in options.items():
        assert option not in CHOICES or value in CHOICES[option], (name, option, value)
        assert option not in IN or value in found.made, f"{name}: nothing made {value}"
        for inner in re.findall(r"\$\(cat (.*)\)", value):
            assert (found.place / inner).is_file(), inner
    for value in (*alone, *options.values()):
        if value.startswith("./") and name != "hf download":
            assert value in found.made or (found.place / value).exists(), f"{name}: {value} is not there"
    if name == "hf download":
        assert alone == [found.base], "the hub knows the base alone"
    if name == "git clone":
        found.made.add(alone[0].rpartition("/")[2])
    if program.made:
        found.made.add(options[program.made])
    if name == "curl":
        asked = json.loads(options["-d"])
        assert found.served in ("", asked["model"]), f"the server knows {found.served!r}, not {asked['model']!r}"
        return
    _served(name, alone, options, found)


def _sorted(program: Program, name: str, words: list[str]) -> tuple[list[str], dict[str, str]]:
    """Words that stand alone, and options with their values."""
    alone, options, rest = [], {}, iter(words)
    for word in rest:
        if not word.startswith("-"):
            alone.append(word)
            continue
        assert word in program.options | program.switches, f"{name} has no option {word}"
        options[word] = next(rest) if word in program.options else ""
    return alone, options


def _served(name: str, alone: list[str], options: dict[str, str], found: Checked) -> None:
    """What a command that starts a server says about its model."""
    program = PROGRAMS[name]
    if not program.named and name not in ("vllm serve", "trtllm-serve"):
        for option in ("--model_dir", "--tokenizer_dir"):
            assert options.get(option, found.base) in (found.base, *_folders(found)), options[option]
        return
    model = options[program.named] if program.named else alone[0]
    assert model in (found.base, *_folders(found)), model
    found.served = "" if name in ANY_NAME else options.get("--served-model-name") or options.get("--alias", model)
    if config := options.get("--speculative-config"):
        given = json.loads(config)
        schedule = given.pop("num_speculative_tokens_per_batch_size", [])
        assert all(1 <= first <= last and tokens >= 0 for first, last, tokens in schedule)
        assert given.pop("parallel_drafting", True) is True
        assert given.keys() == VLLM_CONFIG.keys() and given["method"] in VLLM_CONFIG["method"]
        assert (found.place / given["model"]).is_dir() and given["num_speculative_tokens"] >= 1
    if file := options.get("--extra_llm_api_options"):
        assert file in found.made, f"{file} is shown nowhere"


def _folders(found: Checked) -> set[str]:
    """What is there, and what commands have fetched."""
    return {f"./{path.name}" for path in found.place.iterdir() if path.is_dir()} | found.made


def _yaml(content: str, found: Checked) -> None:
    """TensorRT-LLM's, the one that the README calls speculative.yaml."""
    data = yaml.safe_load(content)
    assert data.keys() <= {"speculative_config", "disable_overlap_scheduler"}
    config = dict(data["speculative_config"])
    assert config.keys() - {"decoding_type"} == TRTLLM_CONFIG[config["decoding_type"]]
    assert (found.place / config["speculative_model"]).is_dir() and config["max_draft_len"] >= 1
    found.made.add("speculative.yaml")


def _python(content: str, found: Checked) -> None:
    """transformers': what it loads is there, or the base."""
    found.programs.append("transformers")
    calls = [node for node in ast.walk(ast.parse(content)) if isinstance(node, ast.Call)]
    loads = [node for node in calls if getattr(node.func, "attr", "") == "from_pretrained"]
    assert len(loads) == 3
    for node in loads:
        assert node.args[0].value in (found.base, *_folders(found)), node.args[0].value
