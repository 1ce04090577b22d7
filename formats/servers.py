"""The formats, one record each: which server reads it, which drafts it takes and why not the others. No torch."""

from formats import refusals, serve
from formats.record import ANY, Format, Layout

OWN = Format(
    name="own",
    title="Speculoos",
    layouts={ANY: Layout(servers="Speculoos", parts="own", serve=serve.speculoos)},
)
"""The workbench's own folder: what training wrote."""

VLLM = Format(
    name="vllm",
    title="vLLM",
    layouts={
        "eagle": Layout(
            servers="vLLM 0.29 to 0.33",
            serve=serve.vllm,
            refusals=refusals.of("vLLM", refusals.plain_eagle, refusals.only(refusals.EAGLE | {"own_embeddings"})),
        ),
        "eagle3": Layout(
            servers="vLLM 0.29 to 0.33",
            serve=serve.vllm,
            refusals=refusals.of(
                "vLLM", refusals.ascending_layers, refusals.only(refusals.EAGLE31 | {"target_hidden_size"})
            ),
        ),
        "medusa": Layout(
            servers="vLLM 0.29 to 0.32 (0.33 removed Medusa)",
            serve=serve.vllm,
            refusals=refusals.of(
                "vLLM",
                refusals.some_blocks,
                refusals.few_tokens_shared,
                refusals.own_head_without_bias,
                refusals.only(refusals.MEDUSA),
            ),
        ),
    },
    lacking={
        "draft": "vLLM serves a standalone draft from its Hugging Face folder; take the format huggingface.",
    },
    otherwise="vLLM has no drafter for this method.",
)
"""vLLM: EAGLE-1 and EAGLE-3, and Medusa in the versions that have it.

Sources: vllm/model_executor/models/{llama_eagle,llama_eagle3,medusa}.py, transformers_utils/configs/{eagle,medusa}.py,
v1/worker/gpu_model_runner.py.
"""

SPECULATORS = Format(
    name="speculators",
    title="speculators",
    layouts={
        "eagle3": Layout(
            servers="speculators 0.9, vLLM 0.29 to 0.33",
            serve=serve.speculators,
            refusals=(
                *refusals.of("vLLM, given speculators' format,", refusals.three_layers),
                *refusals.of("vLLM", refusals.ascending_layers),
                *refusals.of("speculators", refusals.only(refusals.EAGLE31)),
            ),
        )
    },
    lacking={
        "eagle": "speculators 0.9 has no EAGLE-1 any more; take the format vllm or sglang.",
        "medusa": "speculators never had Medusa.",
        "draft": "speculators holds heads, not whole models; take the format huggingface.",
    },
    otherwise="speculators has no place for this method.",
)
"""speculators, vLLM's own format for drafts: EAGLE-3.

Sources: speculators/models/eagle3/{config,core}.py, speculators/model.py (DraftVocabMixin), speculators/config.py.
"""

SGLANG = Format(
    name="sglang",
    title="SGLang",
    layouts={
        "eagle": Layout(
            servers="SGLang 0.5",
            serve=serve.sglang,
            refusals=refusals.of("SGLang", refusals.plain_eagle, refusals.only(refusals.EAGLE | {"fc_bias"})),
        ),
        "eagle3": Layout(
            servers="SGLang 0.5",
            serve=serve.sglang,
            refusals=refusals.of(
                "SGLang",
                refusals.residual_after_norm,
                refusals.one_layer,
                refusals.ascending_layers,
                refusals.only(refusals.EAGLE3 | {"norm_before_fc", "fc_norm", "norm_output"}),
            ),
        ),
    },
    lacking={
        "medusa": "SGLang never had Medusa; vLLM up to 0.32, TensorRT-LLM up to 1.2 and TGI have.",
        "draft": "SGLang serves a standalone draft (STANDALONE) from its Hugging Face folder; take huggingface.",
    },
    otherwise="SGLang has no drafter for this method.",
)
"""SGLang: EAGLE (EAGLE-1 and 2) and EAGLE-3.

Sources: sglang/srt/models/{llama_eagle,llama_eagle3}.py, model_executor/model_runner.py, set_eagle3_layers_to_capture.
"""

TRTLLM = Format(
    name="trtllm",
    title="TensorRT-LLM",
    layouts={
        "eagle3": Layout(
            servers="TensorRT-LLM 1.2 and later (PyTorch backend)",
            serve=serve.trtllm,
            refusals=refusals.of("TensorRT-LLM", *refusals.REFERENCE_EAGLE3),
        ),
        "medusa": Layout(
            servers="TensorRT-LLM up to 1.2 (its engines were removed after that)",
            serve=serve.trtllm,
            refusals=refusals.of("TensorRT-LLM", *refusals.REFERENCE_MEDUSA),
        ),
    },
    lacking={
        "eagle": "TensorRT-LLM's PyTorch backend takes EAGLE-3 only; its engines, the last to take EAGLE-1, were "
        "removed after 1.2.",
        "draft": "TensorRT-LLM serves a standalone draft (DraftTarget) from its Hugging Face folder; take huggingface.",
    },
    otherwise="TensorRT-LLM has no drafter for this method.",
)
"""TensorRT-LLM: EAGLE-3 for the PyTorch backend; Medusa for the engines that 1.3 removed.

Sources: tensorrt_llm/_torch/models/modeling_speculative.py (Eagle3ForCausalLM), _torch/speculative/eagle3.py;
tensorrt_llm/models/medusa/{config,model,weight}.py of 1.2.
"""

MEDUSA = Format(
    name="medusa",
    title="Medusa repository and TGI",
    layouts={
        "medusa": Layout(
            servers="FasterDecoding/Medusa, Text Generation Inference 3",
            serve=serve.tgi,
            refusals=refusals.of("the Medusa repository", *refusals.REFERENCE_MEDUSA),
        )
    },
    otherwise="The Medusa repository and TGI take Medusa heads only.",
)
"""The layout of the Medusa repository, which Text Generation Inference reads too.

Sources: FasterDecoding/Medusa medusa/model/medusa_model.py; text-generation-inference
server/text_generation_server/layers/{medusa,speculative}.py, models/__init__.py.
"""

MODELOPT = Format(
    name="modelopt",
    title="ModelOpt",
    layouts={
        "eagle3": Layout(
            servers="nvidia-modelopt 0.47; servers that read its exports (TensorRT-LLM, SGLang)",
            serve=serve.modelopt,
            refusals=refusals.of("ModelOpt", *refusals.REFERENCE_EAGLE3),
        )
    },
    lacking={
        "eagle": "ModelOpt exports EAGLE-3 only; it dropped EAGLE-1.",
        "medusa": "ModelOpt trains Medusa heads but has no export of them (as of 0.47).",
        "draft": "ModelOpt has no format for standalone drafts; take huggingface.",
    },
    otherwise="ModelOpt has no export for this method.",
)
"""The layout that NVIDIA ModelOpt exports EAGLE-3 in.

Sources: modelopt/torch/export/plugins/{hf_spec_export,hf_spec_configs}.py,
modelopt/torch/speculative/plugins/modeling_eagle.py.
"""

HUGGINGFACE = Format(
    name="huggingface",
    title="Hugging Face",
    layouts={
        "draft": Layout(
            servers="transformers 5 (assistant_model); vLLM, SGLang and TensorRT-LLM as a draft model",
            parts="standalone",
            serve=serve.huggingface,
        )
    },
    otherwise="transformers takes whole models as assistants; heads on the base's hidden states are none.",
)
"""A standalone draft as a plain Hugging Face folder: transformers' `assistant_model`, a draft model in the servers."""

ALL = (OWN, VLLM, SPECULATORS, SGLANG, TRTLLM, MEDUSA, MODELOPT, HUGGINGFACE)
