"""Errors shown to users. Each message is one sentence that says what is wrong, where, and how to fix it.

Library code raises these; the command line, the pages, the servers and the jobs translate them into their own form.
"""


class SpeculoosError(Exception):
    """Base class of errors whose message may be shown to users. `hint` says how to fix it if the message does not."""

    exit_code = 1

    def __init__(self, message: str, hint: str = ""):
        super().__init__(message)
        self.hint = hint

    @property
    def code(self) -> str:
        """Machine-readable name, such as `bad_input`."""
        name = type(self).__name__
        return "".join("_" + c.lower() if c.isupper() else c for c in name).lstrip("_")


class BadInput(SpeculoosError):
    """An invalid file, field or option."""

    exit_code = 2


class NotFound(SpeculoosError):
    """An unknown name or id."""

    exit_code = 2


class Conflict(SpeculoosError):
    """The object exists already, or others depend on it."""


class Unsupported(SpeculoosError):
    """The base or draft model does not support the operation; the message says why."""


class Unavailable(SpeculoosError):
    """A service, endpoint, disk or memory is not available now."""


class OutOfMemory(Unavailable):
    """The work needs more memory than exists or is allowed."""


class ProcessLost(Unavailable):
    """A process of the work was killed; the work may be retried."""


class Damaged(SpeculoosError):
    """A file is missing, truncated or changed since its checksum was stored; the message names it."""


class Cancelled(SpeculoosError):
    """The user stopped the work."""

    exit_code = 130


class JobFailed(SpeculoosError):
    """A job that the caller waited for, or one of its shards, failed; `code` is the error code of that job."""

    def __init__(self, code: str, message: str, hint: str = ""):
        super().__init__(message, hint)
        self._code = code

    @property
    def code(self) -> str:
        return self._code or super().code


class Unexpected(SpeculoosError):
    """An unhandled exception, reported by the command line."""

    exit_code = 70


class Fenced(SpeculoosError):
    """Another attempt owns the job; this process must exit without writing."""


def first_line(error: BaseException, most: int = 300) -> str:
    """The first line of the message, at most `most` characters, without a full stop; without a message the type."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:most].rstrip(".")
