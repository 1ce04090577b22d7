"""Bringing a home's database to today's tables, after a copy of it was made. `python -m ops.migrate` in containers.

SQLite's copy is a database file; PostgreSQL's a backup without files, for `speculoos restore`.
"""

import sys
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from ops import archive
from ops.backup import new_file, stream
from ops.restore import check_whole
from speculoos.errors import SpeculoosError
from speculoos.files import new_private_file
from speculoos.private import restrict_permissions, set_private_umask
from speculoos.settings import Settings, load
from tracking import db, revisions, rules


def migrate(settings: Settings) -> Path | None:
    """Upgrade the tables; returns the copy that was made of those before, None where there was nothing to do.

    Raises Unavailable, changing nothing, when the database is damaged, newer than this code, or cannot be copied.
    """
    check_whole(settings)
    copy = None
    if (revision := db.revision(settings)) and revision != revisions.head():
        copy = keep_copy(settings, f"before-{revisions.head()}-from-{revision}")
    db.upgrade(settings)
    return copy


def keep_copy(settings: Settings, why: str) -> Path:
    """Copy the database into home/backups and remove the oldest copies beyond `keep_copies`."""
    folder = settings.home / db.BACKUPS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    sqlite = db.engine(settings).dialect.name == "sqlite"
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    target = folder / f"{why}-{stamp}{'.db' if sqlite else '.tar.gz'}"
    if sqlite:
        with new_private_file(target) as out:
            db.copy_file(settings, Path(out.name))
    else:
        with new_file(target) as out, archive.compressed(out, target.name) as packed:
            stream(settings, packed, secrets=True, files=False)
    for old in copies(settings)[_kept(settings) or None :]:
        old.unlink(missing_ok=True)
    return target


def _kept(settings: Settings) -> int:
    """How many copies stay: the rule that people chose, where the tables have one already."""
    try:
        return rules.current_settings(settings).keep_copies
    except (SpeculoosError, SQLAlchemyError):
        return settings.keep_copies


def copies(settings: Settings) -> list[Path]:
    """The automatic copies, the newest first."""
    files = (settings.home / db.BACKUPS).glob("before-*")
    return sorted(files, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)


def main() -> int:
    """What a container runs once, before the rest starts."""
    set_private_umask()
    try:
        settings = load()
        restrict_permissions(settings)
        if copy := migrate(settings):
            print(f"Copied the database to {copy}, then migrated it.")
    except SpeculoosError as error:
        print(f"{error} {error.hint}".strip(), file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
