"""Training in several processes on this machine, started by torch's elastic launcher.

The calling process keeps the reporter, and with it the database. Rank 0 sends its reports over a socket and waits for
the answers of `keep` and `stop_requested`; any rank sends the error that ends it. Processes are not restarted: when one
ends, the launcher ends the others, and the job's next attempt resumes from the last saved state.
"""

import multiprocessing
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from models.base import pick_device
from models.damage import UNSAVED, check_base
from models.methods.settings import TrainConfig
from speculoos.errors import Cancelled, ProcessLost, SpeculoosError
from speculoos.limited import die_with_parent
from speculoos.redaction import RedactingStream, known_secrets
from speculoos.reporting import Reporter, SilentReporter
from speculoos.settings import load
from training.loop import TrainResult, train

SOCKET, DONE, ERROR = "reports", "done", "error"
ANSWERED = ("keep", "stop_requested")
"""Methods of a reporter that return something."""
STOP_SECONDS = 5
"""Seconds between SIGTERM and SIGKILL for the other processes when one has ended."""


def train_in_processes(
    processes: int, gpus: Sequence[str], reporter: Reporter, config: TrainConfig, *arguments: Any, **options: Any
) -> TrainResult:
    """`training.loop.train(config, *arguments, reporter=reporter, **options)` in `processes` processes, each on one of
    `gpus` (UUIDs), or sharing the cores if there are none. All arguments but the reporter are pickled. Raises the first
    error of a rank, or ProcessLost if a rank was killed."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    known, checksum_cache = options.pop("known", None), options.pop("checksum_cache", UNSAVED)
    if known is not None:  # once for all
        check_base(arguments[0], known, checksum_cache)
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # it would listen on all interfaces
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # of the new processes; this one has its devices already
        config = config.model_copy(update={"device": "cuda"})
    _start_fork_server()
    results, failure = {}, ""
    with tempfile.TemporaryDirectory(prefix="speculoos-") as folder:
        launch = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id="training",
            rdzv_backend="c10d",
            rdzv_endpoint=f"{folder}/rendezvous",
            rdzv_configs={"store_type": "file"},
            max_restarts=0,
            start_method="forkserver",  # the imports are done once for all processes
            signals_to_handle="SIGHUP",  # the caller handles the others
            shutdown_timeout=STOP_SECONDS,
        )
        with _ReportServer(Path(folder), processes, reporter) as server:
            try:
                results = elastic_launch(launch, _run_rank)(folder, (config, *arguments), options)
            except ChildFailedError as error:
                rank, cause = error.get_first_failure()
                failure = f"Process {rank + 1} of the training ended with exit status {cause.exitcode}."
    if server.error or failure:
        raise server.error or ProcessLost(failure)
    return results[0]


def _start_fork_server() -> None:
    """Start the process that does the imports and forks the ranks. It blocks SIGTERM, which a stopping worker sends to
    the job's group: the ranks would end with it, before their next step."""
    multiprocessing.set_forkserver_preload(["__main__", __name__, "accelerate", "transformers.modeling_utils"])
    resource_tracker.ensure_running()  # the fork server would start it, and it unblocks SIGTERM
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class _ReportServer:
    """Passes the reports of rank 0 to the reporter, in a thread. `error`: why the first rank failed, None before."""

    def __init__(self, folder: Path, processes: int, reporter: Reporter):
        self.reporter, self.error = reporter, None
        self._listener = Listener(str(folder / SOCKET), "AF_UNIX")
        self._ranks: dict[Connection, int] = {}
        self._thread = threading.Thread(target=self._serve, args=(processes,), daemon=True)

    def __enter__(self) -> "_ReportServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # ends the wait for ranks that never connected
            Client(self._listener.address).close()
        self._listener.close()
        self._thread.join()

    def _serve(self, processes: int) -> None:
        with suppress(EOFError, OSError):
            for _ in range(processes):
                connection = self._listener.accept()
                self._ranks[connection] = connection.recv()
        while self._ranks:
            received = [(connection, _receive(connection)) for connection in wait(list(self._ranks))]
            # A killed rank first: the errors of the others are its consequence.
            for connection, message in sorted(received, key=lambda each: each[1] is not None):
                self._handle(connection, message)

    def _handle(self, connection: Connection, message: tuple[Any, ...] | None) -> None:
        try:
            if message is None:
                raise ProcessLost(f"Process {self._ranks[connection] + 1} of the training was killed.")
            name, *values = message
            if name == DONE:
                del self._ranks[connection]
            elif name == ERROR:
                raise values[0]
            elif name in ANSWERED:
                connection.send(getattr(self.reporter, name)(*values))
            else:
                getattr(self.reporter, name)(*values)
        except BaseException as error:
            self.error = self.error or error
            del self._ranks[connection]
            connection.close()


def _receive(connection: Connection) -> tuple[Any, ...] | None:
    """The next message of a rank, None if it ended."""
    try:
        return connection.recv()
    except (EOFError, OSError):
        return None


class _RemoteReporter(Reporter):
    """The reporter of rank 0."""

    def __init__(self, connection: Connection):
        self._connection = connection

    def progress(self, done: int, total: int | None, unit: str, note: str = "") -> None:
        self._connection.send(("progress", done, total, unit, note))

    def metrics(self, step: int, values: dict[str, float]) -> None:
        self._connection.send(("metrics", step, values))

    def log(self, message: str, level: str = "info") -> None:
        self._connection.send(("log", message, level))

    def sample(self, step: int, record: dict[str, Any]) -> None:
        self._connection.send(("sample", step, record))

    def keep(self) -> bool:
        return self._answer("keep")

    def stop_requested(self) -> bool:
        return self._answer("stop_requested")

    def _answer(self, name: str) -> bool:
        self._connection.send((name,))
        return bool(self._connection.recv())


def _run_rank(folder: str, arguments: tuple[Any, ...], options: dict[str, Any]) -> TrainResult | None:
    """The whole work of one process; None if it ends with an error. The launcher set its rank in the environment."""
    die_with_parent()
    os.setpgid(0, 0)  # as for the fork server; the launcher ends single processes
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    secrets = known_secrets(load())
    sys.stdout, sys.stderr = (RedactingStream(stream, secrets) for stream in (sys.stdout, sys.stderr))
    threads = max(1, torch.get_num_threads() // int(os.environ["WORLD_SIZE"]))
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # else accelerate chooses
    rank = int(os.environ["RANK"])
    with Client(str(Path(folder) / SOCKET)) as connection:
        connection.send(rank)
        reporter = _RemoteReporter(connection) if rank == 0 else SilentReporter()
        try:
            with _process_group(folder, arguments[0]):
                result = train(*arguments, reporter=reporter, **options)
        except Cancelled as error:  # by all processes
            connection.send((ERROR, error))
            return None
        except SpeculoosError as error:
            connection.send((ERROR, error))
            sys.exit(1)  # the launcher ends the others
        except Exception as error:
            connection.send((ERROR, RuntimeError(f"{type(error).__name__}: {error}")))
            raise
        connection.send((DONE,))
    return result


@contextmanager
def _process_group(folder: str, config: TrainConfig) -> Iterator[None]:
    """The processes find each other by a file: a TCP store would listen on all interfaces."""
    if sys.platform == "linux":
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "gloo"
    if pick_device(config.device).type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, f"file://{folder}/group", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()
