"""Job kind `generate_shard`: one shard of a generation."""

from typing import ClassVar

from workers.jobs.generate_data import GenerateData


class GenerateShard(GenerateData):
    """Shard `key` of a generation: `limit` prompts from number `first` on, their answers number `first_sample`."""

    kind: ClassVar[str] = "generate_shard"
    title: ClassVar[str] = "Generate a shard"
    output: ClassVar = None

    key: str = ""
    first: int = 0
    first_sample: int = 0
