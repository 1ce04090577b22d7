"""Who else uses this machine, and who we are on it: loopback is open to every account."""

import getpass
import os
import pwd
import sys

import psutil

FIRST = 500 if sys.platform == "darwin" else 1000
"""User ids of people begin here."""
NOBODY = 65534
CLOSED = ("nologin", "false", "sync", "shutdown", "halt")
"""Names of shells that let nobody in."""


def account() -> str:
    """The name of this process' user; "" where the system knows none (a container with a bare user id)."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""


def others() -> list[str]:
    """Names of the other people with an account here, or with a process, in alphabetical order."""
    accounts = {entry.pw_name for entry in pwd.getpwall() if _is_other(entry.pw_uid) and _has_shell(entry.pw_shell)}
    return sorted(accounts | _with_processes())


def _is_other(uid: int) -> bool:
    return FIRST <= uid < NOBODY and uid != os.getuid()


def _has_shell(shell: str) -> bool:
    return bool(shell) and os.path.basename(shell) not in CLOSED


def _with_processes() -> set[str]:
    """People known elsewhere only (a directory server) show by what they run."""
    found = set()
    for process in psutil.process_iter(["uids", "username"]):
        uids, name = process.info["uids"], process.info["username"]
        if uids and name and not name.isdigit() and _is_other(uids.real):
            found.add(name)
    return found
