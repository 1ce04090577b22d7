"""An export for the Hugging Face Hub: a folder written by `formats.export`, stored with the other exports until it is
uploaded. A push after a dry run, or after an interrupted push, sends the same bytes. huggingface_hub reads the token
(HF_TOKEN, `hf auth login`), which is neither printed nor stored. Torch is imported only when the export is written."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from formats import OWN, find_format
from formats.export import build_export, check_export
from formats.facts import CardFacts
from formats.report import REPORT, ExportReport
from formats.store import checkpoint_state, exports_folder
from models.hub import parse_id
from models.identity import read_json
from speculoos.checksums import find_changed_files, read_checksums
from speculoos.errors import BadInput, Conflict, NotFound, SpeculoosError, Unavailable
from speculoos.reporting import Reporter

RETRY_HINT = "push again: uploaded files are not sent twice."
PUSH_ERRORS = {
    400: (BadInput, "the hub rejects these files; check the front matter of README.md and the file names."),
    401: (Unavailable, "the token is invalid; run `hf auth login` again, or set HF_TOKEN."),
    403: (Unavailable, "the token has no write access; use another token or another owner."),
    404: (NotFound, "there is no such owner on the hub, or the token has no access."),
}


@dataclass(frozen=True)
class HubExport:
    """A checkpoint to upload to the hub repository `repo` in a format."""

    home: Path
    checkpoint_id: str
    path: str
    base_path: str
    format: str
    repo: str
    facts: CardFacts

    @property
    def folder(self) -> Path:
        """The export's folder; it differs for every state of the checkpoint, format and repository."""
        key = sha256("\n".join((checkpoint_state(self.path), self.format, self.repo)).encode()).hexdigest()[:12]
        return exports_folder(self.home, self.checkpoint_id) / f".push-{self.format}-{key}"

    @property
    def url(self) -> str:
        from huggingface_hub import constants

        return f"{constants.ENDPOINT}/{self.repo}"

    def check(self) -> None:
        """Raise BadInput unless `repo` is `owner/name`, Unsupported if the format does not support the checkpoint."""
        _, revision = parse_id(self.repo)
        if "/" not in self.repo or revision:
            raise BadInput(f"--repo {self.repo[:120]!r}: expected OWNER/NAME on the hub.")
        check_export(self.path, self.base_path, self.format)

    def check_access(self, public: bool) -> None:
        """Raises Unavailable without a token or a hub, Conflict for a public repository if `public` is false."""
        from huggingface_hub.errors import RepositoryNotFoundError

        def is_public(api: Any) -> bool:
            try:
                return not api.model_info(self.repo).private
            except RepositoryNotFoundError as error:
                if error.response.status_code == 401:  # the token is invalid; a private repository is a 404
                    raise
                return False

        if _call(self.repo, is_public) and not public:
            raise Conflict(
                f"{self.repo} exists and is public; add --public to push to it, or choose another repository."
            )

    def make(self, base: Callable[[], Any], reporter: Reporter) -> ExportReport:
        """Write and validate the folder, unless a complete one exists. `base()` loads the base model in float32."""
        if (report := self._existing_report()) is not None:
            return report
        shutil.rmtree(self.folder, ignore_errors=True)
        # The workbench's own format copies files and needs no weights of the base model.
        loaded = SimpleNamespace(path=self.base_path) if self.format == OWN else base()
        return build_export(self.path, loaded, self.format, self.folder, reporter, self._facts(), repository=self.repo)

    def files(self) -> list[dict[str, Any]]:
        """`name`, `bytes` and `sha256` of every file to upload."""
        sums = read_checksums(self.folder)
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        return [{"name": f.name, "bytes": f.stat().st_size, "sha256": sums.get(f.name, "")} for f in files]

    def send(self, public: bool) -> str:
        """Upload the folder in one commit, whose id is returned, and delete it. The repository is created if needed,
        private unless `public`; other files in it stay. Call again to resume. Raises the errors of `check_access`."""
        message = f"{self.facts.checkpoint} for {find_format(self.format).title}, by Speculoos"

        def work(api: Any) -> str:
            api.create_repo(self.repo, private=not public, exist_ok=True)
            return api.upload_folder(repo_id=self.repo, folder_path=self.folder, commit_message=message).oid

        commit = _call(self.repo, work)
        shutil.rmtree(self.folder, ignore_errors=True)
        return commit

    def _facts(self) -> CardFacts:
        """The facts without the local path of a base model, which must not be published."""
        return self.facts if self.facts.hub_id else replace(self.facts, location=self.facts.name)

    def _existing_report(self) -> ExportReport | None:
        """The validation report of an existing folder; None if it does not exist, is damaged or failed."""
        if not self.folder.is_dir() or find_changed_files(self.folder):
            return None
        if self.format == OWN:
            return ExportReport(OWN, "", find_format(OWN).servers(""), ())
        try:
            report = ExportReport.from_json(read_json(self.folder / REPORT))
        except (BadInput, KeyError, TypeError):
            return None
        return report if report.passed else None


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
