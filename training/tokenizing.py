"""Tokenize a dataset's conversations once, with one process per core, and cache the result next to the dataset.

The cache key consists of the shards' checksums and everything that affects tokenization
(`training.token_files.token_cache_key`): all attempts, processes and bases with the same tokenization share the
files, and only new shards are tokenized. Small datasets are tokenized in this process. Files of removed shards are
deleted.
"""

import json
import os
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import platformdirs
import psutil

from models.damage import check_dataset
from models.tokenizer import load_tokenizer, read_eos_ids
from speculoos.checksums import file_sha256, read_checksums
from speculoos.errors import NotFound, Unavailable
from speculoos.limited import ChildError, LimitedChild, LimitExceeded
from speculoos.reporting import Reporter, SilentReporter, check_stop
from training.token_files import ShardChunk, TokenFile, split_shard, token_cache_key, tokenize_chunk

FOLDER = ".tokens"  # subfolder of the dataset; the leading dot excludes it from backups
CHILD_MODULE = "training.token_files"
CHILD_MEMORY, CHUNK_SECONDS = 3 << 30, 3600.0  # limits of a child process, and of one chunk in it
PARALLEL_BYTES = 4 << 20  # bytes of text from which on child processes are started
POLL_SECONDS = 0.5


@dataclass
class TokenizedDataset:
    """The token files of a dataset; `tokens` were made by this call, in `processes`."""

    chunks: list[ShardChunk]
    folder: Path
    tokens: int = 0
    processes: int = 0

    def file(self, chunk: ShardChunk) -> Path:
        return self.folder / chunk.name

    def read(self) -> Iterator[TokenFile]:
        """Open the files in order."""
        return (TokenFile(self.file(chunk)) for chunk in self.chunks)


def tokenize_dataset(
    folder: str | Path,
    tokenizer: Any,
    eos_ids: Iterable[int] = (),
    reporter: Reporter | None = None,
    rows: int | None = None,
) -> TokenizedDataset:
    """The tokens of dataset `folder` (or of the chunks with its first `rows` rows), tokenizing what is not cached.
    Raises NotFound, Damaged, BadInput for a broken line, Unavailable when a tokenizer fails or exceeds its limits,
    Cancelled when the reporter requests a stop (finished chunks stay cached)."""
    folder, eos = Path(folder), sorted(eos_ids)
    shards = sorted(folder.glob("shard-*.jsonl"))
    if not shards:
        raise NotFound(f"{folder} contains no data shards (shard-00000.jsonl); generate or import the dataset again.")
    check_dataset(folder)
    digests, key = read_checksums(folder), token_cache_key(tokenizer, eos)  # data of earlier versions has no digests
    all_chunks = [p for shard in shards for p in split_shard(shard, digests.get(shard.name) or file_sha256(shard))]
    root = folder / FOLDER
    if not os.access(folder, os.W_OK):
        root = platformdirs.user_cache_path("speculoos") / FOLDER / folder.resolve().as_posix().strip("/")
    result = TokenizedDataset(all_chunks if rows is None else _first_chunks(all_chunks, rows), root / key)
    missing = [chunk for chunk in result.chunks if not _is_valid(result.file(chunk))]
    if missing:
        _tokenize_missing(result, missing, tokenizer, eos, reporter or SilentReporter())
        _remove_stale(root, {chunk.digest[:32] for chunk in all_chunks})
    return result


def _first_chunks(all_chunks: Iterable[ShardChunk], rows: int) -> list[ShardChunk]:
    first: list[ShardChunk] = []
    for chunk in all_chunks:
        if rows > 0:
            first.append(chunk)
            rows -= sum(1 for _ in islice(chunk.lines(), rows))
    return first


def _tokenize_missing(
    result: TokenizedDataset, missing: Sequence[ShardChunk], tokenizer: Any, eos: list[int], reporter: Reporter
) -> None:
    started, result.processes = time.monotonic(), _processes(missing)
    model = Path(str(getattr(tokenizer, "name_or_path", "") or ""))
    loaded = load_tokenizer(model) if result.processes > 1 and model.is_dir() else None
    if loaded is not None and token_cache_key(loaded, eos) == result.folder.name:  # else `tokenizer` was changed
        _tokenize_parallel(result, missing, model, eos, reporter)
    else:
        result.processes = 1
        for chunk in missing:
            check_stop(reporter)
            result.tokens += tokenize_chunk(chunk, tokenizer, eos, result.file(chunk))
    by = f"{result.processes} processes" if result.processes > 1 else "this process"
    seconds = time.monotonic() - started
    reporter.log(f"Tokenized {result.tokens:,} tokens in {seconds:.1f} s ({by}); they are cached with the dataset.")


def _tokenize_parallel(
    result: TokenizedDataset, missing: Sequence[ShardChunk], model: Path, eos: list[int], reporter: Reporter
) -> None:
    idle: SimpleQueue[LimitedChild] = SimpleQueue()

    def tokenize(chunk: ShardChunk) -> int:
        child = idle.get()
        arguments = (str(chunk.shard), chunk.digest, chunk.start, chunk.end, str(model), eos, str(result.file(chunk)))
        try:
            return child.call(f"{CHILD_MODULE}:tokenize_in_child", *arguments, seconds=CHUNK_SECONDS)
        except (LimitExceeded, ChildError) as error:
            raise Unavailable(f"{chunk.shard.name} could not be tokenized: {error}") from None
        finally:
            idle.put(child)

    with ExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(result.processes))
        for _ in range(result.processes):
            idle.put(stack.enter_context(LimitedChild(CHILD_MEMORY, (CHILD_MODULE,))))  # killed when the block ends
        stack.callback(threads.shutdown, wait=False, cancel_futures=True)
        pending = {threads.submit(tokenize, chunk) for chunk in missing}
        while pending:
            check_stop(reporter)
            done, pending = wait(pending, POLL_SECONDS, FIRST_COMPLETED)
            result.tokens += sum(future.result() for future in done)
            text = f"Tokenizing: {len(missing) - len(pending)} of {len(missing)} chunks"
            reporter.progress(0, None, "", text)


def _processes(missing: Sequence[ShardChunk]) -> int:
    if sum(chunk.end - chunk.start for chunk in missing) < PARALLEL_BYTES:
        return 1
    by_memory = psutil.virtual_memory().available // (512 << 20)
    return max(1, min(len(os.sched_getaffinity(0)), len(missing), by_memory))


def _is_valid(file: Path) -> bool:
    """Whether a token file exists and is undamaged; a damaged one is deleted."""
    try:
        TokenFile(file)
    except ValueError:
        file.unlink(missing_ok=True)
        return False
    return True


def _remove_stale(root: Path, digests: set[str]) -> None:
    with suppress(OSError):
        for folder in root.iterdir():
            for file in folder.glob("*.safetensors"):
                if file.name.partition("-")[0] not in digests:
                    file.unlink(missing_ok=True)
            if not any(folder.iterdir()):
                shutil.rmtree(folder, ignore_errors=True)


def preview(folder: str | Path, base_path: str | Path, limit: int = 20) -> list[dict[str, Any]]:
    """For the Data page: the first `limit` rows as {"id", "pieces": [{"text", "in_loss"}…], "tokens", "loss_tokens",
    "mask_source", "problem"}. `problem` is the reason why a row is not trained on, or "". Fills the token cache."""
    tokenizer = load_tokenizer(base_path)
    result = tokenize_dataset(folder, tokenizer, read_eos_ids(base_path, tokenizer), rows=limit)
    records = (
        _preview_record(json.loads(line), number, tokens, tokenizer)
        for chunk, tokens in zip(result.chunks, result.read(), strict=True)
        for number, (_, line) in enumerate(chunk.lines())
    )
    return list(islice(records, limit))


def _preview_record(row: dict[str, Any], number: int, file: TokenFile, tokenizer: Any) -> dict[str, Any]:
    record = {"id": str(row.get("id", "")), "pieces": [], "tokens": 0, "loss_tokens": 0, "mask_source": ""}
    if problem := file.dropped.get(number):
        text = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in row.get("messages") or [])
        return {**record, "pieces": [{"text": text, "in_loss": False}], "problem": problem}
    index = next(index for index, info in enumerate(file.rows) if info["number"] == number)
    ids, mask = (values.tolist() for values in file.tokens(index))
    runs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return {
        **record,
        "pieces": [
            {"text": tokenizer.decode([token for token, _ in run], skip_special_tokens=False), "in_loss": in_loss}
            for in_loss, run in runs
        ],
        "tokens": len(mask),
        "loss_tokens": sum(mask),
        "mask_source": file.rows[index]["mask_source"],
        "problem": "" if any(mask) and not all(mask) else "the mask is all ones or all zeros",
    }
