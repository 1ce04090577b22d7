"""Virtual environments for the compared libraries, with the same torch version as this environment."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

TORCH = f"torch=={torch.__version__.split('+')[0]}"
STEPS: dict[str, list[Sequence[str]]] = {
    "modelopt": [(TORCH,), (TORCH, "nvidia-modelopt[hf]==0.47.0", "requests")],
    "speculators": [
        (TORCH, "transformers==5.19.0", "accelerate", "datasets>=4,<=5.1", "loguru>=0.7.2,<=0.7.3"),
        ("aiohttp", "click", "httpx", "openai>=2", "protobuf", "psutil", "pydantic>=2", "pydantic-settings"),
        ("rich", "safetensors", "tqdm<=4.70.1", "typer"),
        ("--no-deps", "speculators==0.9.0", "hs-connectors==0.9.0"),
    ],
}
"""Packages of each pip call. speculators depends on torchaudio and torchvision, which are not needed here and would
install another torch, so its other dependencies are listed explicitly."""


def make_environment(peer: str, folder: Path) -> Path:
    """Create the virtual environment `folder`/`peer` if missing; needs network, minutes and some GB."""
    environment = folder / peer
    complete = environment / ".whole"
    if complete.exists():
        return environment
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    for packages in STEPS[peer]:
        subprocess.run([str(environment / "bin" / "python"), "-m", "pip", "install", "-q", *packages], check=True)
    complete.touch()
    return environment
