"""The export formats of a checkpoint. The record of a format names the server that reads it, the supported methods, its
writer and its checks. Torch is imported only when a checkpoint is written."""

from formats import servers
from formats.servers import Format
from speculoos.errors import Unsupported

OWN = servers.OWN.name
FORMATS: dict[str, Format] = {record.name: record for record in servers.ALL}


def find_format(name: str) -> Format:
    """The record of a format. Raises Unsupported for an unknown name."""
    if name not in FORMATS:
        raise Unsupported(f"Unknown format {name!r}; known are {', '.join(FORMATS)}.")
    return FORMATS[name]
