"""Sharded generation: split prompts into shards, store their answers, and assemble the dataset from them.

A shard's key is a hash of its prompts and of everything its answers depend on. So generating a shard twice is
idempotent, and existing shards are reused.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corpus.conversations import EXACT, KIND_FAILED, TEXT, GenerateOptions, to_answer
from corpus.shards import read_lines, read_summary, shard_files, write_checksums
from speculoos.checksums import file_sha256
from speculoos.errors import Conflict, Damaged
from speculoos.files import new_path
from speculoos.store import Store

MAX_LISTED = 200
"""Maximum failed prompts listed in a report; all are counted."""
IGNORED = ("batch_size", "limit", "max_minutes", "first", "samples", "first_sample")
"""Options that do not affect answers."""
NEWER = ("temperatures", "replace_system", "api", "drop_cut")
"""Options of later versions: with default values they are not part of the key, so that old keys stay valid."""
DEFAULTS = GenerateOptions()


class ShardFolder:
    """Finished shards below a prefix of a store: a local folder, or the store that several machines share. Keys
    identify content, so putting a shard twice is idempotent."""

    def __init__(self, store: Store, prefix: str):
        self.store, self.prefix = store, prefix

    def report(self, key: str) -> dict[str, Any] | None:
        """The report stored with a shard; it is written last, so None means that the shard is incomplete."""
        try:
            report = json.loads(self.store.read(self._report_path(key)) or b"null")
        except ValueError:  # a damaged report: the shard is generated again
            return None
        return report if isinstance(report, dict) else None

    def put(self, key: str, file: Path, report: dict[str, Any]) -> None:
        """Move a local file into the storage, with its report."""
        self.store.put_file(self._file(key), file)
        self.store.write(self._report_path(key), json.dumps(report).encode())
        file.unlink()

    def fetch(self, key: str, target: Path) -> None:
        """Copy the shard to a local file, atomically. Raises FileNotFoundError when it does not exist."""
        self.store.get_file(self._file(key), target)

    def drop(self, key: str) -> None:
        """Remove a damaged shard."""
        for name in (self._report_path(key), self._file(key)):
            self.store.delete(name)

    def clear(self) -> None:
        """Remove all shards, after they were copied to the dataset."""
        self.store.delete(self.prefix)

    def _file(self, key: str) -> str:
        return f"{self.prefix}/{key}.jsonl"

    def _report_path(self, key: str) -> str:
        return f"{self.prefix}/{key}.json"


@dataclass(frozen=True)
class ShardPart:
    """Sample number `sample` of prompts `first` to `first + rows - 1`."""

    number: int
    first: int
    rows: int
    sample: int
    key: str

    @property
    def file(self) -> str:
        """File name in the dataset's folder."""
        return f"shard-{self.number:05d}-{self.key}.jsonl"

    def options(self, options: GenerateOptions) -> GenerateOptions:
        """The options of the whole generation, restricted to this part."""
        changes = {"first": self.first, "limit": self.rows, "first_sample": self.sample, "samples": 1}
        return replace(options, max_minutes=None, **changes)


def plan_shards(source: str | Path, options: GenerateOptions, rows: int, **model_info: str) -> list[ShardPart]:
    """The parts of a generation, `rows` prompts each, sample after sample. `model_info` identifies the model (checksums
    of the base, names of endpoint and model). Reads the prompts once, without parsing them."""
    fields = {name: value for name, value in asdict(options).items() if name not in IGNORED}
    fields = {name: value for name, value in fields.items() if name not in NEWER or value != getattr(DEFAULTS, name)}
    parts: list[ShardPart] = []
    ranges = list(_ranges(source, options.limit, rows))
    for sample in range(options.samples):
        for first, count, digest in ranges:
            contents = json.dumps({**fields, **model_info, "sample": sample, "prompts": digest}, sort_keys=True)
            key = hashlib.sha256(contents.encode()).hexdigest()[:24]
            parts.append(ShardPart(len(parts), first, count, sample, key))
    return parts


def store_shard(
    work: Path, source: str | Path, options: GenerateOptions, result: Mapping[str, Any], key: str, storage: ShardFolder
) -> dict[str, Any]:
    """Store the shard's rows in folder `work` in `storage` as one file, in the order of their prompts. Returns the
    shard's report:

    `key`, `prompts`, `rows`, `tokens`, `finish`, `labels`, `failed` ([{id, reason}]), `left_out` (failed rows by kind),
    `seconds`, `retries`, `sha256`. `result` is the last report of `generate_local` or `generate_remote`. Raises
    Conflict when a prompt has neither an answer nor an error.
    """
    lines = {json.loads(line)["id"]: line for _, _, line in _lines(work)}
    row_ids = [row.id for row in to_answer(source, options, set())]
    failed = [entry for entry in result["failed"] if entry["id"] not in lines]
    if missing := set(row_ids) - set(lines) - {entry["id"] for entry in failed}:
        raise Conflict(f"{len(missing)} prompts of this shard have no answer, the first is {min(missing)}; retry.")
    answered = [lines[row_id] for row_id in row_ids if row_id in lines]
    file = work / "landing"
    with new_path(file) as temporary, open(temporary, "wb") as out:
        out.writelines(answered)
    report = {"key": key, "prompts": len(row_ids), **_count_rows(answered), "failed": failed}
    report |= {"seconds": result["seconds"], "retries": result.get("retries", 0), "sha256": file_sha256(file)}
    report |= {"left_out": result.get("left_out", {})}
    storage.put(key, file, report)
    return report


def finished_reports(parts: Sequence[ShardPart], storage: ShardFolder, folder: Path) -> dict[str, dict[str, Any]]:
    """{key: report} of the finished parts, in `storage` or, from an earlier assembly, in the dataset's folder."""
    earlier = {entry["key"]: entry for entry in read_summary(folder).get("shards", [])}
    stored = {key: entry for key, entry in earlier.items() if (folder / entry["file"]).exists()}
    reports = {part.key: storage.report(part.key) or stored.get(part.key) for part in parts}
    return {key: report for key, report in reports.items() if report}


def assemble(
    parts: Sequence[ShardPart], reports: Mapping[str, Mapping[str, Any]], storage: ShardFolder, folder: Path
) -> list[ShardPart]:
    """Copy finished parts to the dataset's folder, with SHA256SUMS, and delete its other shards. Returns the parts
    whose file does not match the report's checksum: they were removed and must be generated again."""
    folder.mkdir(parents=True, exist_ok=True)
    damaged = [part for part in parts if part.key in reports and not _fetch(part, reports[part.key], storage, folder)]
    checksums = {p.file: reports[p.key]["sha256"] for p in parts if p.key in reports and p not in damaged}
    if not damaged:
        for path in shard_files(folder):
            if path.name not in checksums:
                path.unlink()
        write_checksums(folder, checksums)
    return damaged


def add_unfinished(parts: Sequence[ShardPart], works: Mapping[str, Path], folder: Path) -> int:
    """Add the finished rows of unfinished parts to the dataset when a generation is stopped; returns their number."""
    checksums, count = {}, 0
    for part in (part for part in parts if part.key in works):
        lines: list[bytes] = []
        with suppress(Damaged):  # it is generated again when the generation continues
            lines = [line for _, _, line in _lines(works[part.key])]
        if lines:
            with new_path(folder / part.file) as temporary, open(temporary, "wb") as out:
                out.writelines(lines)
            checksums[part.file], count = file_sha256(folder / part.file), count + len(lines)
    write_checksums(folder, checksums, keep_existing=True)
    return count


def total_report(parts: Sequence[ShardPart], reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The report of the whole generation: sums over its parts, and `shards` with one entry per part."""
    finished = [reports[part.key] for part in parts if part.key in reports]
    failed = [entry for report in finished for entry in report["failed"]]
    finish, left_out, labels = Counter[str](), Counter[str](), Counter[str]()
    for report in finished:
        finish.update(report["finish"])
        left_out.update(report.get("left_out") or {KIND_FAILED: len(report["failed"])})
        labels.update(report.get("labels", {}))
    seconds, tokens = sum(entry["seconds"] for entry in finished), sum(entry["tokens"] for entry in finished)
    return {
        "rows": sum(entry["rows"] for entry in finished),
        "prompts": sum(part.rows for part in parts),
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "finish": dict(finish),
        "failed": failed[:MAX_LISTED],
        "failed_rows": len(failed),
        "left_out": dict(+left_out),
        "labels": dict(+labels),
        "retries": sum(entry["retries"] for entry in finished),
        "complete": len(finished) == len(parts),
        "shards": [
            {**report, "failed": list(report["failed"])[:MAX_LISTED], "file": part.file}
            for part in parts
            if (report := reports.get(part.key))
        ],
    }


def _ranges(source: str | Path, limit: int | None, rows: int) -> Iterator[tuple[int, int, str]]:
    first, count, digest = 0, 0, hashlib.sha256()
    for number, (_, _, line) in enumerate(read_lines(source)):
        if limit is not None and number >= limit:
            break
        if count == rows:
            yield first, count, digest.hexdigest()
            first, count, digest = number, 0, hashlib.sha256()
        digest.update(line.strip() + b"\n")
        count += 1
    if count:
        yield first, count, digest.hexdigest()


def _lines(work: Path) -> Iterator[tuple[Path, int, bytes]]:
    return read_lines(work) if shard_files(work) else iter(())


def _count_rows(lines: Sequence[bytes]) -> dict[str, Any]:
    """`rows`, `tokens`, `finish` and `labels` (rows by label source), counted from the rows, which include those of
    earlier attempts."""
    tokens, finish, labels = 0, Counter[str](), Counter[str]()
    for line in lines:
        row = json.loads(line)
        finish.update(row["finish"])
        labels[row.get("labels") or (EXACT if row.get("token_ids") else TEXT)] += 1
        tokens += row.get("answer_tokens") or sum(end - start for start, end in row.get("loss_spans", ()))
    return {"rows": len(lines), "tokens": tokens, "finish": dict(finish), "labels": dict(labels)}


def _fetch(part: ShardPart, report: Mapping[str, Any], storage: ShardFolder, folder: Path) -> bool:
    """Copy the part's file to the folder; False, after removing it, if its checksum does not match."""
    target = folder / part.file
    if storage.report(part.key):
        storage.fetch(part.key, target)
    elif not target.exists():
        (folder / str(report["file"])).replace(target)  # its number changed when the generation was extended
    if file_sha256(target) == report["sha256"]:
        return True
    target.unlink()
    storage.drop(part.key)
    return False
