"""Owners of uploads. Gradio stores them as `uploads/<sha256>/<name>` without an owner.

The owner is a browser session, recorded by a marker file in the upload's folder. Its name is an HMAC of session and
folder: it does not reveal the session, survives a restart, and is deleted with the folder.
"""

import hmac
import os
import re
import stat
from pathlib import Path

FOLDER = re.compile(r"[0-9a-f]{64}")


class Uploads:
    """The uploads in `folder`; `key` is the HMAC key of the markers."""

    def __init__(self, folder: Path, key: bytes):
        self.folder, self._key = folder, key

    def claim(self, session: str, path: str) -> None:
        """Record that `session` uploaded the file at `path`. Does nothing for a path that is not an upload."""
        if session and (parts := self._parts(path)):
            marker = self._marker(session, parts[0])
            marker.parent.mkdir(parents=True, exist_ok=True)
            marker.touch(mode=0o600)

    def is_own(self, session: str, path: str) -> bool:
        """Whether `path` is exactly a file that `session` uploaded; links, dots and other spellings do not count."""
        parts = self._parts(path)
        if not session or not parts or not self._marker(session, parts[0]).exists():
            return False
        try:
            return stat.S_ISREG(os.lstat(path).st_mode)
        except OSError:
            return False

    def _parts(self, path: str) -> tuple[str, str] | None:
        """(folder, name) of `<uploads>/<folder>/<name>`; None for everything else."""
        folder, _, name = path.removeprefix(f"{self.folder}/").partition("/")
        valid = path == f"{self.folder}/{folder}/{name}" and FOLDER.fullmatch(folder)
        return (folder, name) if valid and name and "/" not in name and name[0] != "." and "\0" not in name else None

    def _marker(self, session: str, folder: str) -> Path:
        digest = hmac.new(self._key, f"upload {folder} {session}".encode(), "sha256").hexdigest()
        return self.folder / folder / f".{digest}"
