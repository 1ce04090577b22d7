"""Upload a folder to a repository of the hub. huggingface_hub reads the token (HF_TOKEN, `hf auth login`), which is
neither printed nor stored. No torch.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.hub import parse_id
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError, Unavailable

RETRY_HINT = "push again: uploaded files are not sent twice."
PUSH_ERRORS = {
    400: (BadInput, "the hub rejects these files; check the front matter of README.md and the file names."),
    401: (Unavailable, "the token is invalid; run `hf auth login` again, or set HF_TOKEN."),
    403: (Unavailable, "the token has no write access; use another token or another owner."),
    404: (NotFound, "there is no such owner on the hub, or the token has no access."),
}


@dataclass(frozen=True)
class PushResult:
    url: str
    commit: str


def check_repository(repo: str) -> None:
    """Raise BadInput unless `repo` is `owner/name`."""
    _, revision = parse_id(repo)
    if "/" not in repo or revision:
        raise BadInput(f"--repo {repo[:120]!r}: expected OWNER/NAME on the hub.")


def repository_url(repo: str) -> str:
    from huggingface_hub import constants

    return f"{constants.ENDPOINT}/{repo}"


def check_access(repo: str, public: bool) -> None:
    """Check access before anything large is created. Raises Unavailable without a token or a hub, Conflict when the
    repository is public and `public` is false."""
    from huggingface_hub.errors import RepositoryNotFoundError

    def is_public(api: Any) -> bool:
        try:
            return not api.model_info(repo).private
        except RepositoryNotFoundError as error:
            if error.response.status_code == 401:  # the token is invalid; a private repository is a 404
                raise
            return False

    if _call(repo, is_public) and not public:
        raise Conflict(f"{repo} exists and is public; add --public to push to it, or choose another repository.")


def push_folder(folder: Path, repo: str, public: bool, message: str) -> PushResult:
    """Upload the files of `folder` in one commit, creating the repository if needed, private unless `public`. Other
    files in it stay. Call again to resume an interrupted upload. Raises the errors of `check_access`."""

    def work(api: Any) -> PushResult:
        api.create_repo(repo, private=not public, exist_ok=True)
        commit = api.upload_folder(repo_id=repo, folder_path=folder, commit_message=message)
        return PushResult(repository_url(repo), commit.oid)

    return _call(repo, work)


def _call(repo: str, work: Callable[[Any], Any]) -> Any:
    from huggingface_hub import HfApi, get_token

    if not (token := get_token()):
        raise Unavailable("Pushing needs a token: run `hf auth login`, or set HF_TOKEN.")
    try:
        return work(HfApi(token=token))
    except Exception as error:
        raise _convert_error(repo, error) from None


def _convert_error(repo: str, error: BaseException) -> SpeculoosError:
    """Convert the first known error of the chain. Its text is left out, since URLs in it may hold signatures."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    each = None if type(error) is RuntimeError else error  # raised for uploads of large files
    while each is not None:
        if isinstance(each, OfflineModeIsEnabled):
            return Unavailable(f"{repo}: the hub is not used while HF_HUB_OFFLINE is set; unset it to push.")
        if isinstance(each, HfHubHTTPError) and each.response is not None:
            status = each.response.status_code
            default = Unavailable, f"the hub answered with status {status}; {RETRY_HINT}"
            kind, message = PUSH_ERRORS.get(status, default)
            return kind(f"{repo}: {message}")
        if type(each).__module__.startswith(("httpx", "httpcore")) or isinstance(each, ConnectionError | TimeoutError):
            return Unavailable(f"{repo}: the hub cannot be reached; check the network and {RETRY_HINT}")
        each = each.__cause__ or each.__context__
    return Unavailable(f"{repo}: the upload failed; {RETRY_HINT}")
