"""How far a joiner is behind the leader whose sums it takes. Pure."""

from __future__ import annotations

_AT_MOST_BEHIND = 1  # notes


class CatchingUp:
    """One thread may call `keep` and `note`, and another one the rest.

    Args:
        most_bytes: how much the leader keeps before the joiner is too late to catch up.

    Attributes:
        is_ready: the joiner may enter: it has caught up, or never will. Once true, this stays true.
        is_over: the joiner is gone.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._given_bytes = self._sent_bytes = self._notes = self._taken = 0
        self.is_ready = self.is_over = False

    @property
    def is_too_late(self) -> bool:
        """Whether more is kept than may be."""
        return self._given_bytes - self._sent_bytes > self._most_bytes

    def keep(self, size_bytes: int) -> None:
        """There is so much more to send."""
        self._given_bytes += size_bytes
        if self.is_too_late:
            self.is_ready = True

    def note(self) -> None:
        """There is one more note to take."""
        self._notes += 1

    def sent(self, size_bytes: int) -> None:
        """So much is not kept any more."""
        self._sent_bytes += size_bytes

    def taken(self, notes: int) -> None:
        """The joiner has taken so many notes."""
        self._taken += notes
        if self._notes - self._taken <= _AT_MOST_BEHIND:
            self.is_ready = True

    def end(self) -> None:
        """The joiner is gone."""
        self.is_ready = self.is_over = True
