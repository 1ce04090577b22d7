"""Identifies this machine in a database shared by several machines. Host names are not unique (containers, network
namespaces), and disk images share /etc/machine-id, so a random id in the home folder is included.
"""

import functools
import hashlib
import os
import socket
import uuid
from contextlib import suppress
from pathlib import Path

from speculoos.files import read_or_create_secret
from speculoos.settings import home_of

FILE = "machine-id"
"""File with the random id in the home folder. Backups exclude it; copied home folders differ in the other parts."""
SYSTEM = Path("/etc/machine-id")
BOOT = Path("/proc/sys/kernel/random/boot_id")
PROCESSES = Path("/proc/self/ns/pid")
NAME = 40  # maximum length of the host name


def machine_key(home: Path | None = None) -> str:
    """`name~12345678`: the scope in which a pid is unique; differs by home folder, container and machine."""
    return f"{socket.gethostname()[:NAME]}~{_tag(_read(SYSTEM), _home_id(home), _read(PROCESSES))}"


def device_key(name: str, home: Path | None = None) -> str:
    """`cpu@12345678`: key of a device's lease. Containers with the same machine and home folder share it; it
    changes when the machine reboots."""
    return f"{name}@{_tag(_read(SYSTEM), _read(BOOT), _home_id(home))}"


def boot_id() -> str:
    """Changes at every boot of the machine; "" on systems other than Linux."""
    return _read(BOOT)


def _tag(*parts: str) -> str:
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]


def _home_id(home: Path | None) -> str:
    """The random id, created at the first call; "" if the home folder does not exist."""
    home = home or home_of(os.environ)
    return _stored_id(home) if home.is_dir() else ""


@functools.cache
def _stored_id(home: Path) -> str:
    try:
        return read_or_create_secret(home / FILE, lambda: uuid.uuid4().hex)
    except OSError:  # full disk: use the system's id only
        return ""


@functools.cache
def _read(path: Path) -> str:
    """A file's text, or the target of the link that names a namespace; "" on other systems."""
    with suppress(OSError):
        return os.readlink(path) if path == PROCESSES else path.read_text().strip()
    return ""
