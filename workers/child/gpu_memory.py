"""Memory of a job on a GPU that the inference server uses too.

A job stores the memory it needs in the lease of its GPU, so that the server leaves it free, and waits until it is.
Meanwhile the server unloads idle models. Nothing happens on a CPU.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import httpx
import torch

from models.base import lease_name
from models.memory import divided_bytes, gigabytes, model_bytes
from speculoos import machine
from speculoos.errors import BadInput
from speculoos.reporting import check_stop
from speculoos.settings import Settings
from tracking import leases
from workers.child.context import JobContext

MARGIN, CONTEXT_BYTES = 1.1, 10**9  # for activations, fragmentation; CUDA's context and the workspaces of libraries
LARGEST_SHARE = 0.9  # of a GPU that a job waits for, if its estimate is larger: the rest is never free
CACHE_TOKENS = 8192
REQUEST_SECONDS = 30.0


def model_memory(
    folders: Sequence[str], dtype: str, tokens: int = CACHE_TOKENS, sequences: int = 1, gpus: int = 1
) -> float:
    """Bytes of GPU memory to run the models in `folders`, each with the KV caches of `sequences` of `tokens` tokens.
    With several `gpus`: bytes on each, if the first model is divided among them."""
    sizes = [model_bytes(folder, 4 if dtype == "float32" else 2, tokens) for folder in folders]
    base, *drafts = (size.weights + sequences * size.cache for size in sizes)
    return MARGIN * sum([divided_bytes(folders[0], base, gpus), *drafts]) + CONTEXT_BYTES


def gpus_needed(memory: Callable[..., float], sizes: Sequence[int]) -> int:
    """The fewest GPUs among which a base must be divided. `memory`: as `model_memory`, with its first arguments set;
    `sizes`: bytes of the GPUs that the job may use. Raises BadInput if the weights do not fit all of them."""
    available, smallest = len(sizes), min(sizes)
    counts = range(1, available + 1)
    fitting = next((count for count in counts if memory(gpus=count) <= LARGEST_SHARE * smallest), 0)
    if not fitting and (least := memory(gpus=available, tokens=0)) > MARGIN * smallest:
        where = f"each of the {available} GPUs" if available > 1 else "the GPU"
        raise BadInput(
            f"The weights need about {gigabytes(least)} on {where} that this job may use, which has only "
            f"{gigabytes(smallest)}.",
            "Use precision bfloat16, a quantized copy of the base, a server with more GPUs as endpoint, or all GPUs of "
            "this machine (SPECULOOS_DEVICE auto) if only one is used.",
        )
    return fitting or available


def wait_for_memory(context: JobContext, devices: Iterable[str | torch.device], estimate: Callable[[], float]) -> None:
    """Reserve the estimated bytes on each of the job's GPUs and wait until they are free. The reservation ends with the
    lease. Raises Cancelled on a stop."""
    gpus = {lease_name(device): device for device in map(torch.device, devices) if device.type == "cuda"}
    if not gpus:
        return
    nbytes = estimate()
    needed = {
        name: int(min(nbytes, LARGEST_SHARE * torch.cuda.mem_get_info(device)[1])) for name, device in gpus.items()
    }
    _reserve(context, needed)
    with _server_client(context.settings) as client:

        def measure() -> dict[str, GpuUse]:
            server = _release_memory(client, list(gpus))
            return {name: GpuUse.of(name, device, server) for name, device in gpus.items()}

        uses, waited = measure(), False
        while lacks := [lack for name, use in uses.items() if (lack := use.lack(name, needed[name]))]:
            waited = True
            context.wait_note(f"Waits for {', and '.join(lacks)}.")
            check_stop(context)
            time.sleep(context.timing.poll_seconds)
            uses = measure()
        if waited:
            context.wait_note("")
        uses = measure()  # again: models may have been unloaded between the server's response and the measurement
    # The memory of other programs is not the server's either.
    _reserve(context, {name: needed[name] + use.others for name, use in uses.items()})


class GpuUse(NamedTuple):
    """Bytes of a GPU: in all, free, and used by models of the server, with what these will need for their caches.
    `loading`: whether the server is loading another model."""

    total: int
    free: int
    models: int = 0
    loading: bool = False

    @classmethod
    def of(cls, name: str, device: torch.device, server: dict[str, Any]) -> "GpuUse":
        """`server`: response of `_release_memory`, which may be about another GPU."""
        free, total = torch.cuda.mem_get_info(device)
        if server.get("device") != name:
            return cls(total, free)
        planned = server["planned"]
        return cls(total, max(free - planned, 0), server["bytes"] + planned, server["loading"])

    @property
    def others(self) -> int:
        """Bytes used by other programs."""
        return max(self.total - self.free - self.models, 0)

    def lack(self, name: str, needed: int) -> str:
        """What the GPU lacks, or ""."""
        if self.free >= needed and not self.loading:
            return ""
        chat = f", chat uses {gigabytes(self.models)}" if self.models else ""
        loading = ", chat loads a model" if self.loading else ""
        return f"{gigabytes(needed)} of GPU memory on {name} ({gigabytes(self.free)} are free{chat}{loading})"


def _reserve(context: JobContext, nbytes: dict[str, int]) -> None:
    with context.session() as session:
        for name, count in nbytes.items():
            key = machine.device_key(name, context.settings.home)
            leases.reserve_memory(session, key, f"job:{context.job_id}", count, context.attempt)


def _server_client(settings: Settings) -> httpx.Client:
    """A client without proxies, which could not reach the server and would receive the token."""
    headers = {"Authorization": f"Bearer {settings.inference_token}"}
    return httpx.Client(base_url=settings.inference_url, headers=headers, timeout=REQUEST_SECONDS, trust_env=False)


def _release_memory(server: httpx.Client, devices: list[str]) -> dict[str, Any]:
    """Request that the server unloads idle models; returns its response, {} without a server that works."""
    try:
        return server.post("/v1/release_memory", json={"devices": devices}).raise_for_status().json()
    except (httpx.HTTPError, ValueError):
        return {}
