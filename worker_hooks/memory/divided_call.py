"""A call of a model whose batch is computed in parts: what must hold for that to be exact, in any framework."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from dynamix_ps.errors import TrainingError

PLAIN = (type(None), bool, int, float, str)  # outputs that are no arrays
SAME = 1e-3  # difference between two runs of one forward pass, relative to the largest output (chosen by us)


class OutputParts:
    """What a model returns for the parts of a batch.

    Attributes:
        kind: what the batch is divided into, and
        or_else: what else a user may do about an error; the end of a sentence.
    """

    kind: ClassVar[str] = "micro-batches"
    or_else: ClassVar[str] = ", or raise at_once"

    def __init__(self, model: object, array: type[Any], concatenated: Callable[[tuple[Any, ...]], Any]) -> None:
        """`array`: type of the framework's arrays; `concatenated` makes one of several."""
        self._name = type(model).__name__
        self._array, self._concatenated = array, concatenated

    def check(self, outputs: Sequence[Any], samples: int) -> None:
        """Raises TrainingError unless every output has one row per sample."""
        for one in outputs:
            is_array = isinstance(one, self._array)
            if isinstance(one, PLAIN) or (is_array and tuple(one.shape[:1]) == (samples,)):
                continue
            got = f"an output of shape {tuple(one.shape)}" if is_array else type(one).__name__
            raise TrainingError(
                f"{self._name} returned {got} for {samples} samples, and {self.kind} can only be put together where "
                "every output has one row per sample; return the outputs and compute the loss of the whole batch in "
                f"the script{self.or_else}"
            )

    def joined(self, parts: tuple[Any, ...]) -> Any:
        """One output of the whole batch."""
        if isinstance(parts[0], self._array):
            if any(one.shape[1:] != parts[0].shape[1:] for one in parts):
                raise TrainingError(
                    f"{self._name} returned outputs of the shapes {', '.join(str(tuple(one.shape)) for one in parts)} "
                    f"for the {self.kind} of one batch; only the first dimension may follow the samples: pad the "
                    f"others{self.or_else}"
                )
            return self._concatenated(parts)
        if any(one != parts[0] for one in parts):
            raise TrainingError(
                f"{self._name} returned different values for the {self.kind} of one batch "
                f"({', '.join(map(repr, parts))}), and only arrays can be put together; return an array with one row "
                f"per sample{self.or_else}"
            )
        return parts[0]


def indivisible(model: object, samples: int, arrays: str) -> TrainingError:
    """The error for a call whose `arrays`, as the framework calls them, have other rows than samples."""
    return TrainingError(
        f"this batch of {samples} samples exceeds at_once, but none of the {arrays} that the script gives to "
        f"{type(model).__name__} has {samples} rows, so it cannot be divided into micro-batches; call the model with "
        "the whole batch in the first dimension, or raise at_once"
    )


def weights_changed(model: object, step: str) -> TrainingError:
    """The error for a `step` before the backward pass."""
    return TrainingError(
        f"the weights of {type(model).__name__} changed between its forward pass and run.backward(), which repeats it "
        f"in micro-batches; call {step} after all losses of these outputs"
    )


def not_repeatable(model: object, causes: str, advice: str) -> TrainingError:
    """The error for a forward pass that computes something else the second time."""
    return TrainingError(
        f"{type(model).__name__} computes something else when its forward pass is repeated for the same samples, so "
        f"micro-batches cannot be exact: {causes}; {advice}"
    )
