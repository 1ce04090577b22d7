"""Fixtures of all tests: a tiny base model, a temporary home with a migrated database."""

import gc
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import hypothesis
import pytest

gc.disable()  # while modules are imported, since their objects stay alive
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.path.dirname(__file__)  # so that HTTP clients do not load all root certificates
os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"

from speculoos.settings import Settings, load  # noqa: E402
from tests.tools.databases import (  # noqa: E402, F401, F811
    ALL,
    POSTGRESQL,
    SQLITE,
    Databases,
    database,
    databases,
    postgres,
    postgres_server,
)
from tests.tools.figures import Figures  # noqa: E402
from tests.tools.receiver import Receiver, receiving  # noqa: E402

CLONE = Path(__file__).resolve().parent.parent
SHARED_DATA = CLONE.parent / "shared" / "data"
UNPREFIXED = ("DATABASE_URL", "REDIS_URL", "HF_TOKEN")


def pytest_configure() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # else background tests and their processes ignore it
    hypothesis.settings.register_profile("speculoos", deadline=None, derandomize=True)
    hypothesis.settings.load_profile("speculoos")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With DATABASES=all, run database tests on both databases; those with the marker `sqlite` run on SQLite only."""
    if ALL and "databases" in metafunc.fixturenames:
        sqlite_only = metafunc.definition.get_closest_marker(SQLITE)
        kinds = [SQLITE] if sqlite_only else [SQLITE, POSTGRESQL]
        metafunc.parametrize("databases", kinds, indirect=True, scope="session")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With DATABASES=all, run only tests that use a database."""
    if ALL:
        deselected = [item for item in items if "databases" not in getattr(item, "fixturenames", ())]
        config.hook.pytest_deselected(items=deselected)
        items[:] = [item for item in items if "databases" in getattr(item, "fixturenames", ())]


def pytest_collection_finish() -> None:
    """Collect garbage from now on, without searching the objects of imported modules."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Leave nothing to search: pytest collects garbage five times at the end."""
    gc.freeze()


@pytest.fixture(autouse=True, scope="module")
def freeze_imports() -> None:
    """Exclude imported objects from garbage collection, which libraries run themselves in some tests."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the machine's settings. SPECULOOS_STARTER and SPECULOOS_CHROMIUM stay, since they only name files."""
    allowed = ("SPECULOOS_STARTER", "SPECULOOS_CHROMIUM")
    for name in list(os.environ):
        if name.startswith("SPECULOOS_") and name not in allowed or name.removesuffix("_FILE") in UNPREFIXED:
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a tiny random llama with a byte-level tokenizer and a chat template."""
    from tests.tiny import make_tiny_base

    return make_tiny_base(tmp_path_factory.mktemp("tiny-base"))


@pytest.fixture
def home(
    tmp_path: Path,
    clean_environment: None,
    monkeypatch: pytest.MonkeyPatch,
    databases: Databases,  # noqa: F811
) -> Iterator[Settings]:
    """Settings of a temporary SPECULOOS_HOME with a migrated database; the environment variables are set too."""
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "home"))
    if url := databases.url():
        monkeypatch.setenv("DATABASE_URL", url)
    settings = load()
    databases.migrate(settings)
    yield settings
    databases.drop(url)
    shutil.rmtree(settings.run_dir, ignore_errors=True)


@pytest.fixture
def forked_services(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Fork the services of commands in this process (tests.tools.zygote); check that they ended with their commands."""
    from cli.launch import supervision
    from tests.tools.zygote import popen

    started = []
    forking = SimpleNamespace(**vars(subprocess))
    forking.Popen = lambda *args, **kwargs: started.append(popen(*args, **kwargs)) or started[-1]
    monkeypatch.setattr(supervision, "subprocess", forking)
    yield
    running = [process for process in started if process.poll() is None]
    for process in running:
        process.kill()
    assert started and not running


@pytest.fixture
def figures(request: pytest.FixtureRequest) -> Figures:
    """Records the measurements of a drill under its name. Without the marker `drill`, only prints them."""
    name = request.node.name.removeprefix("test_")
    return Figures(name, short=request.node.get_closest_marker("drill") is None)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A server that receives notifications."""
    with receiving() as server:
        yield server


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 16 MB."""
    with disk(tmp_path / "small-disk", 16) as path:
        yield path


@contextmanager
def disk(path: Path, megabytes: int) -> Iterator[Path]:
    """Mount a small disk at `path`. Skips if mounting is not allowed."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(path)]
    if subprocess.run(command, capture_output=True).returncode:
        pytest.skip("only root may mount a small disk, and a shared one must not be filled")
    yield path
    subprocess.run(["umount", "-l", str(path)], check=True)


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real prompts beside the clone. Skips if there is none."""
    if not SHARED_DATA.is_dir():
        pytest.skip("no shared data folder beside this clone")
    return SHARED_DATA
