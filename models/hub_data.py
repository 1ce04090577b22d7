"""Datasets on the Hugging Face hub: list the files to fetch, and fetch them one after the other. Only parquet, JSONL
and JSON files are fetched; no code is run."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from pydantic import BaseModel, ValidationError

from models.hub import (
    FileFilter,
    Files,
    RepositoryListing,
    bytes_in,
    check_space,
    parse_id,
    run_with_progress,
    with_hub_errors,
)
from models.hub_request import get_from_hub
from speculoos.errors import BadInput, NotFound, Unavailable, Unsupported
from speculoos.reporting import Reporter

PREFIX = "hub:"
ADDRESS = re.compile(r"https://[\w.-]+/datasets/([\w.-]+/[\w.-]+)/?")
PART = re.compile(r"[\w./ -]{1,200}")
KINDS = ((".parquet",), (".jsonl", ".ndjson"), (".json",))
"""Suffixes of data files; the first group that a repository has is used."""
NO_ROWS = re.compile(r"(dataset_infos?|dataset_dict|state|config|metadata|package|tokenizer\w*)\.json")
SHARD = re.compile(r"(^|[-_.])\d+(-of-\d+)?(-[0-9a-f]{6,})?$")
"""The shard suffix of a file name: `train-00000-of-00003-1a2b3c4d`, `0000`."""
MOST_FILES = 1000
LISTED_PARTS = 12
TIMEOUT, MAX_LISTING_BYTES = 15.0, 64 << 20  # seconds and bytes of the request for the file list
NOUN = "dataset"
PREVIEW_BYTES, LARGEST_LOOK = 2 << 20, 16 << 20  # bytes fetched for a preview: of text files, of parquet files


class _ListedFile(BaseModel):
    rfilename: str
    size: int | None = None
    lfs: dict[str, Any] | None = None


class _Listing(BaseModel):
    sha: str | None = None
    siblings: list[_ListedFile]


@dataclass(frozen=True)
class Location:
    """`hub:OWNER/NAME[@REVISION][:PART]`; a part is a split (`train`), with the name of its config if there are several
    (`all/train`)."""

    repo: str
    revision: str | None = None
    part: str = ""

    @classmethod
    def parse(cls, text: str) -> "Location":
        """Also parses the URL of the hub page, and text without the prefix. Raises BadInput."""
        named, _, part = ADDRESS.sub(r"\1", text.strip()).removeprefix(PREFIX).partition(":")
        if part and not PART.fullmatch(part):
            raise BadInput(f"{part[:80]!r} is not a part of a dataset; expected a form like hub:owner/name:train.")
        return cls(*parse_id(named), part)

    def __str__(self) -> str:
        at = f"@{self.revision}" if self.revision else ""
        return f"{PREFIX}{self.repo}{at}" + (f":{self.part}" if self.part else "")

    @property
    def title(self) -> str:
        """Display name: owner/name:part."""
        return str(self).removeprefix(PREFIX)


def look_up(location: Location, token: str = "") -> RepositoryListing:
    """The data files to fetch: those of the named part, else of the only part or `train`. Raises NotFound, Unavailable
    (gated, offline), Unsupported (no data files) or BadInput (ambiguous or unknown part)."""
    return _listing(location, token, partial(choose, location))


def look_up_file(repo: str, name: str, token: str = "") -> RepositoryListing:
    """One file of a dataset. Raises NotFound (dataset or file) or Unavailable."""

    def select(files: Files) -> Files:
        if name not in files:
            raise NotFound(f"{repo}: has no file {name} any more.")
        return {name: files[name]}

    return _listing(Location(repo), token, select)


def _listing(location: Location, token: str, select: FileFilter) -> RepositoryListing:
    repo, at = location.repo, f"/revision/{quote(location.revision, safe='')}" if location.revision else ""
    path, params = f"api/datasets/{repo}{at}", {"blobs": "true"}
    content = get_from_hub(repo, path, MAX_LISTING_BYTES, token, params=params, noun=NOUN, seconds=TIMEOUT)
    try:
        info = _Listing.model_validate_json(content)
    except ValidationError:
        raise Unavailable(f"{repo}: the hub's response is not a list of files; try again later.") from None
    files = {each.rfilename: (each.size or 0, (each.lfs or {}).get("sha256") or "") for each in info.siblings}
    return RepositoryListing(repo, info.sha or location.revision or "main", select(files))


def beginning(listing: RepositoryListing, token: str = "") -> tuple[str, bytes]:
    """Name and first bytes of the first file; parquet files whole, since their metadata is at the end. Raises
    Unsupported for a too large parquet file, Unavailable on a timeout."""
    name, (size, _) = next(iter(listing.files.items()))
    whole = name.lower().endswith(KINDS[0])
    if whole and size > LARGEST_LOOK:
        raise Unsupported(
            f"{listing.repo}: {name} has {size / 1e6:,.0f} MB, which is too large for a preview; "
            "import some rows of it with “Max rows”."
        )
    path = f"datasets/{listing.repo}/resolve/{quote(listing.revision, safe='')}/{quote(name)}"
    limit = LARGEST_LOOK if whole else PREVIEW_BYTES
    return name, get_from_hub(listing.repo, path, limit, token, truncate=not whole, noun=NOUN)


def choose(location: Location, files: Files) -> Files:
    """The files of one part of a repository, in order. Raises Unsupported or BadInput, listing the parts."""
    kinds = [parts for kind in KINDS if (parts := parts_of(files, kind))]
    if not kinds:
        raise Unsupported(
            f"{location.repo}: has no parquet, JSONL or JSON files, and dataset scripts are never run.",
            f"The hub may have converted it: try {PREFIX}{location.repo}@refs/convert/parquet",
        )
    if location.part:
        matching = next((matching for parts in kinds if (matching := _matching(parts, location.part))), {})
        if len(matching) > 1:
            raise BadInput(f"{location.repo}: {location.part!r} may be {_listed(matching)}; name one of these.")
        if not matching:
            raise BadInput(f"{location.repo}: has no part {location.part!r}; there are {_listed(kinds[0])}.")
    else:
        matching = kinds[0] if len(kinds[0]) == 1 else _matching(kinds[0], "train")
        if len(matching) != 1:
            example = f"{PREFIX}{location.repo}:{next(iter(kinds[0]))}"
            raise BadInput(f"{location.repo}: has several parts, {_listed(kinds[0])}; choose one, such as {example}")
    (chosen,) = matching.values()
    if len(chosen) > MOST_FILES:
        raise Unsupported(f"{location.title}: has {len(chosen):,} files; at most {MOST_FILES:,} are fetched.")
    return chosen


def parts_of(files: Files, endings: tuple[str, ...]) -> dict[str, Files]:
    """{part: its files} of the files with these suffixes; shards of a part are grouped."""
    parts: dict[str, Files] = {}
    for name in sorted(files):
        if name.lower().endswith(endings) and not NO_ROWS.fullmatch(name.rpartition("/")[2]):
            parts.setdefault(_part(name), {})[name] = files[name]
    return parts


def _part(name: str) -> str:
    *folders, last = name.rpartition(".")[0].removeprefix("data/").split("/")
    return "/".join([*folders, SHARD.sub("", last)]).strip("/") or last


def _matching(parts: dict[str, Files], name: str) -> dict[str, Files]:
    """The part of this name, else those that end with it."""
    if name in parts:
        return {name: parts[name]}
    return {part: files for part, files in parts.items() if part.rpartition("/")[2] == name}


def _listed(parts: Iterable[str]) -> str:
    names = [*parts]
    more = f" and {len(names) - LISTED_PARTS} more" if len(names) > LISTED_PARTS else ""
    return ", ".join(names[:LISTED_PARTS]) + more


def fetch(listing: RepositoryListing, folder: Path, reporter: Reporter, token: str = "") -> Iterator[Path]:
    """Fetch the listing's files to `folder` lazily, one by one; files of an earlier call are reused. Raises NotFound,
    Unavailable (gated, offline, disk full, damaged in transit), Cancelled."""
    check_space(listing.repo, listing.size - bytes_in(folder), folder)
    folder.mkdir(parents=True, exist_ok=True)
    for number, (name, (size, _)) in enumerate(listing.files.items(), 1):
        reporter.log(f"Fetching {name} ({size / 1e6:,.1f} MB), file {number} of {len(listing.files)} …")
        run_with_progress(partial(_get, listing, name, folder, token), listing, folder, reporter)
        listing.check_arrived(name, folder)
        yield folder / name


def _get(listing: RepositoryListing, name: str, folder: Path, token: str) -> None:
    from huggingface_hub import hf_hub_download

    options = {"repo_type": "dataset", "revision": listing.revision, "local_dir": folder, "token": token or False}
    with_hub_errors(listing.repo, lambda: hf_hub_download(listing.repo, name, **options), NOUN)
