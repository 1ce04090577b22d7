"""An export for the Hugging Face Hub: a folder written by `formats.export`, stored with the other exports until it is
uploaded. A push after a dry run, or after an interrupted push, sends the same bytes. Torch is imported only when the
export is written.
"""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from formats import OWN, find_format
from formats.checkpoint import read_object
from formats.export import build_export, check_export
from formats.facts import CardFacts
from formats.report import REPORT, ExportReport
from formats.store import checkpoint_state, exports_folder
from models.hub_push import PushResult, push_folder
from speculoos.checksums import find_changed_files, read_checksums
from speculoos.errors import BadInput
from speculoos.reporting import Reporter


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

    def check(self) -> None:
        """Raises Unsupported if the format does not support the checkpoint."""
        check_export(self.path, self.base_path, self.format)

    def make(self, base: Callable[[], Any], reporter: Reporter) -> ExportReport:
        """Write and validate the folder, unless a complete one exists. `base()` loads the base model in float32. Raises
        the errors of `formats.export.build_export`."""
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

    def send(self, public: bool) -> PushResult:
        """Upload the folder and delete it after a complete upload."""
        title = find_format(self.format).title
        pushed = push_folder(self.folder, self.repo, public, f"{self.facts.checkpoint} for {title}, by Speculoos")
        shutil.rmtree(self.folder, ignore_errors=True)
        return pushed

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
            report = ExportReport.from_json(read_object(self.folder / REPORT))
        except (BadInput, KeyError, TypeError):
            return None
        return report if report.passed else None
