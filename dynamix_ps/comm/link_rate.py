"""The rate of a link, by echoes of several sizes, and what it makes of the size of buckets. Pure."""

from __future__ import annotations

from collections.abc import Callable

_ROUND_TRIPS = 5
_MOST_REPEATS = 6
_AGREEMENT = 1.1  # ratio of two times that count as equal
_SMALLEST_ECHO_BYTES = 64 * 1024
_LARGEST_ECHO_BYTES = 16 * 1024 * 1024
_LONG_ECHO_S = 0.02  # then half of the echo exceeds the burst of a token bucket, usually 4 ms of its rate
_BUCKET_S = 1e-3  # on a link: several times what one more sum costs a worker
_LONG_ECHO_ROUND_TRIPS = 2  # and TCP's first round trips, in which it sends little, do not count much


def measure_pair(echo: Callable[[int], float]) -> tuple[float, float]:
    """(bytes per second one way, round trip in seconds) between a worker and a server.

    The rate is the slope between two sizes of echoes, so that neither the round trip nor the burst of a token bucket
    counts. Sizes double until an echo lasts long enough.

    Args:
        echo: sends so many bytes, receives as many when the server has all, and returns the seconds.
    """
    round_trip_s = min(echo(1) for _ in range(_ROUND_TRIPS))
    long_s = max(_LONG_ECHO_S, _LONG_ECHO_ROUND_TRIPS * round_trip_s)
    size = _SMALLEST_ECHO_BYTES
    shorter_s, longer_s = _echo_s(echo, size), _echo_s(echo, 2 * size)
    while longer_s - round_trip_s < long_s and 2 * size < _LARGEST_ECHO_BYTES:
        size *= 2
        shorter_s, longer_s = longer_s, _echo_s(echo, 2 * size)
    # After a burst the second half of an echo takes longer than the first. If not, the shorter echo was delayed.
    second_half_s = max(longer_s - shorter_s, (longer_s - round_trip_s) / 2, longer_s / 4)
    return 2 * size / second_half_s, round_trip_s


def _echo_s(echo: Callable[[int], float], size_bytes: int) -> float:
    """The shortest of several echoes. A busy machine delays some: there are more until the two shortest agree."""
    times_s = [echo(size_bytes), echo(size_bytes)]
    while len(times_s) < _MOST_REPEATS and sorted(times_s)[1] > _AGREEMENT * min(times_s):
        times_s.append(echo(size_bytes))
    return min(times_s)


def bucket_floor_bytes(rate_bytes_per_s: float) -> int:
    """From how many bytes on a buffer is worth a sum of its own, on links of this rate."""
    return round(rate_bytes_per_s * _BUCKET_S)
