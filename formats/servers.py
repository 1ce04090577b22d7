"""The records of all formats: the server, the supported drafts and the reasons why others are not supported. No
torch."""

from formats import refusals, serve
from formats.record import ANY, Format, Layout

OWN = Format(
    name="own",
    title="Speculoos",
    layouts={ANY: Layout(servers="Speculoos", serve=serve.speculoos)},
)
"""The workbench's own format: the checkpoint's folder as training wrote it."""

VLLM = Format(
    name="vllm",
    title="vLLM",
    layouts={
        "eagle": Layout(
            servers="vLLM 0.29 to 0.33",
            serve=serve.vllm,
            refusals=refusals.for_server(
                "vLLM", refusals.plain_eagle, refusals.known_only(refusals.EAGLE | {"own_embeddings"})
            ),
        ),
        "eagle3": Layout(
            servers="vLLM 0.29 to 0.33",
            serve=serve.vllm,
            refusals=refusals.for_server(
                "vLLM", refusals.ascending_layers, refusals.known_only(refusals.EAGLE31 | {"target_hidden_size"})
            ),
        ),
        "medusa": Layout(
            servers="vLLM 0.29 to 0.32 (0.33 removed Medusa)",
            serve=serve.vllm,
            refusals=refusals.for_server(
                "vLLM",
                refusals.residual_blocks,
                refusals.shared_small_vocabulary,
                refusals.unbiased_shared_head,
                refusals.known_only(refusals.MEDUSA),
            ),
        ),
    },
    unsupported={
        "draft": "vLLM serves a standalone draft from its Hugging Face folder; use the format huggingface.",
    },
    default_reason="vLLM has no drafter for this method.",
)
"""vLLM: EAGLE-1, EAGLE-3, and Medusa in the versions that support it.

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
                *refusals.for_server("vLLM with the speculators format", refusals.three_layers),
                *refusals.for_server("vLLM", refusals.ascending_layers),
                *refusals.for_server("speculators", refusals.known_only(refusals.EAGLE31)),
            ),
        )
    },
    unsupported={
        "eagle": "speculators 0.9 no longer supports EAGLE-1; use the format vllm or sglang.",
        "medusa": "speculators never supported Medusa.",
        "draft": "speculators supports heads, not whole models; use the format huggingface.",
    },
    default_reason="speculators does not support this method.",
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
            refusals=refusals.for_server(
                "SGLang", refusals.plain_eagle, refusals.known_only(refusals.EAGLE | {"fc_bias"})
            ),
        ),
        "eagle3": Layout(
            servers="SGLang 0.5",
            serve=serve.sglang,
            refusals=refusals.for_server(
                "SGLang",
                refusals.residual_before_norm,
                refusals.one_layer,
                refusals.ascending_layers,
                refusals.known_only(refusals.EAGLE3 | {"norm_before_fc", "fc_norm", "norm_output"}),
            ),
        ),
    },
    unsupported={
        "medusa": "SGLang never had Medusa; vLLM up to 0.32, TensorRT-LLM up to 1.2 and TGI support it.",
        "draft": "SGLang serves a standalone draft (STANDALONE) from its Hugging Face folder; use huggingface.",
    },
    default_reason="SGLang has no drafter for this method.",
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
            refusals=refusals.for_server("TensorRT-LLM", *refusals.REFERENCE_EAGLE3),
        ),
        "medusa": Layout(
            servers="TensorRT-LLM up to 1.2 (its engines were removed after that)",
            serve=serve.trtllm,
            refusals=refusals.for_server("TensorRT-LLM", *refusals.REFERENCE_MEDUSA),
        ),
    },
    unsupported={
        "eagle": "TensorRT-LLM's PyTorch backend supports EAGLE-3 only; its engines, which supported EAGLE-1, were "
        "removed after 1.2.",
        "draft": "TensorRT-LLM serves a standalone draft (DraftTarget) from its Hugging Face folder; use huggingface.",
    },
    default_reason="TensorRT-LLM has no drafter for this method.",
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
            refusals=refusals.for_server("the Medusa repository", *refusals.REFERENCE_MEDUSA),
        )
    },
    default_reason="The Medusa repository and TGI support Medusa heads only.",
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
            servers="nvidia-modelopt 0.47; servers that read its exports (TensorRT-LLM, SGLang)",
            serve=serve.modelopt,
            refusals=refusals.for_server("ModelOpt", *refusals.REFERENCE_EAGLE3),
        )
    },
    unsupported={
        "eagle": "ModelOpt exports EAGLE-3 only; it no longer supports EAGLE-1.",
        "medusa": "ModelOpt trains Medusa heads but does not export them (as of 0.47).",
        "draft": "ModelOpt has no format for standalone drafts; use huggingface.",
    },
    default_reason="ModelOpt does not export this method.",
)
"""The layout of NVIDIA ModelOpt's EAGLE-3 exports.

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
    default_reason="transformers takes whole models as assistants, not heads on the base model's hidden states.",
)
"""A standalone draft as a Hugging Face folder: `assistant_model` in transformers, a draft model in the servers."""

ALL = (OWN, VLLM, SPECULATORS, SGLANG, TRTLLM, MEDUSA, MODELOPT, HUGGINGFACE)
