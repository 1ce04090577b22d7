"""Current user and other users of this machine: loopback ports are open to every account."""

import getpass
import os
import pwd
import sys

import psutil

from speculoos.settings import Settings

LONGEST = 80  # maximum length of a stored user name
FIRST = 500 if sys.platform == "darwin" else 1000  # first user id of human users
SHOWN = 5
NOBODY = 65534
CLOSED = ("nologin", "false", "sync", "shutdown", "halt")  # login shells of accounts that cannot log in


def current_user() -> str:
    """The user name of this process; "" if its user id has no name (in containers)."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "".join(letter for letter in name if letter.isprintable()).strip()[:LONGEST]


def access_warning(settings: Settings) -> str:
    """A warning if other users of this machine can open the pages without login, else ""."""
    if settings.requires_login or not (names := other_users()):
        return ""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"Other users of this machine ({shown}) can open these pages with the same permissions as you; "
        "set SPECULOOS_LOGIN=token to require a login link."
    )


def other_users() -> list[str]:
    """Sorted names of other users with an account or a process on this machine."""
    others = [entry for entry in pwd.getpwall() if _is_other(entry.pw_uid) and entry.pw_shell]
    accounts = {entry.pw_name for entry in others if os.path.basename(entry.pw_shell) not in CLOSED}
    return sorted(accounts | _with_processes())


def _is_other(uid: int) -> bool:
    return FIRST <= uid < NOBODY and uid != os.getuid()


def _with_processes() -> set[str]:
    """Users of a directory server are not in the passwd file; they are detected by their processes."""
    process_users = [(each.info["uids"], each.info["username"]) for each in psutil.process_iter(["uids", "username"])]
    return {name for uids, name in process_users if uids and name and not name.isdigit() and _is_other(uids.real)}
