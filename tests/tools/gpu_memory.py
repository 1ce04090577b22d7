"""The memory of a simulated GPU."""

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch


@dataclass
class GpuMemory:
    """Bytes of a GPU: total, used by other programs, and used by models of this process."""

    total: int
    others: int = 0
    used: Callable[[], int] = lambda: 0
    uuid: str = "1234"

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {
            "mem_get_info": lambda *_: (self.total - self.others - self.used(), self.total),
            "memory_reserved": lambda *_: self.used(),
            "get_device_properties": lambda *_: SimpleNamespace(uuid=self.uuid, total_memory=self.total),
            "empty_cache": lambda: None,
        }.items():
            monkeypatch.setattr(torch.cuda, name, value)
