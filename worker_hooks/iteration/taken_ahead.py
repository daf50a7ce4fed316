"""A batch that the script takes before it has trained the one before.

A script that takes two batches in a row, without a backward pass in between, either leaves the first one out or is one
batch ahead: it trains the first one now, and the second one after a third is taken. Only the next loss tells. Until
then the first batch counts as left out. If the loss turns out to be of it, the training goes back to it, and from then
on the newest batch waits for its turn. So every batch has the plan, the weight and the sizes of its own iteration.
"""

from __future__ import annotations

from collections import deque

from dynamix_ps.errors import TrainingError
from worker_hooks.loading.batches import Batch

_ADVICE = "train each batch before the next one is taken: the hook loads batches ahead itself"


class TakenAhead:
    """What is known of the batches that the script has and has not trained.

    Attributes:
        is_usual: the script takes batches one ahead, as far as it has shown.
        is_certain: it has shown so in the loop at hand.
        waiting: the batch that the script has beside the one at hand, and which is next.
        thread: that has asked for the newest batch.
        left_out: the newest batches that seem to be left out, since the last one that was trained.
        doubtful: the newest batch that counts as trained, where the loss may have been of the one before it. The next
            loss may be of it then.
    """

    def __init__(self) -> None:
        self.is_usual = self.is_certain = False
        self.waiting: Batch | None = None
        self.thread: int | None = None
        self.left_out: deque[Batch] = deque(maxlen=2)
        self.doubtful: Batch | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next loss tells which batch is trained."""
        return bool(self.left_out or self.doubtful) or (self.waiting is not None and not self.is_certain)

    def candidates(self, at_hand: Batch) -> list[Batch]:
        """Batches that the next loss may be of, oldest first."""
        before = None if self.doubtful is at_hand else self.doubtful
        batches = [*(self.left_out or [before]), at_hand, self.waiting]
        return [batch for batch in batches if batch is not None]

    def wait(self, batch: Batch) -> None:
        """The script gets `batch` while it has one that is not trained."""
        self.waiting = batch

    def take(self) -> Batch | None:
        """The batch that has waited: it is its turn."""
        batch, self.waiting = self.waiting, None
        return batch

    def goes_back(self, newer: Batch) -> None:
        """The loss is of the batch before `newer`."""
        self.is_usual = self.is_certain = True
        self.waiting = newer

    def begin_loop(self) -> None:
        """The script has no batch of an earlier loop."""
        self.is_certain, self.waiting, self.doubtful = False, None, None
        self.left_out.clear()


def are_alike(one: Batch, other: Batch) -> bool:
    """Whether it makes no difference to the weights which of these iterations a loss counts for."""
    return (one.step.sizes, one.step.spent) == (other.step.sizes, other.step.spent)


def two_ahead(newest: Batch) -> TrainingError:
    """The script has three batches that are not trained."""
    return TrainingError(
        f"the batch of iteration {newest.iteration} was taken before those of the two iterations before it were "
        f"trained; one batch ahead is possible, two are not: {_ADVICE}"
    )


def not_possible(newer: Batch, why: str) -> TrainingError:
    """The script is one batch ahead in a training where that cannot be right."""
    return TrainingError(
        f"the batch of iteration {newer.iteration} was taken before that of iteration {newer.iteration - 1} was "
        f"trained, which does not work {why}; {_ADVICE}"
    )


def not_known(newer: Batch) -> TrainingError:
    """The losses may be of either of two batches, and they differ in size."""
    return TrainingError(
        f"the batches of iterations {newer.iteration - 1} and {newer.iteration} were taken without a backward pass in "
        "between, their sizes differ, and no loss has shown in time which batch it is of; "
        f"{_ADVICE}. To leave a batch out, call run.backward(0 * loss) for it, and no optimizer.step()"
    )


def of_another_thread(newest: Batch) -> TrainingError:
    """A thread of the script takes batches while another one trains."""
    return TrainingError(
        f"the batch of iteration {newest.iteration} was taken by another thread than the one that calls "
        "run.backward(); loop over run.batches() in the thread that trains: the hook loads batches ahead itself"
    )
