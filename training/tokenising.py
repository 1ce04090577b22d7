"""A data set's conversations as tokens: made once, by as many processes as there are cores, and kept beside the set.

Known by the sums of the shards and by all that turns a row into tokens (`training.piece.key_of`), so every attempt,
process and base that means the same reads the same files, and a shard that is new is the only one that is tokenised. A
small set is tokenised in this process. What is kept of shards that are gone is removed.
"""

import os
import queue
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import platformdirs

from models.damage import check_dataset
from speculoos.errors import NotFound, Unavailable
from speculoos.limited import ChildError, LimitedChild, Overrun
from speculoos.reporting import Reporter, Silent, check_stop
from speculoos.sums import file_sha256, listed
from training.piece import key_of, tokenise_piece
from training.token_files import Piece, Tokens, pieces

FOLDER = ".tokens"
"""In a data set's folder; with a dot, so that no backup has it."""
WORK = "training.tokenising_work"
MEMORY, SECONDS = 3 << 30, 3600.0
"""For a process, and for one piece in it."""
WORTH_PROCESSES = 4 << 20
"""Bytes of text from which starting processes pays."""
LOOK_SECONDS = 0.5


@dataclass
class Tokenised:
    """Where a data set's tokens are, piece by piece; and what this call made of them: `tokens` in `seconds`, of which
    each core worked `core_seconds` in all."""

    pieces: list[Piece]
    folder: Path
    tokens: int = 0
    seconds: float = 0.0
    core_seconds: float = 0.0
    processes: int = 0

    def file(self, piece: Piece) -> Path:
        """Of one piece."""
        return self.folder / piece.name

    def read(self) -> Iterator[Tokens]:
        """One piece after the other."""
        return (Tokens(self.file(piece)) for piece in self.pieces)


def tokenised(
    folder: str | Path,
    tokenizer: Any,
    eos_ids: Iterable[int] = (),
    reporter: Reporter | None = None,
    rows: int | None = None,
) -> Tokenised:
    """The tokens of data set `folder` (or of the pieces with its first `rows` rows), made where they are not kept yet.

    Raises NotFound for a folder without shards, Damaged where its sums do not hold, BadInput for a broken line,
    Unavailable when a tokenizer fails or needs too much, Cancelled when the reporter says stop: what is made is kept.
    """
    folder, eos = Path(folder), sorted(eos_ids)
    shards = sorted(folder.glob("shard-*.jsonl"))
    if not shards:
        raise NotFound(f"{folder} holds no data shards (shard-00000.jsonl); generate or import the data set again.")
    check_dataset(folder)
    digests, key = _digests(folder, shards), key_of(tokenizer, eos)
    found = [piece for shard in shards for piece in pieces(shard, digests[shard.name])]
    made = Tokenised(found if rows is None else _first(found, rows), _place(folder) / key)
    missing = [piece for piece in made.pieces if not _whole(made.file(piece))]
    if missing:
        _make(made, missing, tokenizer, eos, key, reporter or Silent())
        _forget(made.folder.parent, {piece.digest[:32] for piece in found})
    return made


def _first(found: Iterable[Piece], rows: int) -> list[Piece]:
    """As many pieces as hold the first `rows` rows."""
    taken: list[Piece] = []
    for piece in found:
        if rows > 0:
            taken.append(piece)
            rows -= sum(1 for _ in islice(piece.lines(), rows))
    return taken


def _make(
    made: Tokenised, missing: Sequence[Piece], tokenizer: Any, eos: list[int], key: str, reporter: Reporter
) -> None:
    began, processor = time.monotonic(), time.process_time()
    model = Path(str(getattr(tokenizer, "name_or_path", "") or ""))
    made.processes = _processes(missing) if model.is_dir() else 1
    if made.processes > 1:
        missing = _by_processes(made, missing, model, eos, key, reporter)
    for piece in missing:
        check_stop(reporter)
        made.tokens += tokenise_piece(piece, tokenizer, eos, made.file(piece))
    made.core_seconds += time.process_time() - processor
    made.seconds = time.monotonic() - began
    how = f"{made.processes} processes" if made.processes > 1 else "this process"
    reporter.log(f"Tokenised {made.tokens:,} tokens in {made.seconds:.1f} s ({how}); they are kept with the data set.")


def _by_processes(
    made: Tokenised, missing: Sequence[Piece], model: Path, eos: list[int], key: str, reporter: Reporter
) -> list[Piece]:
    """Tokenise pieces in children; those that they could not, because their tokenizer is another than ours here."""
    left: list[Piece] = []
    with ThreadPoolExecutor(made.processes) as threads, _Children(made.processes) as children:
        waiting: dict[Future[Any], Piece] = {}
        for piece in missing:
            asked = (str(piece.shard), piece.digest, piece.start, piece.end, str(model), eos, key)
            waiting[threads.submit(children.tokenise, *asked, str(made.file(piece)))] = piece
        while waiting:
            check_stop(reporter)
            for future in wait(waiting, LOOK_SECONDS, FIRST_COMPLETED).done:
                piece = waiting.pop(future)
                if (counted := _result(future, piece)) is None:
                    left.append(piece)
                else:
                    made.tokens, made.core_seconds = made.tokens + counted[0], made.core_seconds + counted[1]
            done = f"{len(missing) - len(waiting)} of {len(missing)} pieces"
            reporter.progress(0, None, "", f"Turning texts into tokens: {done}")
    return left


class _Children:
    """Processes that wait for work; ended when the block is left, whatever they do then."""

    def __init__(self, count: int):
        self._all = [LimitedChild(MEMORY, (WORK,)) for _ in range(count)]
        self._free: queue.SimpleQueue[LimitedChild] = queue.SimpleQueue()
        self._over = threading.Event()

    def __enter__(self) -> "_Children":
        for child in self._all:
            self._free.put(child)
        return self

    def __exit__(self, *_: Any) -> None:
        self._over.set()
        for child in self._all:
            child.close()

    def tokenise(self, *arguments: Any) -> Any:
        """One call of a child, from any thread."""
        child = self._free.get()
        try:
            return None if self._over.is_set() else child.call(f"{WORK}:tokenise", *arguments, seconds=SECONDS)
        finally:
            self._free.put(child)


def _result(future: "Future[Any]", piece: Piece) -> Any:
    try:
        return future.result()
    except (Overrun, ChildError) as error:
        raise Unavailable(f"{piece.shard.name} could not be tokenised: {error}") from None


def _processes(missing: Sequence[Piece]) -> int:
    """One a core, as far as there is work and memory for them; 1: none but this one."""
    import psutil

    if sum(piece.end - piece.start for piece in missing) < WORTH_PROCESSES:
        return 1
    room = psutil.virtual_memory().available // (512 << 20)
    return max(1, min(len(os.sched_getaffinity(0)), len(missing), room))


def _digests(folder: Path, shards: Sequence[Path]) -> dict[str, str]:
    """{shard: sha256}; sets of earlier versions have no sums."""
    known = listed(folder)
    return {shard.name: known.get(shard.name) or file_sha256(shard) for shard in shards}


def _place(folder: Path) -> Path:
    """Where tokens are kept: with the data set, or, where nobody may write there, in the user's cache."""
    if os.access(folder, os.W_OK):
        return folder / FOLDER
    return Path(platformdirs.user_cache_path("speculoos")) / FOLDER / folder.resolve().as_posix().strip("/")


def _whole(file: Path) -> bool:
    """Whether a file is there and what was written; a damaged one goes."""
    try:
        Tokens(file)
    except ValueError:
        file.unlink(missing_ok=True)
        return False
    return True


def _forget(place: Path, digests: set[str]) -> None:
    """Remove what is kept of shards that are not in the set any more."""
    with suppress(OSError):
        for folder in place.iterdir():
            for file in folder.glob("*.safetensors"):
                if file.name.partition("-")[0] not in digests:
                    file.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)
