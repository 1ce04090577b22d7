"""A standalone draft as a plain Hugging Face folder: transformers' `assistant_model`, a draft model in the servers."""

from formats.record import Format, Layout

FORMAT = Format(
    name="huggingface",
    title="Hugging Face",
    layouts={
        "draft": Layout(
            servers="transformers 5 (assistant_model); vLLM, SGLang and TensorRT-LLM as a draft model",
            writer="formats.writers.standalone:plan",
            table="formats.tables.standalone:table",
            reader="formats.readers.standalone:reader",
            serve="formats.serve:huggingface",
        )
    },
    otherwise="transformers takes whole models as assistants; heads on the base's hidden states are none.",
)
