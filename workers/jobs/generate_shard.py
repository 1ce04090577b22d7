"""Job kind `generate_shard`: one shard of a generation."""

from typing import ClassVar

from workers.jobs.generate_data import GenerateData


class GenerateShard(GenerateData):
    """Shard `key` of a generation: sample `first_sample` of `limit` prompts from index `first` on."""

    kind: ClassVar[str] = "generate_shard"
    title: ClassVar[str] = "Generate a shard"
    output: ClassVar = None

    key: str = ""
    first: int = 0
    first_sample: int = 0
