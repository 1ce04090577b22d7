"""vLLM: EAGLE-1 and EAGLE-3, and Medusa in the versions that have it.

Sources: vllm/model_executor/models/{llama_eagle,llama_eagle3,medusa}.py, transformers_utils/configs/{eagle,medusa}.py,
v1/worker/gpu_model_runner.py.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="vllm",
    title="vLLM",
    layouts={
        "eagle": Layout(
            servers="vLLM 0.29 to 0.33",
            writer="formats.writers.eagle:vllm",
            table="formats.tables.eagle:vllm",
            reader="formats.readers.eagle:vllm",
            serve="formats.serve:vllm",
            refusal=refusals.first_of(
                refusals.plain_eagle("vLLM"), refusals.only("vLLM", refusals.EAGLE | {"own_embeddings"})
            ),
        ),
        "eagle3": Layout(
            servers="vLLM 0.29 to 0.33",
            writer="formats.writers.eagle3:vllm",
            table="formats.tables.eagle3:vllm",
            reader="formats.readers.eagle3:vllm",
            serve="formats.serve:vllm",
            refusal=refusals.first_of(
                refusals.ascending_layers("vLLM"),
                refusals.only("vLLM", refusals.EAGLE31 | {"target_hidden_size"}),
            ),
        ),
        "medusa": Layout(
            servers="vLLM 0.29 to 0.32 (0.33 removed Medusa)",
            writer="formats.writers.medusa:vllm",
            table="formats.tables.medusa:vllm",
            reader="formats.readers.medusa:vllm",
            serve="formats.serve:vllm",
            refusal=refusals.first_of(
                refusals.some_blocks("vLLM"),
                refusals.few_tokens_shared("vLLM"),
                refusals.own_head_without_bias("vLLM"),
                refusals.only("vLLM", refusals.MEDUSA),
            ),
        ),
    },
    lacking={
        "draft": "vLLM serves a standalone draft from its Hugging Face folder; take the format huggingface.",
    },
    otherwise="vLLM has no drafter for this method.",
)
