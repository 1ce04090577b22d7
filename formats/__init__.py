"""The formats a checkpoint can be written in, one record each: which server reads it, which drafts it takes, who writes
it, who checks it. No torch until one is written."""

from formats import servers
from formats.record import Format
from speculoos.errors import Unsupported

OWN = servers.OWN.name
FORMATS: dict[str, Format] = {record.name: record for record in servers.ALL}


def find_format(name: str) -> Format:
    """The record of a format. Raises Unsupported for an unknown one."""
    if name not in FORMATS:
        raise Unsupported(f"Unknown format {name!r}; known are {', '.join(FORMATS)}.")
    return FORMATS[name]
