"""Who else uses this machine, and who we are on it: loopback is open to every account."""

import getpass
import os
import pwd
import sys

import psutil

from speculoos.settings import Settings

LONGEST = 80
"""Characters of a name that a job keeps."""
FIRST = 500 if sys.platform == "darwin" else 1000
"""User ids of people begin here."""
SHOWN = 5
NOBODY = 65534
CLOSED = ("nologin", "false", "sync", "shutdown", "halt")
"""Names of shells that let nobody in."""


def account() -> str:
    """The name of this process' user; "" where the system knows none (a container with a bare user id)."""
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return "".join(letter for letter in name if letter.isprintable()).strip()[:LONGEST]


def access_warning(settings: Settings) -> str:
    """One sentence when other people of this machine can open the pages and need not; "" when all is well."""
    if settings.asks_login or not (names := others()):
        return ""
    shown = ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
    return (
        f"Other people of this machine ({shown}) can open these pages and do all that you can; "
        "set SPECULOOS_LOGIN=token to let in only who has a link."
    )


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
    names = set()
    for process in psutil.process_iter(["uids", "username"]):
        uids, name = process.info["uids"], process.info["username"]
        if uids and name and not name.isdigit() and _is_other(uids.real):
            names.add(name)
    return names
