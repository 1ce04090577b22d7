"""Training in several processes, started by torch's elastic launcher.

The calling process keeps the reporter, and with it the database. Rank 0 sends its reports over a socket and waits for
the answers of `keep` and `stop_requested`; any rank sends the error that ends it. Processes are not restarted: when one
ends, the launcher ends the others, and the job's next attempt resumes from the last saved state.

Several machines (nodes): the first one calls `train_in_processes` with a Rendezvous and serves a TCPStore at its
endpoint; the others call `join_training`, which gets the arguments from there, signed with a secret of the home that
all nodes share.
"""

import hmac
import multiprocessing
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from models.base import pick_device
from models.damage import UNSAVED, check_base
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput, Cancelled, Conflict, ProcessLost, SpeculoosError, Unavailable
from speculoos.files import read_inference_token
from speculoos.limited import die_with_parent
from speculoos.redaction import RedactingStream, known_secrets
from speculoos.reporting import Reporter, SilentReporter, check_stop
from speculoos.settings import LOOPBACK, load
from training.loop import TrainResult, train

SOCKET, DONE, ERROR = "reports", "done", "error"
ANSWERED = ("keep", "stop_requested")
"""Methods of a reporter that return something."""
STOP_SECONDS = 5
"""Seconds between SIGTERM and SIGKILL for the other processes when one has ended."""
CONNECT_SECONDS = 5
"""Seconds until a node that connects to the first one gives up."""
JOIN_SECONDS = 600
"""Seconds that a node which has joined waits for the others."""
POLL_SECONDS = 0.5
SIGNATURE_BYTES = 32
LOST_NODE = "The connection to another node of the training was lost."
TRAINING, JOINED, ALIVE = "training", "joined", "alive"
"""Keys of the rendezvous' store."""


@dataclass(frozen=True)
class Rendezvous:
    """Where `nodes` machines meet: `endpoint` is `host:port` on the first. `job` is given to all (`join_training`)."""

    nodes: int
    endpoint: str
    job: Any = None


@dataclass(frozen=True)
class Launch:
    """What every node runs."""

    processes: int
    arguments: tuple[Any, ...]
    options: dict[str, Any]
    rendezvous: Rendezvous | None = None


def train_in_processes(
    processes: int,
    gpus: Sequence[str],
    reporter: Reporter,
    config: TrainConfig,
    *arguments: Any,
    rendezvous: Rendezvous | None = None,
    **options: Any,
) -> TrainResult:
    """`training.loop.train(config, *arguments, reporter=reporter, **options)` in `processes` processes on each node,
    each on one of `gpus` (UUIDs), or sharing the cores if there are none. All arguments but the reporter are pickled.
    Raises the first error of a rank, or ProcessLost if a rank was killed."""
    known, checksum_cache = options.pop("known", None), options.pop("checksum_cache", UNSAVED)
    if known is not None:  # once for all
        check_base(arguments[0], known, checksum_cache)
    launch = Launch(processes, (config, *arguments), options, rendezvous)
    if rendezvous is None:
        return _run_node(launch, gpus, reporter)[0]
    store = _open_store(rendezvous.endpoint, is_first_node=True)
    payload = pickle.dumps(launch)
    store.set(TRAINING, _signature(payload) + payload)
    while missing := rendezvous.nodes - 1 - store.add(JOINED, 0):
        reporter.progress(
            0, None, "steps", f"Waits for {missing} more node{'s' * (missing > 1)} at {rendezvous.endpoint}."
        )
        check_stop(reporter)
        time.sleep(POLL_SECONDS)
    return _run_node(launch, gpus, reporter)[0]


def join_training(endpoint: str, take_gpus: Callable[[int, Any], Sequence[str]]) -> None:
    """Run the processes of one more node of the training at `endpoint`. `take_gpus(processes, job)` returns UUIDs, or
    nothing for the CPU. Raises Unavailable if no training waits there, BadInput if it is of another home, Conflict if
    it has all nodes, and the errors of `train_in_processes`."""
    store = _open_store(endpoint, is_first_node=False)
    message = store.get(TRAINING)
    signature, payload = message[:SIGNATURE_BYTES], message[SIGNATURE_BYTES:]
    if not hmac.compare_digest(signature, _signature(payload)):  # a pickle of a stranger could run code
        raise BadInput(f"The training at {endpoint} is of another home; all machines need the same home folder.")
    launch: Launch = pickle.loads(payload)
    gpus = take_gpus(launch.processes, launch.rendezvous.job)
    node = store.add(JOINED, 1)
    if node >= launch.rendezvous.nodes:
        raise Conflict(f"The training at {endpoint} has all of its {launch.rendezvous.nodes} nodes already.")
    _run_node(launch, gpus, SilentReporter(), node)


def _signature(payload: bytes) -> bytes:
    return hmac.digest(read_inference_token(load()).encode(), payload, "sha256")


def _open_store(endpoint: str, is_first_node: bool) -> dist.TCPStore:
    """The store of the rendezvous, which listens on all interfaces of the first node. Raises Unavailable."""
    host, _, port = endpoint.rpartition(":")
    timeout = timedelta(seconds=JOIN_SECONDS if is_first_node else CONNECT_SECONDS)
    try:
        return dist.TCPStore(host, int(port), None, is_first_node, timeout, wait_for_workers=False, multi_tenant=True)
    except RuntimeError as error:
        what = "The rendezvous cannot listen" if is_first_node else "No training waits"
        raise Unavailable(f"{what} at {endpoint} ({str(error).splitlines()[0]}).") from None


def _run_node(launch: Launch, gpus: Sequence[str], reporter: Reporter, node: int = 0) -> dict[int, Any]:
    """Run the ranks of one node; returns what they return. Raises as `train_in_processes`."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config, *arguments = launch.arguments
    if gpus:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)  # of the new processes; this one has its devices already
        config = config.model_copy(update={"device": "cuda"})
    _start_fork_server()
    results, failure = {}, ""
    with tempfile.TemporaryDirectory(prefix="speculoos-") as folder:
        if rendezvous := launch.rendezvous:
            os.environ.pop("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", None)  # the ranks use the rendezvous' store too
            meeting = {"rdzv_backend": "static", "rdzv_endpoint": rendezvous.endpoint}
            meeting["rdzv_configs"] = {"rank": node, "timeout": JOIN_SECONDS}
        else:
            os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # it would listen on all interfaces
            meeting = {"rdzv_backend": "c10d", "rdzv_endpoint": f"{folder}/rendezvous"}
            meeting["rdzv_configs"] = {"store_type": "file"}
        configuration = LaunchConfig(
            min_nodes=rendezvous.nodes if rendezvous else 1,
            max_nodes=rendezvous.nodes if rendezvous else 1,
            nproc_per_node=launch.processes,
            run_id="training",
            **meeting,
            max_restarts=0,
            start_method="forkserver",  # the imports are done once for all processes
            signals_to_handle="SIGHUP",  # the caller handles the others
            shutdown_timeout=STOP_SECONDS,
        )
        with _ReportServer(Path(folder), launch.processes, reporter) as server:
            try:
                run = elastic_launch(configuration, _run_rank)
                results = run(folder, (config, *arguments), launch.options, rendezvous and rendezvous.endpoint)
            except ChildFailedError as error:
                rank, cause = error.get_first_failure()
                failure = f"Process {rank + 1} of the training ended with exit status {cause.exitcode}."
    if server.error or failure:
        raise server.error or ProcessLost(failure)
    return results


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


def _run_rank(
    folder: str, arguments: tuple[Any, ...], options: dict[str, Any], endpoint: str | None
) -> TrainResult | None:
    """The whole work of one process; None if it ends with an error. The launcher set its rank in the environment.
    `endpoint`: where the nodes met, None if this is the only one."""
    die_with_parent()
    os.setpgid(0, 0)  # as for the fork server; the launcher ends single processes
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    secrets = known_secrets(load())
    sys.stdout, sys.stderr = (RedactingStream(stream, secrets) for stream in (sys.stdout, sys.stderr))
    threads = max(1, torch.get_num_threads() // int(os.environ["LOCAL_WORLD_SIZE"]))
    torch.set_num_threads(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)  # else accelerate chooses
    rank = int(os.environ["RANK"])
    with Client(str(Path(folder) / SOCKET)) as connection:
        connection.send(rank)
        reporter = _RemoteReporter(connection) if rank == 0 else SilentReporter()
        try:
            with _watching_others(connection, endpoint), _process_group(folder, arguments[0], endpoint):
                result = train(*arguments, reporter=reporter, **options)
        except Cancelled as error:  # by all processes
            connection.send((ERROR, error))
            return None
        except SpeculoosError as error:
            connection.send((ERROR, error))
            sys.exit(1)  # the launcher ends the others
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            lost = endpoint and (isinstance(error, dist.DistError) or "gloo" in message)
            connection.send((ERROR, ProcessLost(LOST_NODE) if lost else RuntimeError(message)))
            raise
        connection.send((DONE,))
    return result


@contextmanager
def _process_group(folder: str, config: TrainConfig, endpoint: str | None) -> Iterator[None]:
    """The processes of one node find each other by a file: a TCP store would listen on all interfaces."""
    if sys.platform == "linux" and (endpoint is None or endpoint.rpartition(":")[0] in LOOPBACK):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    backend = "gloo"
    if pick_device(config.device).type == "cuda":
        backend = "nccl"
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, None if endpoint else f"file://{folder}/group", rank=rank, world_size=size)
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def _watching_others(connection: Connection, endpoint: str | None) -> Iterator[None]:
    """On a node that joined: within the context, end this process when the one that started it or the first node's
    store is gone. A collective operation may wait for minutes, while the job's next attempt begins."""
    ended = threading.Event()

    def watch(endpoint: str) -> None:
        with suppress(RuntimeError, OSError):
            store = _open_store(endpoint, is_first_node=False)
            while not connection.poll(1):
                store.add(ALIVE, 0)
        if not ended.is_set():
            os._exit(1)

    if endpoint and int(os.environ["GROUP_RANK"]):
        threading.Thread(target=watch, args=(endpoint,), daemon=True).start()
    try:
        yield
    finally:
        ended.set()
