"""Which machine this is, for rows that several machines share. A host's name does not tell: containers and network
namespaces may have equal ones, and disk images bring the same /etc/machine-id. So an id at random, kept in the home
folder, stands beside what the system says.
"""

import functools
import hashlib
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from speculoos.files import secret
from speculoos.settings import home_of

FILE = "machine-id"
"""In the home: the id at random. Backups leave it out; a home that was copied is told apart by the rest."""
SYSTEM = Path("/etc/machine-id")
BOOT = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")
NAME = 40
"""Characters of a host's name that are kept."""


def host(home: Path | None = None) -> str:
    """`name~12345678`: where a process number names one process. Another home, container or machine has another."""
    return f"{socket.gethostname()[:NAME]}~{_tag(_read(SYSTEM), _home_id(home), _namespace())}"


def device(name: str, home: Path | None = None) -> str:
    """`cuda:0@12345678`: a device of this machine, as its leases know it. Containers that share machine and home share
    their devices; after a new start of the machine they have new names."""
    return f"{name}@{_tag(_read(SYSTEM), _read(BOOT), _home_id(home))}"


def boot_id() -> str:
    """Changes with every start of the machine; empty elsewhere than on Linux."""
    return _read(BOOT)


def _tag(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _home_id(home: Path | None) -> str:
    """Made by the first who asks; "" while there is no home."""
    home = home or home_of(os.environ)
    return _kept(home) if home.is_dir() else ""


@functools.cache
def _kept(home: Path) -> str:
    try:
        return secret(home / FILE, lambda: uuid.uuid4().hex)
    except OSError:  # a disk without room: the system's id must do
        return ""


@functools.cache
def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text().strip()
    return ""


@functools.cache
def _namespace() -> str:
    with suppress(OSError):
        return os.readlink(PROCESSES)
    return ""
