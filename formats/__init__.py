"""The formats a checkpoint can be written in, one record each: which server reads it, which drafts it takes, who writes
it, who checks it. No torch until one is written."""

from formats import huggingface, medusa, modelopt, own, sglang, speculators, trtllm, vllm
from formats.record import Format
from speculoos.errors import Unsupported

OWN = own.FORMAT.name
FORMATS: dict[str, Format] = {
    module.FORMAT.name: module.FORMAT
    for module in (own, vllm, speculators, sglang, trtllm, medusa, modelopt, huggingface)
}


def find_format(name: str) -> Format:
    """The record of a format. Raises Unsupported for an unknown one."""
    if name not in FORMATS:
        raise Unsupported(f"Unknown format {name!r}; known are {', '.join(FORMATS)}.")
    return FORMATS[name]
