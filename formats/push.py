"""An export made for the hub: the folder of `formats.export`, kept beside the other exports until it is there, so that
what a dry run showed is what is sent, and what broke off goes on with the same bytes. No torch until it is made.
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
from formats.export import build, check_possible
from formats.facts import Facts
from formats.report import ExportReport
from formats.store import exports_folder, source_of
from formats.validate import REPORT
from models.hub_push import Pushed, push_folder
from speculoos.errors import BadInput
from speculoos.reporting import Reporter
from speculoos.sums import differing, listed


@dataclass(frozen=True)
class Parcel:
    """A checkpoint that is to go to a repository in a format."""

    home: Path
    checkpoint_id: str
    path: str
    base_path: str
    format: str
    repo: str
    facts: Facts

    @property
    def folder(self) -> Path:
        """Where it is made: another one for every state of the checkpoint and every repository."""
        key = sha256("\n".join((source_of(self.path), self.format, self.repo)).encode()).hexdigest()[:12]
        return exports_folder(self.home, self.checkpoint_id) / f".push-{self.format}-{key}"

    def check(self) -> None:
        """Raises Unsupported where the format cannot take the checkpoint."""
        check_possible(self.path, self.base_path, self.format)

    def make(self, base: Callable[[], Any], reporter: Reporter) -> ExportReport:
        """The folder, validated; the one that is there already where it is whole. `base()` is the base in float32.
        Raises what `formats.export.build` does."""
        if (report := self._made()) is not None:
            return report
        shutil.rmtree(self.folder, ignore_errors=True)
        loaded = SimpleNamespace(path=self.base_path) if self.format == OWN else base()  # our own files are copied
        return build(self.path, loaded, self.format, self.folder, reporter, self._facts(), repository=self.repo)

    def files(self) -> list[dict[str, Any]]:
        """`name`, `bytes` and `sha256` of every file that is sent."""
        sums = listed(self.folder)
        files = sorted(path for path in self.folder.iterdir() if path.is_file())
        return [{"name": f.name, "bytes": f.stat().st_size, "sha256": sums.get(f.name, "")} for f in files]

    def send(self, public: bool) -> Pushed:
        """Upload it; what was kept for that goes when all is there."""
        title = find_format(self.format).title
        pushed = push_folder(self.folder, self.repo, public, f"{self.facts.checkpoint} for {title}, by Speculoos")
        shutil.rmtree(self.folder, ignore_errors=True)
        return pushed

    def _facts(self) -> Facts:
        """Without the folder of a base that lies on this machine: its path is nobody's business."""
        return self.facts if self.facts.hub_id else replace(self.facts, location=self.facts.name)

    def _made(self) -> ExportReport | None:
        """What the validation of a folder that is there said; None for none, and for a damaged one."""
        if not self.folder.is_dir() or differing(self.folder):
            return None
        if self.format == OWN:
            return ExportReport(OWN, "", find_format(OWN).servers(""), ())
        try:
            report = ExportReport.from_json(read_object(self.folder / REPORT))
        except (BadInput, KeyError, TypeError):
            return None
        return report if report.passed else None
