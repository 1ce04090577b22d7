"""Create the secrets of a container deployment at first start, in a volume.

`python -m cli.launch.first_start FOLDER` creates missing secrets without printing them;
`python -m cli.launch.first_start --ping URL` exits with 0 when the URL answers (health checks).
"""

import secrets
import sys
import urllib.request
from pathlib import Path

from speculoos.files import read_or_create_secret


def make_secrets(folder: Path) -> list[str]:
    """Create missing files password, inference-token, db-password and database-url in `folder` (mode 0600, never
    changed). Returns the names of the created files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for name in ("password", "inference-token", "db-password", "database-url"):
        if not (folder / name).exists():
            value = secrets.token_urlsafe(18)
            if name == "database-url":
                value = f"postgresql://speculoos:{(folder / 'db-password').read_text().strip()}@db:5432/speculoos"
            read_or_create_secret(folder / name, lambda value=value: value)
            names.append(name)
    return names


def _ping(url: str) -> int:
    """0 when the URL answers 200. Ignores proxies, which Docker may set in the environment of containers."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=4) as response:
            return 0 if response.status == 200 else 1
    except OSError:
        return 1


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--ping":
        return _ping(arguments[1])
    if len(arguments) != 1:
        print("usage: python -m cli.launch.first_start FOLDER | --ping URL", file=sys.stderr)
        return 2
    names = make_secrets(Path(arguments[0]))
    print(f"created {', '.join(names)}" if names else "all secrets exist")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
