"""A generation in shards: which prompts each has, how its answers land, and how the data set is put together of them.

A shard is known by what is in it: its key is a hash of its prompts and of all that an answer depends on. So one that is
made twice changes nothing, and one that is there already is not made again, whoever made it and when.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from corpus.conversations import DUPLICATE, EXACT, FAILED, TEXT, GenerateOptions, to_answer
from corpus.duplicates import remove_duplicates
from corpus.places import ShardFolder
from corpus.shards import read_lines, read_summary, shard_files, write_sums
from speculoos.errors import Conflict, Damaged
from speculoos.files import new_path
from speculoos.sums import file_sha256

REPORTED = 200
"""Prompts without an answer that are named in a report; all of them are counted."""
INDIFFERENT = ("batch_size", "limit", "max_minutes", "first", "samples", "first_sample", "unique")
"""Options that change no answer."""
LATER = ("temperatures", "replace_system", "api", "drop_cut")
"""Options that came later: where nobody sets them, shards are known by the keys that they had before."""
PLAIN = GenerateOptions()


@dataclass(frozen=True)
class ShardPart:
    """Answers number `sample` to prompts `first` to `first + rows - 1`."""

    number: int
    first: int
    rows: int
    sample: int
    key: str

    @property
    def file(self) -> str:
        """Its name in the data set's folder."""
        return f"shard-{self.number:05d}-{self.key}.jsonl"

    def options(self, options: GenerateOptions) -> GenerateOptions:
        """Those of the whole generation, narrowed to this part."""
        mine = {"first": self.first, "limit": self.rows, "first_sample": self.sample, "samples": 1}
        return replace(options, max_minutes=None, **mine)


def plan(source: str | Path, options: GenerateOptions, rows: int, **author: str) -> list[ShardPart]:
    """The parts of a generation, `rows` prompts each, sample after sample. `author` says who answers (sums of the base,
    names of endpoint and model). Reads the prompts once, without parsing them."""
    recipe = {name: value for name, value in asdict(options).items() if name not in INDIFFERENT}
    recipe = {name: value for name, value in recipe.items() if name not in LATER or value != getattr(PLAIN, name)}
    made: list[ShardPart] = []
    ranges = list(_ranges(source, options.limit, rows))
    for sample in range(options.samples):
        for first, count, digest in ranges:
            key = _key({**recipe, **author, "sample": sample, "prompts": digest})
            made.append(ShardPart(len(made), first, count, sample, key))
    return made


def begun_by_one(folder: Path) -> bool:
    """Whether one job wrote rows into a data set's folder: its shards have numbers and no keys."""
    return any(path.stem.count("-") == 1 for path in shard_files(folder))


def land(
    work: Path, source: str | Path, options: GenerateOptions, made: Mapping[str, Any], key: str, place: ShardFolder
) -> dict[str, Any]:
    """Bring the rows in folder `work` (and only those that are wanted) to `place` as one file, in the order of their
    prompts; returns the shard's report:

    `key`, `prompts`, `rows`, `tokens`, `finish`, `labels`, `failed` ([{id, reason}]), `left_out` (those by kind),
    `seconds`, `retries`, `sha256`. `made` is what `generate_local` or `generate_remote` reported last. Raises Conflict
    where a prompt has neither an answer nor a reason.
    """
    lines = {json.loads(line)["id"]: line for _, _, line in _lines(work)}
    wanted = [row.id for row in to_answer(source, options, set())]
    failed = [each for each in made["failed"] if each["id"] not in lines]
    if missing := set(wanted) - set(lines) - {each["id"] for each in failed}:
        raise Conflict(f"{len(missing)} prompts of this shard have no answer, the first is {min(missing)}; retry.")
    answered = [lines[row_id] for row_id in wanted if row_id in lines]
    file = work / "landing"
    with new_path(file) as temporary, open(temporary, "wb") as out:
        out.writelines(answered)
    more = {"seconds": made["seconds"], "retries": made.get("retries", 0), "sha256": file_sha256(file)}
    more |= {"left_out": made.get("left_out", {})}
    report = {"key": key, "prompts": len(wanted), **_counted(answered), "failed": failed, **more}
    place.put(key, file, report)
    return report


def landed(parts: Sequence[ShardPart], place: ShardFolder, folder: Path) -> dict[str, dict[str, Any]]:
    """{key: report} of the parts that are finished: in `place`, or in the data set's folder since an earlier time."""
    earlier = {each["key"]: each for each in read_summary(folder).get("shards", [])}
    kept = {key: each for key, each in earlier.items() if (folder / each["file"]).exists()}
    found = {part.key: place.report(part.key) or kept.get(part.key) for part in parts}
    return {key: report for key, report in found.items() if report}


def assemble(
    parts: Sequence[ShardPart], reports: Mapping[str, Mapping[str, Any]], place: ShardFolder, folder: Path
) -> list[ShardPart]:
    """Bring finished parts into the data set's folder with their SHA256SUMS; what else lay there goes. Returns those
    whose file is not what its report says: they are forgotten, and to be made again."""
    folder.mkdir(parents=True, exist_ok=True)
    wrong = [part for part in parts if part.key in reports and not _brought(part, reports[part.key], place, folder)]
    kept = {part.file: reports[part.key]["sha256"] for part in parts if part.key in reports and part not in wrong}
    if not wrong:
        _keep_only(folder, kept)
    return wrong


def without_duplicates(
    parts: Sequence[ShardPart], reports: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, Mapping[str, Any]]:
    """Take conversations that are there twice out of the assembled parts; the reports as they are now."""
    taken = remove_duplicates(folder)
    now = dict(reports)
    for part in (part for part in parts if part.file in taken):
        file, before = folder / part.file, reports[part.key]
        left_out = Counter(before.get("left_out") or {FAILED: len(before["failed"])})
        left_out[DUPLICATE] += taken[part.file]
        counted = _counted([line for line in file.read_bytes().splitlines() if line.strip()])
        now[part.key] = {**before, **counted, "left_out": dict(left_out), "sha256": file_sha256(file)}
    return now


def add_unfinished(parts: Sequence[ShardPart], works: Mapping[str, Path], folder: Path) -> int:
    """Put what there is of unfinished parts beside the finished ones, for who stops a generation; returns the rows."""
    sums, count = {}, 0
    for part in (part for part in parts if part.key in works):
        lines: list[bytes] = []
        with suppress(Damaged):  # it is made again when the generation goes on
            lines = [line for _, _, line in _lines(works[part.key])]
        if lines:
            with new_path(folder / part.file) as temporary, open(temporary, "wb") as out:
                out.writelines(lines)
            sums[part.file], count = file_sha256(folder / part.file), count + len(lines)
    write_sums(folder, sums, more=True)
    return count


def totals(parts: Sequence[ShardPart], reports: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The report of the whole: sums over its parts, and `shards` with one entry each."""
    found = [reports[part.key] for part in parts if part.key in reports]
    failed = [each for report in found for each in report["failed"]]
    finish, left_out, labels = Counter[str](), Counter[str](), Counter[str]()
    for report in found:
        finish.update(report["finish"])
        left_out.update(report.get("left_out") or {FAILED: len(report["failed"])})
        labels.update(report.get("labels", {}))
    seconds, tokens = sum(each["seconds"] for each in found), sum(each["tokens"] for each in found)
    return {
        "rows": sum(each["rows"] for each in found),
        "prompts": sum(part.rows for part in parts),
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / max(seconds, 1e-9), 1),
        "finish": dict(finish),
        "failed": failed[:REPORTED],
        "failed_rows": len(failed),
        "left_out": dict(+left_out),
        "labels": dict(+labels),
        "retries": sum(each["retries"] for each in found),
        "complete": len(found) == len(parts),
        "shards": [{**_brief(reports[part.key]), "file": part.file} for part in parts if part.key in reports],
    }


def _brief(report: Mapping[str, Any]) -> dict[str, Any]:
    return {**report, "failed": list(report["failed"])[:REPORTED]}


def _ranges(source: str | Path, limit: int | None, rows: int) -> Iterator[tuple[int, int, str]]:
    """(first, count, sha256 of the lines) of each run of prompts."""
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


def _key(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(contents, sort_keys=True).encode()).hexdigest()[:24]


def _lines(work: Path) -> Iterator[tuple[Path, int, bytes]]:
    return read_lines(work) if shard_files(work) else iter(())


def _counted(lines: Sequence[bytes]) -> dict[str, Any]:
    """`rows`, `tokens`, `finish` and `labels` (rows by how their labels are known) of rows, from the rows themselves:
    they count what every attempt made."""
    tokens, finish, labels = 0, Counter[str](), Counter[str]()
    for line in lines:
        row = json.loads(line)
        finish.update(row["finish"])
        labels[row.get("labels") or (EXACT if row.get("token_ids") else TEXT)] += 1
        tokens += row.get("answer_tokens") or sum(end - start for start, end in row.get("loss_spans", ()))
    return {"rows": len(lines), "tokens": tokens, "finish": dict(finish), "labels": dict(labels)}


def _brought(part: ShardPart, report: Mapping[str, Any], place: ShardFolder, folder: Path) -> bool:
    """Whether the part's file lies in the folder now, whole."""
    target = folder / part.file
    if place.report(part.key):
        place.fetch(part.key, target)
    elif not target.exists():
        (folder / str(report["file"])).replace(target)  # another number since the generation was extended
    if file_sha256(target) == report["sha256"]:
        return True
    target.unlink()
    place.drop(part.key)
    return False


def _keep_only(folder: Path, sums: Mapping[str, str]) -> None:
    for path in shard_files(folder):
        if path.name not in sums:
            path.unlink()
    write_sums(folder, sums)
