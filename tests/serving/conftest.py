"""A real inference server on a free port, with a tiny base that generates an emoji and heads that are always right."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from sqlalchemy import delete

from models.base import load_base
from models.checkpoints import WEIGHTS, save_draft
from models.identity import weights_sha256
from models.medusa import MedusaConfig, MedusaHeads
from serving.engine import Engine
from serving.main import create_app
from speculoos.checksums import file_sha256
from speculoos.settings import Settings, load
from tests.tiny import make_tiny_base
from tests.tools.databases import Databases, migrate
from tests.tools.ports import free_ports
from tracking.db import writing
from tracking.tables import Base, Checkpoint

TOKEN = "test-token"
CYCLE_TEXT = "\U0001f600 the quick brown fox jumps over"  # the emoji is four tokens
HEADS = 3


def cycle_of(tokenizer: Any) -> dict[int, int]:
    """The successor of each token: `CYCLE_TEXT` repeats, and starts after the line break that ends a prompt."""
    ids = tokenizer.encode(CYCLE_TEXT, add_special_tokens=False)
    assert len(set(ids)) == len(ids), "each token needs one successor"
    successors = {tokenizer.encode("\n", add_special_tokens=False)[-1]: ids[0]}
    return successors | dict(zip(ids, [*ids[1:], ids[0]], strict=True))


def make_cycle_base(folder: Path, seed: int = 0) -> Path:
    """A tiny llama whose layers add nothing and whose head names the successor of the last token."""
    make_tiny_base(folder, seed=seed, hidden_size=64, tie_word_embeddings=False, max_position_embeddings=8192)
    base = load_base(folder)
    successors = cycle_of(base.tokenizer)
    with torch.no_grad():
        for name, weight in base.model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.zero_()
        point_to(base.lm_head.weight, base.embed_tokens.weight, successors, 1)
    base.model.save_pretrained(folder)
    return folder


def point_to(head: torch.Tensor, embedding: torch.Tensor, successors: dict[int, int], steps: int) -> None:
    """Make `head` [V, H] name the token `steps` successors after the one whose embedding it sees."""
    head.zero_()
    for token in range(embedding.shape[0]):
        successor = token
        for _ in range(steps):
            successor = successors.get(successor, successor)
        head[successor] += embedding[token] / embedding[token].norm()


def make_heads(folder: Path, base_folder: Path, base_sha256: str = "", wrong: bool = False) -> Path:
    """Medusa heads for the cycle base: always right, or always wrong."""
    base = load_base(base_folder)
    heads = MedusaHeads.from_base(MedusaConfig(base.hidden_size, base.vocab_size, HEADS), base)
    successors = cycle_of(base.tokenizer)
    with torch.no_grad():
        for i, head in enumerate(heads.lm_heads):
            point_to(head.weight, base.embed_tokens.weight, successors, i + 2 + (3 if wrong else 0))
    return save_draft(folder, heads, {"base": "cycle", "base_sha256": base_sha256})


@dataclass
class Served:
    """The running server and how to reach it."""

    settings: Settings
    engine: Engine
    url: str
    root: Path

    @property
    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {TOKEN}"}

    def client(self, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers=self.headers, timeout=120, **options)

    def chat_request(self, model: str = "cycle", text: str = "Say it", **parameters: Any) -> dict[str, Any]:
        return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 40, **parameters}

    def wait_idle(self, seconds: float = 90) -> None:
        until(lambda: not self.engine.queue.busy and not self.engine.queue.waiting, seconds)


def until(condition: Any, seconds: float = 90) -> None:
    """Wait until `condition()` is true; fail after `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


@pytest.fixture(scope="session")
def model_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `cycle`, `cycle2`, `right` and `wrong` (heads for cycle)."""
    root = tmp_path_factory.mktemp("models")
    make_cycle_base(root / "cycle")
    make_cycle_base(root / "cycle2", seed=1)
    make_heads(root / "right", root / "cycle", weights_sha256(root / "cycle"))
    make_heads(root / "wrong", root / "cycle", "c" * 64, wrong=True)
    return root


def ready_base(name: str, path: Path, sha256: str) -> Base:
    return Base(name=name, source="folder", location="x", path=str(path), state="ready", weights_sha256=sha256)


def register(settings: Settings, root: Path) -> None:
    """Rows for the model files: bases cycle, cycle2 and one that is not ready; checkpoints right, wrong, unready."""
    with writing(settings) as session:
        cycle = ready_base("cycle", root / "cycle", weights_sha256(root / "cycle"))
        second = ready_base("org/cycle2", root / "cycle2", weights_sha256(root / "cycle2"))
        session.add_all([cycle, second, Base(name="unready", source="folder", location="x")])
        session.flush()
        for name in ("right", "wrong"):
            sha256 = file_sha256(root / name / WEIGHTS)
            session.add(
                Checkpoint(
                    name=name, method="medusa", state="ready", base_id=cycle.id, path=str(root / name), sha256=sha256
                )
            )
        session.add(Checkpoint(name="unready", method="medusa", base_id=cycle.id))


@pytest.fixture(scope="session")
def served(model_files: Path, tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[Served]:
    """One server for all tests of this folder that do not need their own."""
    home = tmp_path_factory.mktemp("home")
    yield from serve(home, model_files, databases.url())


@contextmanager
def more_bases(served: Served, *bases: Base) -> Iterator[Served]:
    """The server with these bases too, until the block ends."""
    names = [base.name for base in bases]
    with writing(served.settings) as session:
        session.add_all(bases)
    yield served
    with writing(served.settings) as session:
        session.execute(delete(Base).where(Base.name.in_(names)))


def serve(
    home: Path,
    root: Path,
    database_url: str = "",
    stuck_seconds: int = 120,
    on_stuck: Any = None,
    **engine_options: Any,
) -> Iterator[Served]:
    """Run a server until the generator is closed."""
    environment = {
        "SPECULOOS_HOME": str(home),
        "DATABASE_URL": database_url,
        "SPECULOOS_INFERENCE_PORT": str(free_ports(1)[0]),
        "SPECULOOS_INFERENCE_TOKEN": TOKEN,
        "SPECULOOS_DEVICE": "cpu",
        "XDG_RUNTIME_DIR": os.environ.get("XDG_RUNTIME_DIR", ""),
        "SPECULOOS_STUCK_SECONDS": str(stuck_seconds),
    }
    settings = load(environment)
    migrate(settings)
    register(settings, root)
    engine = Engine(settings, **engine_options)
    config = uvicorn.Config(create_app(settings, engine, on_stuck), port=settings.inference_port, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until(lambda: server.started)
    yield Served(settings, engine, f"http://127.0.0.1:{settings.inference_port}", root)
    server.should_exit = True
    thread.join(timeout=60)
