"""A folder into a repository of the hub, through huggingface_hub. The token comes from where that looks for it
(HF_TOKEN, `hf auth login`); it is neither shown nor kept here. No torch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.hub import parse_id
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError, Unavailable

AGAIN = "push again: what arrived is not sent twice."
REFUSALS = {
    400: (BadInput, "the hub does not take these files; look at the head of README.md and the names."),
    401: (Unavailable, "the hub does not know the token; run `hf auth login` anew, or set HF_TOKEN."),
    403: (Unavailable, "the token may not write there; take one with write access, or another owner."),
    404: (NotFound, "there is no such owner on the hub, or the token may not see it."),
}
"""What the status of an answer means to who pushes."""


@dataclass(frozen=True)
class Pushed:
    """Where the files are now. `commit` is the one that holds them."""

    url: str
    commit: str


def check_repository(repo: str) -> None:
    """Raise BadInput for what is no `owner/name`."""
    _, revision = parse_id(repo)
    if "/" not in repo or revision:
        raise BadInput(f"--repo {repo[:120]!r}: expected OWNER/NAME on the hub.")


def address(repo: str) -> str:
    """Of the repository's page."""
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}"


def check_access(repo: str, public: bool) -> None:
    """Ask the hub before anything large is made. Raises Unavailable without a token or a hub, Conflict where the
    repository is public and nobody said that it may be."""
    if _visible(repo) and not public:
        raise Conflict(
            f"{repo} is there already and everybody can read it; say --public to push there, or name another one."
        )


def push_folder(folder: Path, repo: str, public: bool, message: str) -> Pushed:
    """Upload the files of `folder`, in a commit; the repository is made where there is none, private unless `public`.
    Files of other names stay. An upload that broke off is gone on with by calling this again. Raises what
    `check_access` does."""

    def work(api: Any) -> Pushed:
        api.create_repo(repo, private=not public, exist_ok=True)
        done = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
        return Pushed(address(repo), done.oid)

    return _asked(repo, work)


def _visible(repo: str) -> bool:
    """Whether the repository is there and public."""
    from huggingface_hub.errors import RepositoryNotFoundError

    def work(api: Any) -> bool:
        try:
            return not api.model_info(repo).private
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:  # the token is not known; a repository that is hidden is a 404
                raise
            return False

    return _asked(repo, work)


def _asked(repo: str, work: Callable[[Any], Any]) -> Any:
    """`work(api)`, its errors as sentences."""
    from huggingface_hub import HfApi, get_token

    if not (token := get_token()):
        raise Unavailable("The hub wants to know who pushes: run `hf auth login`, or set HF_TOKEN.")
    try:
        return work(HfApi(token=token))
    except Exception as error:
        raise _sentence(repo, error) from None


def _sentence(repo: str, error: BaseException) -> SpeculoosError:
    """The first error of a chain that says something. Nothing of its text is repeated: addresses in it may hold
    signatures."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    if type(error) is RuntimeError:  # a large file on its way to the hub's storage
        return Unavailable(f"{repo}: the upload broke off; {AGAIN}")
    for each in _chain(error):
        if isinstance(each, OfflineModeIsEnabled):
            return Unavailable(f"{repo}: the hub is not asked while HF_HUB_OFFLINE is set; unset it to push.")
        if isinstance(each, HfHubHTTPError) and each.response is not None:
            status = each.response.status_code
            kind, told = REFUSALS.get(status, (Unavailable, f"the hub answered with status {status}; {AGAIN}"))
            return kind(f"{repo}: {told}")
        if type(each).__module__.startswith(("httpx", "httpcore")) or isinstance(each, ConnectionError | TimeoutError):
            name = type(each).__name__
            return Unavailable(f"{repo}: the hub cannot be reached ({name}); check the network and {AGAIN}")
    return Unavailable(f"{repo}: the upload broke off ({type(error).__name__}); {AGAIN}")


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
