"""Migration of a home's database, after a copy: a database file for SQLite, a backup without files for PostgreSQL.

Containers run `python -m ops.migrate` once before the rest starts.
"""

import sys
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy.exc import SQLAlchemyError

from ops.backup import back_up
from ops.restore import check_not_restoring
from speculoos.errors import SpeculoosError
from speculoos.files import new_private_file
from speculoos.private import restrict_permissions, set_private_umask
from speculoos.settings import Settings, load
from tracking import db, retention_rules, revisions


def migrate(settings: Settings) -> Path | None:
    """Upgrade the tables; returns the copy made before, None if the tables were up to date.

    Raises Unavailable, changing nothing, when the database is damaged, newer than this code, or cannot be copied.
    """
    check_not_restoring(settings)
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
        back_up(settings, target, secrets=True, files=False)
    keep = settings.keep_copies
    with suppress(SpeculoosError, SQLAlchemyError):  # old tables may lack the rule that was set on the Settings page
        keep = retention_rules.current_settings(settings).keep_copies
    for old in copies(settings)[keep:] if keep else ():  # 0 keeps all
        old.unlink(missing_ok=True)
    return target


def copies(settings: Settings) -> list[Path]:
    """The automatic copies, newest first."""
    files = (settings.home / db.BACKUPS).glob("before-*")
    return sorted(files, key=lambda path: (path.stat().st_mtime, path.name), reverse=True)


def main() -> int:
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
