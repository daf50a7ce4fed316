"""Reasons to refuse a call. The caller gets the text with the gRPC status named by `code`."""

from __future__ import annotations

from typing import ClassVar


class RefusalError(Exception):
    """Base class. A refused call changes nothing, and a repetition would be refused too.

    Whoever serves the call or reads the answer catches it: it ends no process.
    """

    code: ClassVar[str]


class MalformedMessageError(RefusalError):
    """A field is missing, negative, infinite or out of its range. The text names field, value and rule."""

    code = "INVALID_ARGUMENT"


class UnprovenCallError(RefusalError):
    """The other side has not proven that it knows the run's token."""

    code = "UNAUTHENTICATED"


class UnknownSessionError(RefusalError):
    """As after a restart of the arbitrator: the caller greets again."""

    code = "UNAUTHENTICATED"


class OtherRunError(RefusalError):
    """The caller is of another run, or of a version that cannot be understood."""

    code = "FAILED_PRECONDITION"


class UnknownWorkerError(RefusalError):
    """The worker has not registered with this process of the arbitrator, and must do so first."""

    code = "NOT_FOUND"


class StaleIncarnationError(RefusalError):
    """The caller was replaced by a later process of the same rank."""

    code = "FAILED_PRECONDITION"


class TooManyStreamsError(RefusalError):
    """The worker follows the plans more often than it needs to."""

    code = "RESOURCE_EXHAUSTED"
