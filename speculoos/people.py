"""Current user and other users of this machine: loopback ports are open to every account."""

import getpass
import os
import pwd
import sys

import psutil

from speculoos.settings import Settings

LONGEST = 80
"""Maximum length of a stored user name."""
FIRST = 500 if sys.platform == "darwin" else 1000
"""First user id of human users."""
SHOWN = 5
NOBODY = 65534
CLOSED = ("nologin", "false", "sync", "shutdown", "halt")
"""Login shells of accounts that cannot log in."""


def current_user() -> str:
    """The user name of this process; "" if its user id has no name (in containers)."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "".join(letter for letter in name if letter.isprintable()).strip()[:LONGEST]


def access_warning(settings: Settings) -> str:
    """A warning if other users of this machine can open the pages without login, else ""."""
    if settings.asks_login or not (names := other_users()):
        return ""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"Other users of this machine ({shown}) can open these pages and do everything you can; "
        "set SPECULOOS_LOGIN=token to require a login link."
    )


def other_users() -> list[str]:
    """Sorted names of other users with an account or a process on this machine."""
    accounts = {entry.pw_name for entry in pwd.getpwall() if _is_other(entry.pw_uid) and _has_shell(entry.pw_shell)}
    return sorted(accounts | _with_processes())


def _is_other(uid: int) -> bool:
    return FIRST <= uid < NOBODY and uid != os.getuid()


def _has_shell(shell: str) -> bool:
    return bool(shell) and os.path.basename(shell) not in CLOSED


def _with_processes() -> set[str]:
    """Users of a directory server are not in the passwd file; they are detected by their processes."""
    names = set()
    for process in psutil.process_iter(["uids", "username"]):
        uids, name = process.info["uids"], process.info["username"]
        if uids and name and not name.isdigit() and _is_other(uids.real):
            names.add(name)
    return names
