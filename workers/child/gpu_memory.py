"""Memory of a job on a GPU that the inference server uses too.

A job stores the memory it needs in the lease of its GPU, so that the server leaves it free, and waits until it is.
Meanwhile the server unloads idle models. Nothing happens on a CPU.
"""

import time
from collections.abc import Callable, Iterable
from typing import Any

import httpx
import torch

from models.base import lease_name
from models.memory import gigabytes, model_bytes
from speculoos import machine
from speculoos.reporting import check_stop
from speculoos.settings import Settings
from tracking import leases
from workers.child.context import JobContext

MARGIN, CONTEXT_BYTES = 1.1, 10**9  # for activations, fragmentation; CUDA's context and the workspaces of libraries
LARGEST_SHARE = 0.9  # of a GPU that a job waits for, if its estimate is larger: the rest is never free
CACHE_TOKENS = 8192
REQUEST_SECONDS = 30.0


def model_memory(folders: Iterable[str], dtype: str, tokens: int = CACHE_TOKENS, sequences: int = 1) -> float:
    """Bytes of GPU memory to run the models in `folders`, each with the KV caches of `sequences` of `tokens` tokens."""
    sizes = [model_bytes(folder, 4 if dtype == "float32" else 2, tokens) for folder in folders]
    return MARGIN * sum(size.weights + sequences * size.cache for size in sizes) + CONTEXT_BYTES


def wait_for_memory(context: JobContext, devices: Iterable[str | torch.device], estimate: Callable[[], float]) -> None:
    """Reserve the estimated bytes on each of the job's GPUs and wait until they are free. The reservation ends with the
    lease. Raises Cancelled on a stop."""
    gpus = {lease_name(device): device for device in map(torch.device, devices) if device.type == "cuda"}
    if not gpus:
        return
    nbytes = estimate()
    needed = {name: int(min(nbytes, LARGEST_SHARE * _memory(device)[1])) for name, device in gpus.items()}
    _reserve(context, needed)
    waited = False
    with _server_client(context.settings) as client:
        while True:
            server = _release_memory(client, list(gpus))
            memory = {name: _memory(device) for name, device in gpus.items()}
            lacking = [_lack(name, needed[name], memory[name][0], server) for name in gpus]
            if not any(lacking):
                break
            waited = True
            context.wait_note(f"Waits for {', and '.join(filter(None, lacking))}.")
            check_stop(context)
            time.sleep(context.timing.poll_seconds)
    if waited:
        context.wait_note("")
    # The memory of other programs is not the server's either.
    others = {name: total - free - _used_by_models(server, name) for name, (free, total) in memory.items()}
    _reserve(context, {name: needed[name] + max(others[name], 0) for name in gpus})


def _memory(device: torch.device) -> tuple[int, int]:
    """(free, total) bytes of a GPU."""
    return torch.cuda.mem_get_info(device)


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


def _used_by_models(server: dict[str, Any], name: str) -> int:
    return server["bytes"] if server.get("device") == name else 0


def _lack(name: str, needed: int, free: int, server: dict[str, Any]) -> str:
    """What the GPU lacks, or "". A server that has not answered yet may be loading a model."""
    loading = server.get("device") == name and not server["released"]
    if free >= needed and not loading:
        return ""
    used = _used_by_models(server, name)
    chat = f", chat uses {gigabytes(used)}" if used else ""
    return f"{gigabytes(needed)} of GPU memory on {name} ({gigabytes(free)} are free{chat})"
