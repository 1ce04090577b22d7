"""TensorRT-LLM: EAGLE-3 for the PyTorch backend; Medusa for the engines that 1.3 removed.

Sources: tensorrt_llm/_torch/models/modeling_speculative.py (Eagle3ForCausalLM), _torch/speculative/eagle3.py;
tensorrt_llm/models/medusa/{config,model,weight}.py of 1.2.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="trtllm",
    title="TensorRT-LLM",
    layouts={
        "eagle3": Layout(
            servers="TensorRT-LLM 1.2 and later (PyTorch backend)",
            writer="formats.writers.eagle3:trtllm",
            table="formats.tables.eagle3:trtllm",
            reader="formats.readers.eagle3:trtllm",
            serve="formats.serve:trtllm",
            refusal=refusals.first_of(
                refusals.residual_after_norm("TensorRT-LLM"),
                refusals.ascending_layers("TensorRT-LLM"),
                refusals.one_layer("TensorRT-LLM"),
                refusals.only("TensorRT-LLM", refusals.EAGLE3),
            ),
        ),
        "medusa": Layout(
            servers="TensorRT-LLM up to 1.2 (its engines were removed after that)",
            writer="formats.writers.medusa:trtllm",
            table="formats.tables.medusa:trtllm",
            reader="formats.readers.medusa:trtllm",
            serve="formats.serve:trtllm",
            refusal=refusals.first_of(
                refusals.some_blocks("TensorRT-LLM"),
                refusals.whole_vocabulary("TensorRT-LLM"),
                refusals.own_head_without_bias("TensorRT-LLM"),
                refusals.only("TensorRT-LLM", refusals.MEDUSA),
            ),
        ),
    },
    lacking={
        "eagle": "TensorRT-LLM's PyTorch backend takes EAGLE-3 only; its engines, the last to take EAGLE-1, were "
        "removed after 1.2.",
        "draft": "TensorRT-LLM serves a standalone draft (DraftTarget) from its Hugging Face folder; take huggingface.",
    },
    otherwise="TensorRT-LLM has no drafter for this method.",
)
