"""Finds out whether workers compute whole tiles of samples, and fills the last tile. Pure.

Hardware computes whole tiles: 33 samples can take as long as 64 (sim/cluster/effects/tiles.py). Time over batch size is
then a staircase, and a size just above a step pays for samples that it does not have. For each worker, two models of
the time t at size b are compared over the newest sizes that it has run:

    line        t = f + s b
    staircase   t = f + s b + q (b rounded up to the tile - b)        for each of TILES

Both minimise relative errors. With n sizes, the evidence for a tile is (n - 3) / 2 log(errors of the line / errors of
the staircase), less the log of the number of TILES, less DOUBT. A tile is likely where that is above 0, the line errs
by EFFECT or more, the staircase leaves at most the part LEFT of its squared errors, most of the time per sample comes
in tiles (q >= PART s), and APART sizes lie above the lowest step and below the highest one. It is found if it is likely
in two searches in a row. A worker is searched after a new size; where there are many workers, they take turns.

A time that differs by JUMP or more from earlier ones at the same size shows a new speed; then all earlier times are
forgotten. What has been found stays, because full tiles show nothing of the stairs, and hardware does not change while
training runs; unless another tile is found.

Sizes are rounded up to full tiles: the samples that this adds cost little. All of this is chosen by us.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dynamix_ps.apportion import Whole
from dynamix_ps.policy.model.compute_times import JUMP

TILES = (16, 32, 64, 128, 256)  # samples
KEPT = 24  # sizes per worker, the newest
FEWEST = 6  # sizes
NEWEST = 0.3  # weight of the newest window in the time at its size
EFFECT = 0.03  # root of the mean square of the line's relative errors
SCATTER = 0.005  # of times, relative; smaller errors count as this
LEFT = 0.1  # of the line's squared errors, at most
PART = 0.5
APART = 3  # sizes
SEARCHED = 8  # workers per window; more of them take turns
DOUBT = 4.0  # log odds against tiles, beforehand

_TILES = np.array(TILES)

Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]


class TileFinder:
    """The tiles of all workers, shape (workers,) or (environments, workers). `samples` is 1 where none was found."""

    def __init__(self, *shape: int) -> None:
        self.samples: Whole = np.ones(shape, dtype=np.int64)
        # of every worker in every environment, in one row
        self._found = self.samples.reshape(-1)  # the same array as `samples`
        count, workers = self._found.size, shape[-1]
        self._worker = np.arange(count)
        self._turns = -(-workers // SEARCHED)
        self._its_turn = self._worker % workers % self._turns
        self._turn = 0
        self._sizes, self._times_s = np.zeros((2, KEPT, count))  # 0: empty
        self._seen = np.zeros(count, dtype=np.int64)  # distinct sizes
        self._likely = self._found.copy()  # in the last search
        self._due = np.zeros(count, dtype=np.bool_)  # new sizes since the last search

    def forget(self, who: Mask) -> None:
        """Forget some workers, (..., workers)."""
        who = who.reshape(-1)
        self._found[who] = self._likely[who] = 1
        self._sizes[:, who] = 0.0
        self._seen[who] = 0
        self._due[who] = False

    def observe(self, sizes: Array, times_s: Array, seen: Mask) -> None:
        """Samples and computing seconds per iteration of every worker in a window; only whole sizes above 0 count."""
        sizes, times_s, seen = sizes.reshape(-1), times_s.reshape(-1), seen.reshape(-1)
        seen = seen & (sizes == np.rint(sizes)) & (sizes > 0)
        same = self._sizes == sizes  # in at most one slot of a worker
        slot = same.argmax(axis=0)
        again = np.flatnonzero(seen & same[slot, self._worker])
        if again.size:
            slot, time_s = slot[again], times_s[again]
            before_s = self._times_s[slot, again]
            changed = np.abs(time_s / before_s - 1) > JUMP
            self._times_s[slot, again] = before_s + NEWEST * (time_s - before_s)
            seen[again] = changed
            if changed.any():
                self._sizes[:, again[changed]] = 0.0
                self._seen[again[changed]] = 0
        fresh = np.flatnonzero(seen)
        if fresh.size:
            slot = self._seen[fresh] % KEPT
            self._sizes[slot, fresh], self._times_s[slot, fresh] = sizes[fresh], times_s[fresh]
            self._seen[fresh] += 1
            self._due[fresh] = True
        self._turn = (self._turn + 1) % self._turns
        which = np.flatnonzero(self._due & (self._seen >= FEWEST) & (self._its_turn == self._turn))
        if which.size:
            self._due[which] = False
            self._find(which)

    def filled(self, sizes: Whole, high: Whole) -> Whole:
        """The sizes rounded up to full tiles, except where that is above `high`."""
        up = -(-sizes // self.samples) * self.samples
        return np.where(up <= high, up, sizes)

    def _find(self, which: Whole) -> None:
        """Look for the tiles of some workers."""
        likely = self._search(which)
        again = (likely > 1) & (likely == self._likely[which])
        if again.any():
            self._found[which] = np.where(again, likely, self._found[which])
        self._likely[which] = likely

    def _search(self, which: Whole) -> Whole:
        """The likely tiles of some workers, 1 where none is likely, by the normal equations of the two models."""
        kept = self._sizes[:, which]
        there = kept > 0
        sizes, weight = np.where(there, kept, 1.0), there / np.where(there, self._times_s[:, which], 1.0)
        count, tiles = there.sum(axis=0), _TILES[:, None, None]
        line = np.stack((weight, sizes * weight, there))
        (uu, uv, uy), (_, vv, vy), (_, _, yy) = np.einsum("apw,bpw->abw", line, line)
        whole = uu * vv - uv**2
        whole = np.where(whole > 1e-9 * uu * vv, whole, np.inf)  # infinite: sizes that hardly differ
        slope = uu * vy - uv * uy
        by_line = yy - ((vv * uy - uv * vy) * uy + slope * vy) / whole
        errs = by_line >= count * EFFECT**2
        if not errs.any():
            return np.ones_like(which)

        full = np.ceil(sizes / tiles)  # (tiles, sizes, workers)
        padding = (full * tiles - sizes) * weight
        zu, zv, zy = np.einsum("tpw,bpw->btw", padding, line)
        zz = np.einsum("tpw,tpw->tw", padding, padding)
        along_u, along_v = (vv * zu - uv * zv) / whole, (uu * zv - uv * zu) / whole
        left = zy - along_u * uy - along_v * vy
        height = left / np.maximum(zz - along_u * zu - along_v * zv, 1e-12)  # q
        by_stairs = np.maximum(by_line - height * left, 0.0)
        per_sample_s = slope / whole - height * along_v  # s
        fits = errs & (by_stairs <= LEFT * by_line) & (height > 0) & (height >= PART * per_sample_s)
        if not fits.any():
            return np.ones_like(which)

        lowest, highest = np.where(there, kept, np.inf).min(axis=0), kept.max(axis=0)
        above = (there & (full > np.ceil(lowest / _TILES[:, None])[:, None])).sum(axis=1)
        below = (there & (full < np.ceil(highest / _TILES[:, None])[:, None])).sum(axis=1)
        fits &= np.minimum(above, below) >= APART
        floor = count * SCATTER**2
        evidence = (count - 3) / 2 * np.log((by_line + floor) / (by_stairs + floor)) - np.log(len(TILES)) - DOUBT
        evidence = np.where(fits, evidence, -np.inf)
        return np.where(evidence.max(axis=0) > 0, _TILES[evidence.argmax(axis=0)], 1)
