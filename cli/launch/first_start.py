"""What a container deployment needs once: secrets made at first start and kept in a volume.

`python -m cli.launch.first_start FOLDER` makes what is missing and prints no secret;
`python -m cli.launch.first_start --ping URL` exits 0 when the URL answers (health checks).
"""

import secrets
import sys
import urllib.request
from pathlib import Path

from speculoos.files import read_or_create_secret


def make_secrets(folder: Path) -> list[str]:
    """Make the missing ones of password, inference-token, db-password and database-url in `folder` (mode 0600,
    written once and never changed). Returns the names of those made."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in ("password", "inference-token", "db-password") if _make(folder / name, _new_secret())]
    db_password = (folder / "db-password").read_text().strip()
    if _make(folder / "database-url", f"postgresql://speculoos:{db_password}@db:5432/speculoos"):
        names.append("database-url")
    return names


def _new_secret() -> str:
    return secrets.token_urlsafe(18)


def _make(path: Path, value: str) -> bool:
    """Write `value` unless the file exists already; complete or absent, never half."""
    if path.exists():
        return False
    read_or_create_secret(path, lambda: value)
    return True


def _ping(url: str) -> int:
    """0 when the URL answers 200. Asked without a proxy, which Docker may put into the environment of containers."""
    straight = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with straight.open(url, timeout=4) as answer:
            return 0 if answer.status == 200 else 1
    except OSError:
        return 1


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--ping":
        return _ping(arguments[1])
    if len(arguments) != 1:
        print("usage: python -m cli.launch.first_start FOLDER | --ping URL", file=sys.stderr)
        return 2
    names = make_secrets(Path(arguments[0]))
    print(f"made {', '.join(names)}" if names else "all secrets are there")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
