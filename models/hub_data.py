"""Data sets on the Hugging Face hub: which files of one would be fetched, and fetching them one after the other.

Rows in parquet, JSONL or JSON files only; nothing else of a repository is taken, and nothing of it is run.
"""

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from models.hub import Files, RepositoryListing, check_space, guarded, in_thread, parse_id
from models.hub_ask import Question, answer
from speculoos.errors import BadInput, NotFound, Unavailable, Unsupported
from speculoos.reporting import Reporter

PREFIX = "hub:"
ADDRESS = re.compile(r"https://[\w.-]+/datasets/([\w.-]+/[\w.-]+)/?")
PART = re.compile(r"[\w./ -]{1,200}")
KINDS = ((".parquet",), (".jsonl", ".ndjson"), (".json",))
"""Endings of files with rows: the first kind that a repository has is taken."""
NO_ROWS = re.compile(r"(dataset_infos?|dataset_dict|state|config|metadata|package|tokenizer\w*)\.json")
SHARD = re.compile(r"(^|[-_.])\d+(-of-\d+)?(-[0-9a-f]{6,})?$")
"""What shards of one part add to its name: `train-00000-of-00003-1a2b3c4d`, `0000`."""
MOST_FILES = 1000
SHOWN = 12
TIMEOUT, LONGEST_LIST = 15.0, 64 << 20
"""Seconds the hub has to say what is there, all in all, and bytes."""
STRANGE = "{}: the hub's answer is no list of files; try again later."
NOUN = "data set"
CUT, LARGEST_LOOK = 2 << 20, 16 << 20
"""Bytes of a file that are fetched for its first rows: of lines, and of parquet."""


@dataclass(frozen=True)
class Location:
    """`hub:OWNER/NAME[@REVISION][:PART]`; a part is a split (`train`), where there are several sets of them with their
    name before it (`all/train`)."""

    repo: str
    revision: str | None = None
    part: str = ""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Also out of the page's address, and without the prefix. Raises BadInput."""
        named, _, part = ADDRESS.sub(r"\1", text.strip()).removeprefix(PREFIX).partition(":")
        if part and not PART.fullmatch(part):
            raise BadInput(f"{part[:80]!r} is not a part of a data set; expected hub:owner/name:train or the like.")
        return cls(*parse_id(named), part)

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repo}{at}" + (f":{self.part}" if self.part else "")

    @property
    def title(self) -> str:
        """For people: owner/name:part."""
        return str(self).removeprefix(PREFIX)


def look_up(location: Location, token: str = "") -> RepositoryListing:
    """The files with rows that would be fetched: of the part that is named, else of the one that there is or that is
    called train. Raises NotFound, Unavailable (gated, offline), Unsupported (no such files), BadInput (which part?).
    """
    return _listing(location, token, partial(choose, location))


def look_up_file(repo: str, name: str, token: str = "") -> RepositoryListing:
    """One file of a data set. Raises NotFound (data set or file) or Unavailable."""

    def only(every: Files) -> Files:
        if name not in every:
            raise NotFound(f"{repo}: has no file {name} any more.")
        return {name: every[name]}

    return _listing(Location(repo), token, only)


def _listing(location: Location, token: str, chosen: Callable[[Files], Files]) -> RepositoryListing:
    repo, at = location.repo, f"/revision/{quote(location.revision, safe='')}" if location.revision else ""
    where = {"asked": {"blobs": "true"}, "noun": NOUN, "seconds": TIMEOUT}
    content = answer(Question(repo, f"api/datasets/{repo}{at}", LONGEST_LIST, token, **where))
    try:
        told = json.loads(content)
        every = {str(each["rfilename"]): _size_and_sum(each) for each in told["siblings"]}
        revision = str(told.get("sha") or location.revision or "main")
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        raise Unavailable(STRANGE.format(repo)) from None
    return RepositoryListing(repo, revision, chosen(every))


def _size_and_sum(file: dict[str, Any]) -> tuple[int, str]:
    return int(file.get("size") or 0), str((file.get("lfs") or {}).get("sha256") or "")


def beginning(listing: RepositoryListing, token: str = "") -> tuple[str, bytes]:
    """Name and beginning of the first file: parquet whole, since it is read from its end. Raises Unsupported for one
    that is too large for a look, Unavailable where the hub does not give it in time."""
    name, (size, _) = next(iter(listing.files.items()))
    whole = name.lower().endswith(KINDS[0])
    if whole and size > LARGEST_LOOK:
        raise Unsupported(
            f"{listing.repo}: {name} has {size / 1e6:,.0f} MB and is read from its end, too much for a look; "
            "import some rows of it with “Rows at most”."
        )
    path = f"datasets/{listing.repo}/resolve/{quote(listing.revision, safe='')}/{quote(name)}"
    most = LARGEST_LOOK if whole else CUT
    return name, answer(Question(listing.repo, path, most, token, cut=not whole, noun=NOUN))


def choose(location: Location, files: Files) -> Files:
    """Of all files of a repository, those of one part, in order. Raises Unsupported or BadInput, saying what there
    is."""
    kinds = [parts for kind in KINDS if (parts := parts_of(files, kind))]
    if not kinds:
        raise Unsupported(
            f"{location.repo}: has no parquet, JSONL or JSON files, and code that would make them is never run.",
            f"The hub may have converted it: try {PREFIX}{location.repo}@refs/convert/parquet",
        )
    chosen = _named(location, kinds) if location.part else _only(location, kinds[0])
    if len(chosen) > MOST_FILES:
        raise Unsupported(f"{location.title}: has {len(chosen):,} files; at most {MOST_FILES:,} are fetched.")
    return chosen


def parts_of(files: Files, endings: tuple[str, ...]) -> dict[str, Files]:
    """{part: its files} of the files with these endings: shards of one part have one name."""
    parts: dict[str, Files] = {}
    for name in sorted(files):
        if name.lower().endswith(endings) and not NO_ROWS.fullmatch(name.rpartition("/")[2]):
            parts.setdefault(_part(name), {})[name] = files[name]
    return parts


def _part(name: str) -> str:
    *folders, last = name.rpartition(".")[0].removeprefix("data/").split("/")
    return "/".join([*folders, SHARD.sub("", last)]).strip("/") or last


def _named(location: Location, kinds: list[dict[str, Files]]) -> Files:
    for parts in kinds:
        if location.part in parts:
            return parts[location.part]
        found = [part for part in parts if part.rpartition("/")[2] == location.part]
        if len(found) > 1:
            raise BadInput(f"{location.repo}: {location.part!r} may be {_listed(found)}; name one of these.")
        if found:
            return parts[found[0]]
    raise BadInput(f"{location.repo}: has no part {location.part!r}; there are {_listed([*kinds[0]])}.")


def _only(location: Location, parts: dict[str, Files]) -> Files:
    trains = [part for part in parts if part.rpartition("/")[2] == "train"]
    found = [*parts] if len(parts) == 1 else trains
    if len(found) != 1:
        example = f"{PREFIX}{location.repo}:{next(iter(parts))}"
        raise BadInput(f"{location.repo}: has several parts, {_listed([*parts])}; say which, such as {example}")
    return parts[found[0]]


def _listed(parts: list[str]) -> str:
    more = f" and {len(parts) - SHOWN} more" if len(parts) > SHOWN else ""
    return ", ".join(parts[:SHOWN]) + more


def fetch(listing: RepositoryListing, folder: Path, reporter: Reporter, token: str = "") -> Iterator[Path]:
    """The listing's files in `folder`, each fetched when it is asked for; those an earlier call left there are kept.

    Raises NotFound, Unavailable (gated, offline, disk full, damaged on the way), Cancelled.
    """
    check_space(listing, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (size, _)) in enumerate(listing.files.items(), 1):
        reporter.log(f"Fetching {name} ({size / 1e6:,.1f} MB), file {number} of {len(listing.files)} …")
        in_thread(partial(_get, listing, name, folder, token), listing, folder, reporter)
        listing.check_arrived(name, folder)
        yield folder / name


def _get(listing: RepositoryListing, name: str, folder: Path, token: str) -> None:
    from huggingface_hub import hf_hub_download

    where = {"repo_type": "dataset", "revision": listing.revision, "local_dir": folder}
    guarded(listing.repo, lambda: hf_hub_download(listing.repo, name, token=token or False, **where), NOUN)
