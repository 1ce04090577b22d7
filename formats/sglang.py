"""SGLang: EAGLE (EAGLE-1 and 2) and EAGLE-3.

Sources: sglang/srt/models/{llama_eagle,llama_eagle3}.py, model_executor/model_runner.py, set_eagle3_layers_to_capture.
"""

from formats import refusals
from formats.record import Format, Layout

FORMAT = Format(
    name="sglang",
    title="SGLang",
    layouts={
        "eagle": Layout(
            servers="SGLang 0.5",
            writer="formats.writers.eagle:sglang",
            table="formats.tables.eagle:sglang",
            reader="formats.readers.eagle:sglang",
            serve="formats.serve:sglang",
            refusal=refusals.first_of(
                refusals.plain_eagle("SGLang"), refusals.only("SGLang", refusals.EAGLE | {"fc_bias"})
            ),
        ),
        "eagle3": Layout(
            servers="SGLang 0.5",
            writer="formats.writers.eagle3:sglang",
            table="formats.tables.eagle3:sglang",
            reader="formats.readers.eagle3:sglang",
            serve="formats.serve:sglang",
            refusal=refusals.first_of(
                refusals.residual_after_norm("SGLang"),
                refusals.one_layer("SGLang"),
                refusals.ascending_layers("SGLang"),
                refusals.only("SGLang", refusals.EAGLE3 | {"norm_before_fc", "fc_norm", "norm_output"}),
            ),
        ),
    },
    lacking={
        "medusa": "SGLang never had Medusa; vLLM up to 0.32, TensorRT-LLM up to 1.2 and TGI have.",
        "draft": "SGLang serves a standalone draft (STANDALONE) from its Hugging Face folder; take huggingface.",
    },
    otherwise="SGLang has no drafter for this method.",
)
