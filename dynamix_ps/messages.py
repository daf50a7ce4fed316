"""What travels between a worker's hook, the arbitrator and the policies: plain frozen values."""

from __future__ import annotations

import math
from dataclasses import dataclass

NAN = math.nan


@dataclass(frozen=True, slots=True)
class Plan:
    """One batch size per worker (index = rank), in force from one iteration on all workers."""

    version: int
    batch_sizes: tuple[int, ...]

    @property
    def global_batch(self) -> int:
        return sum(self.batch_sizes)


@dataclass(frozen=True, slots=True)
class WindowRecord:
    """What one worker saw over one window of iterations. Unknown values are NaN, never 0.

    The three times are totals over the window and cover it: compute_s + push_pull_s + wait_s + input_s
    is duration_s up to bookkeeping. Who arrives last at the sum waits only for the network, so
    push_pull_s is the smallest exposed wait among the workers and wait_s is what this worker waited
    beyond it, for others.
    """

    rank: int
    window: int  # counts from 0
    first_iteration: int
    iterations: int
    plan_version: int
    batch_size: int  # planned b_i
    samples: int  # really processed by this worker
    duration_s: float
    compute_s: float
    push_pull_s: float
    wait_s: float
    input_s: float
    loss: float  # mean over this worker's samples
    accuracy: float  # fraction of this worker's samples, NaN if the script does not tell
    global_samples: int
    global_loss: float
    global_accuracy: float
    grad_sq_local: float  # mean over the window of |g_i|^2, this worker's mean gradient
    grad_sq_global: float  # mean over the window of |g|^2, the weighted global gradient
    grad_norm_std: float  # std over the window of |g_i|, divided by its mean
    bytes_pushed: int
    cpu_ratio: float = NAN  # CPU seconds of the training process per wall second
    memory_bytes: float = NAN  # resident set
    retransmits_per_s: float = NAN
    flagged: bool = False  # contains a pause (evaluation, checkpoint, stall): not to be learned from


@dataclass(frozen=True, slots=True)
class Registration:
    """Who a worker is. `incarnation` is new for every process, so a zombie cannot speak for its successor."""

    rank: int
    incarnation: str
    host: str
    pid: int
    plan: Plan  # the plan it holds now (version 0, or the one of a checkpoint)


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """What the arbitrator last heard of a worker."""

    rank: int
    iteration: int
    silent_s: float
    alive: bool
