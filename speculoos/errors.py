"""Errors a user can meet. Each message is one sentence that says what, where and how to mend it.

SpeculoosError
├── BadInput          the user's file, field or flag is wrong
├── NotFound          a name or id that is in no table and no folder
├── Conflict          the thing exists already, or something depends on it
├── Unsupported       this base or draft cannot do that, and why
├── Unavailable       a service, endpoint, disk or memory that is not there now
│   └── OutOfMemory   the work needs more memory than there is, or than it may take
├── Damaged           a file of ours is not what was written; verify names all such files
├── Cancelled         the user asked the work to stop
├── JobFailed         a job that was waited for failed, and how
├── Unexpected        an error nobody foresaw, at the edge
└── Fenced            another attempt owns the job now; leave at once

Code below the edges raises these; the edges (command line, pages, servers, jobs) translate them once.
"""


class SpeculoosError(Exception):
    """Base of every error whose message may be shown as it is. `hint` says what to change, if the message does not."""

    exit_code = 1

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint

    @property
    def code(self) -> str:
        """Short machine-readable name, such as `bad_input`."""
        name = type(self).__name__
        return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class BadInput(SpeculoosError):
    """The user's file, field or flag is wrong."""

    exit_code = 2


class NotFound(SpeculoosError):
    """A name or id that is in no table and no folder."""

    exit_code = 2


class Conflict(SpeculoosError):
    """The thing exists already, or something depends on it."""


class Unsupported(SpeculoosError):
    """This base or draft cannot do that; the message says why."""


class Unavailable(SpeculoosError):
    """A service, endpoint, disk or memory that is not there now."""


class OutOfMemory(Unavailable):
    """The work needs more memory than there is, or than it may take."""


class Damaged(SpeculoosError):
    """A file is missing, cut or changed since its sum was taken; the message names it and says how to mend it."""


class Cancelled(SpeculoosError):
    """The user asked the work to stop."""

    exit_code = 130


class JobFailed(SpeculoosError):
    """A job that was waited for, or a shard of one, failed; `code` is its own."""

    def __init__(self, code: str, message: str, hint: str = ""):
        super().__init__(message, hint)
        self._code = code

    @property
    def code(self) -> str:
        return self._code or super().code


class Unexpected(SpeculoosError):
    """An error nobody foresaw, as the command line reports it."""

    exit_code = 70


class Fenced(SpeculoosError):
    """Another attempt owns the job now; this process must leave without writing."""
