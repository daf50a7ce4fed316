"""Which gradients travel together. Pure.

Buckets are small enough that most of them leave while backward still runs, and large enough that a sum costs little
beside its bytes. The trailer is in a bucket of its own, unless there is only one: no gradient waits for it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from dynamix_ps.errors import TrainingError

_PARTS = 8


def bucket_layout(
    sizes_bytes: Sequence[int], kinds: Sequence[Hashable], most_bytes: int, least_bytes: int
) -> list[list[int]]:
    """Numbers of the parameters in each bucket, last layers first: in the order in which backward reaches them.

    A bucket is closed when it has an eighth of all bytes, or what `most_bytes` and `least_bytes` make of that. The last
    one has the trailer, and no parameter if there are others.

    Args:
        sizes_bytes: of every trainable parameter.
        kinds: type and device of every parameter; a bucket has one kind, but for parameters without elements.
        most_bytes: a bucket with so many is closed.
        least_bytes: one with fewer is not worth a sum of its own, if that is not more than `most_bytes`.

    Raises TrainingError when there is no parameter.
    """
    full = min(most_bytes, max(least_bytes, sum(sizes_bytes) // _PARTS))
    groups: list[list[int]] = []
    filled = 0
    for number in sorted(range(len(sizes_bytes)), key=lambda one: (sizes_bytes[one] > 0, one), reverse=True):
        size = sizes_bytes[number]
        if groups and not size:  # no data plane sums an empty buffer
            alike = [group for group in groups if kinds[group[0]] == kinds[number]]
            (alike or groups)[-1].append(number)
        elif groups and filled < full and kinds[groups[-1][0]] == kinds[number]:
            groups[-1].append(number)
            filled += size
        else:
            groups.append([number])
            filled = size
    if not groups:
        raise TrainingError("the model has no parameter that requires a gradient, so there is nothing to train")
    return groups if len(groups) == 1 else [*groups, []]
