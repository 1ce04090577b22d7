"""The export formats: the server that reads each, the supported drafts and the reasons why others are not. No torch:
writers and readers are imported when they are needed."""

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from formats import serve
from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.gguf_files import typed
from formats.plan import ExportPlan
from formats.quantized import quantized_plan
from formats.refusals import (
    DFLASH,
    EAGLE,
    EAGLE3,
    EAGLE31,
    PEAGLE,
    REFERENCE_EAGLE3,
    REFERENCE_MEDUSA,
    Refusal,
    ascending_layers,
    base_vocabulary,
    gguf_base,
    gguf_model,
    known_only,
    llama_layers,
    no_biases,
    norms_read,
    one_layer,
    plain_eagle,
    three_layers,
    unbiased_base_head,
)

ANY = "*"
"""Key for every method, including methods of third parties."""


@dataclass(frozen=True)
class Layout:
    """One method's drafts in a format: server and versions (`vLLM 0.9 to 0.32`), and the refusals that apply."""

    servers: str
    refusals: tuple[Refusal, ...] = ()
    modules: str = ""
    """Prefix of the modules with its writers and readers, if they are not those of the format."""


@dataclass(frozen=True)
class Format:
    """One format: its `name` in commands and files, its `title` on pages, and its layouts by method. `serve` takes the
    checkpoint, the facts and the folder's name and returns Markdown. `unsupported` gives the reason for other methods,
    `default_reason` for the rest; `server` is the name in refusals if it is not the title."""

    name: str
    title: str
    layouts: Mapping[str, Layout]
    serve: Callable[[CheckpointFiles, CardFacts, str], str]
    unsupported: Mapping[str, str] = field(default_factory=dict)
    default_reason: str = ""
    server: str = ""
    scheme: str = ""
    """Scheme of formats.quantized in which linear layers are stored, or type of a GGUF file's matrices; "" for weights
    that are not rounded."""
    modules: str = ""
    """Prefix of the modules with its writers and readers."""

    @property
    def unquantized(self) -> str:
        """The name of the format that an 8-bit format is made from, else its own."""
        return self.name.partition("-")[0]

    def layout(self, method: str) -> Layout | None:
        """The layout of drafts of `method`; None if the method is not supported."""
        return self.layouts.get(method) or self.layouts.get(ANY)

    def servers(self, method: str) -> str:
        """Server and versions for drafts of `method`, or for all methods if this one is not supported."""
        layout = self.layout(method)
        return layout.servers if layout else "; ".join(dict.fromkeys(x.servers for x in self.layouts.values()))

    def reason(self, checkpoint: CheckpointFiles) -> str:
        """Returns "" if the checkpoint can be written in this format, else one sentence why not."""
        layout, server = self.layout(checkpoint.method), self.server or self.title
        if layout is None:
            unknown = self.default_reason or f"{self.title} does not support this method."
            return self.unsupported.get(checkpoint.method, unknown)
        return next((reason for refusal in layout.refusals if (reason := refusal(server, checkpoint))), "")

    def load(self, part: str, method: str) -> Any:
        """The function of `part` for drafts of `method`:

        - `writer`: (CheckpointFiles, LoadedBase, CardFacts) → formats.plan.ExportPlan;
        - `reader`: (folder, CheckpointFiles) → the draft network as the server builds it (formats.readers).

        An 8-bit format has those of the format it is named after.
        """
        layout = self.layout(method)
        modules = (layout.modules if layout else "") or self.modules
        return getattr(importlib.import_module(f"formats.{modules}{part}s"), f"{method}_{self.unquantized}")

    def plan(self, checkpoint: CheckpointFiles, base: Any, facts: CardFacts) -> ExportPlan:
        """What the writer of the checkpoint's method plans, with quantized layers in an 8-bit format."""
        plan = self.load("writer", checkpoint.method)(checkpoint, base, facts)
        if self.modules == "gguf_":
            return typed(plan, self.scheme or "f32")
        return quantized_plan(plan, self.scheme) if self.scheme else plan


def _dflash(servers: str, *refusals: Refusal) -> Layout:
    return Layout(servers, (*refusals, known_only(DFLASH)), "dflash_")


OWN = Format("own", "Speculoos", {ANY: Layout("Speculoos")}, serve.speculoos)
"""The workbench's own format: the checkpoint's folder as training wrote it."""

VLLM = Format(
    name="vllm",
    title="vLLM",
    layouts={
        "eagle": Layout("vLLM 0.29 to 0.33", (plain_eagle, known_only(EAGLE | {"own_embeddings"}))),
        "eagle3": Layout(
            "vLLM 0.29 to 0.33", (ascending_layers, known_only(EAGLE31 | {"own_embeddings", "target_hidden_size"}))
        ),
        "peagle": Layout(
            "vLLM 0.32, 0.33",
            (ascending_layers, known_only(EAGLE31 | PEAGLE | {"own_embeddings", "target_hidden_size"})),
        ),
        "medusa": Layout("vLLM 0.29 to 0.32 (0.33 removed Medusa)", REFERENCE_MEDUSA),
        "dflash": _dflash("vLLM 0.32, 0.33", ascending_layers, unbiased_base_head),
    },
    serve=serve.vllm,
    unsupported={
        "draft": "vLLM serves a standalone draft from its Hugging Face folder; use the format huggingface.",
    },
)
"""vLLM: EAGLE-1, EAGLE-3, P-EAGLE, DFlash, and Medusa in the versions that support it.

Sources: vllm/model_executor/models/{llama_eagle,llama_eagle3,medusa,qwen3_dflash}.py,
transformers_utils/configs/{eagle,medusa}.py, v1/worker/gpu_model_runner.py, v1/spec_decode/llm_base_proposer.py
(parallel drafting), v1/worker/gpu/spec_decode/eagle/eagle3_utils.py (layer ids).
"""

SPECULATORS = Format(
    name="speculators",
    title="speculators",
    layouts={
        "eagle3": Layout(
            "speculators 0.9, vLLM 0.29 to 0.33",
            (three_layers, ascending_layers, known_only(EAGLE31 | {"own_embeddings"})),
        ),
        "peagle": Layout(
            "speculators 0.9, vLLM 0.32, 0.33",
            (three_layers, ascending_layers, known_only((EAGLE31 | PEAGLE | {"own_embeddings"}) - {"fc_norm"})),
        ),
        "dflash": _dflash("speculators 0.9, vLLM 0.32, 0.33", ascending_layers, unbiased_base_head),
    },
    serve=serve.speculators,
    unsupported={
        "eagle": "speculators 0.9 no longer supports EAGLE-1; use the format vllm or sglang.",
        "medusa": "speculators never supported Medusa.",
        "draft": "speculators supports heads, not whole models; use the format huggingface.",
    },
)
"""speculators, vLLM's own format for drafts: EAGLE-3, P-EAGLE and DFlash. vLLM does not read `fc_norm` in
P-EAGLE's config.

Sources: speculators/models/{eagle3,peagle,dflash}/{config,core}.py, speculators/model.py (DraftVocabMixin),
speculators/config.py; vllm/transformers_utils/configs/speculators/algos.py.
"""

SGLANG = Format(
    name="sglang",
    title="SGLang",
    layouts={
        "eagle": Layout("SGLang 0.5", (plain_eagle, known_only(EAGLE | {"fc_bias"}))),
        "eagle3": Layout("SGLang 0.5", (*REFERENCE_EAGLE3, known_only(EAGLE31))),
        "dflash": _dflash("SGLang 0.5; z-lab/dflash", ascending_layers, base_vocabulary, unbiased_base_head),
    },
    serve=serve.sglang,
    unsupported={
        "medusa": "SGLang never had Medusa; vLLM up to 0.32, TensorRT-LLM up to 1.2 and TGI support it.",
        "draft": "SGLang serves a standalone draft (STANDALONE) from its Hugging Face folder; use huggingface.",
    },
)
"""SGLang: EAGLE (EAGLE-1 and 2), EAGLE-3 and DFlash.

Sources: sglang/srt/models/{llama_eagle,llama_eagle3,dflash}.py, model_executor/model_runner.py,
set_eagle3_layers_to_capture, set_dflash_layers_to_capture, speculative/dflash_utils.py.
"""

TRTLLM = Format(
    name="trtllm",
    title="TensorRT-LLM",
    layouts={
        "eagle3": Layout("TensorRT-LLM 1.2 and later (PyTorch backend)", (*REFERENCE_EAGLE3, known_only(EAGLE31))),
        "medusa": Layout("TensorRT-LLM up to 1.2 (its engines were removed after that)", REFERENCE_MEDUSA),
    },
    serve=serve.trtllm,
    unsupported={
        "dflash": "TensorRT-LLM does not support DFlash drafts in this layout; vLLM, SGLang and llama.cpp do.",
        "eagle": "TensorRT-LLM's PyTorch backend supports EAGLE-3 only; its engines, which supported EAGLE-1, were "
        "removed after 1.2.",
        "draft": "TensorRT-LLM serves a standalone draft (DraftTarget) from its Hugging Face folder; use huggingface.",
    },
)
"""TensorRT-LLM: EAGLE-3 for the PyTorch backend; Medusa for the engines that 1.3 removed.

Sources: tensorrt_llm/_torch/models/modeling_speculative.py (Eagle3ForCausalLM), _torch/speculative/eagle3.py;
tensorrt_llm/models/medusa/{config,model,weight}.py of 1.2.
"""

MEDUSA_REPOSITORY = Format(
    name="medusa",
    title="Medusa repository and TGI",
    layouts={"medusa": Layout("FasterDecoding/Medusa, Text Generation Inference 3", REFERENCE_MEDUSA)},
    serve=serve.tgi,
    default_reason="The Medusa repository and TGI support Medusa heads only.",
    server="the Medusa repository",
)
"""The layout of the Medusa repository, which Text Generation Inference also reads.

Sources: FasterDecoding/Medusa medusa/model/medusa_model.py; text-generation-inference
server/text_generation_server/layers/{medusa,speculative}.py, models/__init__.py.
"""

MODELOPT = Format(
    name="modelopt",
    title="ModelOpt",
    layouts={
        "eagle3": Layout(
            "nvidia-modelopt 0.47; servers that read its exports (TensorRT-LLM, SGLang)",
            (*REFERENCE_EAGLE3, norms_read(), known_only(EAGLE3)),
        )
    },
    serve=serve.modelopt,
    unsupported={
        "eagle": "ModelOpt exports EAGLE-3 only; it no longer supports EAGLE-1.",
        "medusa": "ModelOpt trains Medusa heads but does not export them (as of 0.47).",
        "draft": "ModelOpt has no format for standalone drafts; use huggingface.",
    },
)
"""The layout of NVIDIA ModelOpt's EAGLE-3 exports.

Sources: modelopt/torch/export/plugins/{hf_spec_export,hf_spec_configs}.py,
modelopt/torch/speculative/plugins/modeling_eagle.py.
"""

HUGGINGFACE = Format(
    name="huggingface",
    title="Hugging Face",
    layouts={
        "draft": Layout("transformers 5 (assistant_model); vLLM, SGLang and TensorRT-LLM as a draft model"),
        "dflash": _dflash("transformers 5.24 (assistant_model, speculation_type dflash)", base_vocabulary, no_biases),
    },
    serve=serve.huggingface,
    default_reason="transformers takes whole models as assistants, not heads on the base model's hidden states.",
)
"""A standalone draft as a Hugging Face folder: `assistant_model` in transformers, a draft model in the servers. A
DFlash draft in the names of transformers' only class for them, of Muse Glimmer.

Sources: transformers/models/muse_glimmer_assistant/, generation/candidate_generator.py.
"""

GGUF = Format(
    name="gguf",
    title="GGUF (llama.cpp)",
    layouts={
        "eagle3": Layout(
            "llama.cpp, tried in xllamacpp 2026.10; programs that embed it",
            (
                three_layers,
                one_layer,
                ascending_layers,
                norms_read("norm_before_fc"),
                known_only(EAGLE3 | {"own_embeddings", "target_hidden_size", "norm_before_fc"}),
                gguf_base,
            ),
        ),
        "draft": Layout("llama.cpp, tried in xllamacpp 2026.10; programs that embed it", (gguf_model,)),
        "dflash": _dflash(
            "llama.cpp, tried in xllamacpp 2026.10; programs that embed it", no_biases, gguf_base, unbiased_base_head
        ),
    },
    serve=serve.llamacpp,
    unsupported={
        "eagle": "llama.cpp supports EAGLE-3 only, not EAGLE-1.",
        "medusa": "llama.cpp does not support Medusa.",
    },
    server="llama.cpp",
    modules="gguf_",
)
"""One GGUF file in float32, for llama.cpp; `gguf-f16` and `gguf-q8_0` round its matrices.

Sources: llama.cpp src/models/{eagle3,dflash}.cpp, conversion/{base,llama,qwen,phi}.py, common/{arg,speculative}.cpp.
"""

PRECISIONS = {"fp8": ("FP8", "fp8"), "int8": ("int8", "w8a8")}
"""{ending of a format's name: (ending of its title, scheme)}."""


def _quantized(record: Format, layouts: Mapping[str, Layout], **changes: Any) -> list[Format]:
    """The 8-bit formats of a record."""
    reasons = {
        "medusa": f"{record.title} does not quantize the layers of Medusa heads; use the format {record.name}.",
        "dflash": f"DFlash drafts are not quantized for {record.title}; use the format {record.name}.",
        **record.unsupported,
    }
    return [
        replace(
            record,
            **{"name": f"{record.name}-{ending}", "title": f"{record.title}, {precision}", "scheme": scheme},
            **{"layouts": layouts, "server": record.title, "unsupported": reasons, **changes},
        )
        for ending, (precision, scheme) in PRECISIONS.items()
    ]


def _gguf(kind: str) -> Format:
    """The GGUF format with matrices of the type `kind`."""
    names = {} if kind == "f32" else {"name": f"gguf-{kind}", "scheme": kind}
    title = f"GGUF (llama.cpp), {kind.upper()}"
    return replace(GGUF, title=title, serve=partial(serve.llamacpp, file=f"draft-{kind}.gguf"), **names)


EAGLES = ("eagle", "eagle3")
STANDALONE = {"draft": Layout("vLLM 0.29 to 0.33, SGLang 0.5, as a draft model", (llama_layers,))}
ALL = (
    OWN,
    *(VLLM, *_quantized(VLLM, {method: VLLM.layouts[method] for method in EAGLES})),
    SPECULATORS,
    *(SGLANG, *_quantized(SGLANG, {method: SGLANG.layouts[method] for method in EAGLES})),
    TRTLLM,
    MEDUSA_REPOSITORY,
    MODELOPT,
    *(HUGGINGFACE, *_quantized(HUGGINGFACE, STANDALONE, serve=serve.draft_model, unsupported={})),
    *map(_gguf, ("f32", "f16", "q8_0")),
)
"""All formats. vLLM and SGLang read `quantization_config` in the config.json of a draft, whatever the base model has.

Sources: vllm/model_executor/models/{llama_eagle,llama_eagle3,utils}.py (get_draft_quant_config),
v1/spec_decode/draft_model.py, layers/quantization/compressed_tensors/; sglang/srt/configs/model_config.py
(_verify_quantization), layers/quantization/compressed_tensors/.
"""
