"""The layout that NVIDIA ModelOpt exports EAGLE-3 in.

Sources: modelopt/torch/export/plugins/{hf_spec_export,hf_spec_configs}.py,
modelopt/torch/speculative/plugins/modeling_eagle.py.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="modelopt",
    title="ModelOpt",
    layouts={
        "eagle3": Layout(
            servers="nvidia-modelopt 0.47; servers that read its exports (TensorRT-LLM, SGLang)",
            writer="formats.writers.eagle3:modelopt",
            table="formats.tables.eagle3:modelopt",
            reader="formats.readers.eagle3:modelopt",
            serve="formats.serve:trtllm",
            refusal=refusals.first_of(
                refusals.residual_after_norm("ModelOpt"),
                refusals.ascending_layers("ModelOpt"),
                refusals.one_layer("ModelOpt"),
                refusals.only("ModelOpt", refusals.EAGLE3),
            ),
        )
    },
    lacking={
        "eagle": "ModelOpt exports EAGLE-3 only; it dropped EAGLE-1.",
        "medusa": "ModelOpt trains Medusa heads but has no export of them (as of 0.47).",
        "draft": "ModelOpt has no format for standalone drafts; take huggingface.",
    },
    otherwise="ModelOpt has no export for this method.",
)
