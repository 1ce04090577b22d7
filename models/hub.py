"""Download models from the Hugging Face hub: file selection, progress and error messages. Fetches safetensors, configs
and tokenizers only, and pickled weights if there are no safetensors; never code."""

import re
import shutil
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from speculoos.checksums import file_sha256
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable, Unsupported
from speculoos.reporting import Reporter, check_stop

PART = r"[A-Za-z0-9][\w.-]{0,95}"
HUB_ID = re.compile(rf"(?P<repo>(?:{PART}/)?{PART})(?:@(?P<revision>[\w./-]{{1,100}}))?")
WANTED_FILES = re.compile(
    r"[^/]+\.(?:json|jinja|safetensors)|tokenizer\.model|spiece\.model|merges\.txt|vocab\.txt|README\.md"
)
EXCLUDED_FILES = re.compile(r"(?:adapter_|consolidated|training_args|optimizer|trainer_state).*")
NO_SAFETENSORS = "has no safetensors weights and no pytorch_model.bin; of other formats only GGUF files can be added."
PICKLES = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin|medusa_lm_head\.pt")
"""Pickled weights of drafts."""
BASE_PICKLES = re.compile(r"pytorch_model(-\d+-of-\d+)?\.bin")
"""Pickled weights of bases: fetched only without safetensors, and converted in a child process with limits."""
Result = TypeVar("Result")
POLL_SECONDS = 0.5
HEADROOM = 1 << 30
Files = dict[str, tuple[int, str]]
"""{name: (bytes, sha256 or "")}."""
FileFilter = Callable[[Files], Files]


@dataclass(frozen=True)
class RepositoryListing:
    """The files to download of one revision."""

    repo: str
    revision: str
    files: Files

    @property
    def size(self) -> int:
        return sum(size for size, _ in self.files.values())

    def check_arrived(self, name: str, folder: Path) -> None:
        """Raise Unavailable for a file whose sha256 differs from the hub's, and remove the file."""
        _, sha256 = self.files[name]
        if sha256 and file_sha256(folder / name) != sha256:
            (folder / name).unlink()
            raise Unavailable(f"{self.repo}: {name} was damaged in transit (its sha256 differs); fetch it again.")


def parse_id(location: str) -> tuple[str, str | None]:
    """(repository, revision or None) of `owner/name` or `owner/name@revision`. Raises BadInput for anything else."""
    match = HUB_ID.fullmatch(location.strip())
    if not match or ".." in location or "--" in match["repo"]:
        raise BadInput(f"{location[:120]!r} is not a hub id; expected owner/name or owner/name@revision.")
    return match["repo"], match["revision"]


def download(
    location: str, folder: Path, reporter: Reporter, token: str = "", chosen: FileFilter | None = None
) -> RepositoryListing:
    """Download a hub model to `folder`, resuming an earlier download there. `chosen` selects the files; default: those
    of a base (`choose`). Raises NotFound, Unavailable (gated, offline, disk full), Unsupported (no safetensors),
    Cancelled."""
    repo, revision = parse_id(location)

    def select(files: Files) -> Files:
        selection = (chosen or choose)(files)
        if not any(name.endswith(".safetensors") or PICKLES.fullmatch(name) for name in selection):
            if any(name.startswith("adapter_") for name in files):
                raise Unsupported(f"{repo}: is an adapter (LoRA), not a whole model; merge it into its base first.")
            raise Unsupported(f"{repo}: {NO_SAFETENSORS}")
        return selection

    listing = with_hub_errors(repo, lambda: _list_files(repo, revision, select, token))
    check_space(repo, listing.size - bytes_in(folder), folder)
    folder.mkdir(parents=True, exist_ok=True)
    reporter.log(f"Downloading {repo} ({listing.size / 1e6:,.0f} MB) …")
    run_with_progress(
        lambda: with_hub_errors(repo, lambda: _snapshot(listing, folder, token)), listing, folder, reporter
    )
    for name in listing.files:
        listing.check_arrived(name, folder)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for path in folder.iterdir():  # files of other revisions
        if path.name not in listing.files:
            path.unlink()
    return listing


def last_part(name: str) -> str:
    """`name` of `owner/name` or of a path, in lower case: equal for copies of a model."""
    return name.rstrip("/").rpartition("/")[2].casefold()


def choose(files: Files, pickles: re.Pattern[str] = BASE_PICKLES) -> Files:
    """Files of a repository that a base needs: `model*.safetensors` if any, else other safetensors, else pickles."""
    selection = {n: v for n, v in files.items() if WANTED_FILES.fullmatch(n) and not EXCLUDED_FILES.fullmatch(n)}
    weights = [n for n in selection if n.endswith(".safetensors")]
    if any(n.startswith("model") for n in weights):
        selection = {n: v for n, v in selection.items() if n not in weights or n.startswith("model")}
    return selection if weights else selection | {n: v for n, v in files.items() if pickles.fullmatch(n)}


def choose_draft(files: Files) -> Files:
    """Files that a draft needs; pickles, which are read in a child process with limits, only without safetensors."""
    return choose(files, PICKLES)


def _list_files(repo: str, revision: str | None, select: FileFilter, token: str) -> RepositoryListing:
    """The files of a revision that `select` chooses. Raises the hub library's errors, or Unavailable if the response is
    not a list of files."""
    from huggingface_hub import HfApi

    try:
        info = HfApi(token=token or False).repo_info(repo, revision=revision, files_metadata=True)
        files = {s.rfilename: (int(s.size or 0), s.lfs.sha256 if s.lfs else "") for s in info.siblings or ()}
    except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
        raise Unavailable(f"{repo}: the hub's response is not a list of files; try again later.") from None
    return RepositoryListing(repo, info.sha or revision or "main", select(files))


def _snapshot(listing: RepositoryListing, folder: Path, token: str) -> None:
    from huggingface_hub import snapshot_download

    snapshot_download(
        listing.repo,
        revision=listing.revision,
        local_dir=folder,
        allow_patterns=[re.sub(r"([\[*?])", r"[\1]", name) for name in listing.files],
        token=token or False,
    )


def run_with_progress(work: Callable[[], object], listing: RepositoryListing, folder: Path, reporter: Reporter) -> None:
    """Run `work` in a thread, reporting bytes on disk and checking for a stop; a stop keeps the partial download."""
    result = in_thread(work)
    while not wait([result], POLL_SECONDS).done:
        reporter.progress(min(bytes_in(folder), listing.size), listing.size, "bytes")
        check_stop(reporter)
    result.result()


def in_thread(work: Callable[[], Result]) -> "Future[Result]":
    """Run `work` in a daemon thread: one that hangs in a DNS lookup does not delay the end of the process."""
    result: Future[Result] = Future()

    def body() -> None:
        try:
            result.set_result(work())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=body, daemon=True).start()
    return result


def bytes_in(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):  # renamed meanwhile
            total += path.stat().st_size
    return total


def check_space(name: str, needed: int, folder: Path) -> None:
    """Raise Unavailable when fewer than `needed` bytes and some reserve are free for `folder`."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder.parent).free
    if free < needed + HEADROOM:
        raise Unavailable(
            f"{name} needs {(needed + HEADROOM) / 1e9:.1f} GB on disk and {free / 1e9:.1f} GB are free; "
            "free disk space first."
        )


def offline() -> bool:
    from huggingface_hub import is_offline_mode

    return is_offline_mode()


def with_hub_errors(repo: str, work: Callable[[], Result], noun: str = "model") -> Result:
    """`work()`, with hub errors converted to SpeculoosErrors (subclasses first, since they inherit from each other)."""
    from huggingface_hub import errors

    try:
        return work()
    except SpeculoosError:
        raise
    except errors.GatedRepoError:
        raise Unavailable(f"{repo} is gated: accept its license on the hub, then set HF_TOKEN to your token.") from None
    except errors.RevisionNotFoundError:
        raise NotFound(f"{repo} has no such revision.") from None
    except errors.RepositoryNotFoundError:
        raise NotFound(
            f"There is no {noun} {repo!r} on the hub, or it is private and HF_TOKEN may not read it."
        ) from None
    except errors.OfflineModeIsEnabled:
        raise Unavailable(
            f"{repo}: the hub cannot be reached: it is not used while HF_HUB_OFFLINE is set; use local files."
        ) from None
    except errors.LocalEntryNotFoundError:
        raise Unavailable(f"{repo}: the hub cannot be reached; check the network, or use local files.") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", "")
        raise Unavailable(f"{repo}: the hub answered with status {status}; try again later.") from None
    except OSError as error:
        raise Unavailable(f"{repo}: could not be downloaded ({error.strerror or type(error).__name__}).") from None
    except Exception as error:  # huggingface_hub uses httpx or httpx2
        if "http" not in type(error).__module__:
            raise
        raise Unavailable(f"{repo}: the hub cannot be reached ({type(error).__name__}); check the network.") from None
