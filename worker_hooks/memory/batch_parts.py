"""The parts of a batch whose backward pass may end before its last one, in any framework. Pure.

The model computes the whole batch in parts and keeps the graphs of all. The backward pass goes through them from the
last to the first. Where a deadline passes meanwhile it ends with the part at hand: the first rows of the batch have no
gradient then. Nothing is computed twice, and one part is what a batch is without a deadline.
"""

from __future__ import annotations

from collections.abc import Callable

NUMBER = 4  # of parts, where the rows allow so many (chosen by us)


class BatchParts:
    """How the batch of this worker is divided so that its backward pass can end early.

    Attributes:
        rows_left: of the batch in flight, its first ones: they have no gradient.
    """

    rows_left = 0
    _number = 1

    def __init__(self, late: Callable[[], bool], is_over: Callable[[], bool], tell: Callable[[str], None]) -> None:
        """
        Args:
            late: whether this worker has been late lately, so that its next batch is to have parts.
            is_over: whether the deadline of the batch in flight has passed.
            tell: gets a sentence for people: why this script's batches cannot end early.
        """
        self._late, self._is_over, self._tell = late, is_over, tell
        self._told: set[str] = set()

    def begin(self) -> None:
        """A batch begins."""
        self.rows_left = 0
        self._number = NUMBER if not self._told and self._late() else 1

    def number(self) -> int:
        """Parts of the batch in flight, or fewer where it has too few rows; 1: it is computed whole."""
        return self._number

    def is_over(self) -> bool:
        """Whether the deadline has passed, and the batch in flight may end early."""
        return not self._told and self._is_over()

    def left(self, rows: int) -> None:
        """The first `rows` rows of the batch in flight have no gradient."""
        self.rows_left = rows

    def refuse(self, reason: str) -> None:
        """The batches of this script cannot end early, for this `reason`: it is told once. They are whole from now on,
        and the one in flight runs to its end."""
        self._number = 1
        if reason not in self._told:
            self._told.add(reason)
            self._tell(reason)
