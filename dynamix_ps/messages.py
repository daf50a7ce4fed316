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
    bytes_pushed: int  # gradient bytes handed to the data plane
    accuracy_std: float = NAN  # std over the window of this worker's batch accuracy
    noise_variance: float = NAN  # trace of the covariance of one sample's gradient (metrics/noise.py)
    noise_signal: float = NAN  # squared norm of the true gradient
    epoch: float = NAN  # passes over the data at the end of the window
    trained_ratio: float = NAN  # part of the training that the script asked for that is complete, then
    lr_ratio: float = NAN  # the script's own learning rate over the largest it had
    # from the machine
    cpu_ratio: float = NAN  # CPU seconds of the training process per wall second
    cpu_cores: float = NAN  # cores this process may use: affinity and quotas
    throttled: float = NAN  # fraction of time a quota held this process back
    memory_bytes: float = NAN  # resident set
    memory_ratio: float = NAN  # memory in use over the limit that applies here
    gpu_utilisation: float = NAN  # 0..1
    gpu_memory_ratio: float = NAN
    # from the kernel, the connections of the data plane only
    network_source: str = "none"  # ebpf, sockdiag, procfs, none
    network_age_s: float = NAN  # how old the reading was when the window closed
    push_bytes_per_s: float = NAN  # payload acknowledged by the servers
    pull_bytes_per_s: float = NAN  # payload received from the servers
    retransmits_per_s: float = NAN  # segments this worker sent again
    rtt_s: float = NAN  # smoothed round trip of the busiest connection
    push_busy: float = NAN  # fraction of time with data on the way to the servers
    flagged: bool = False  # contains a pause (evaluation, checkpoint, stall): not to be learned from


@dataclass(frozen=True, slots=True)
class SystemSample:
    """The machine as one process sees it, over the time since its last sample. NaN is unknown."""

    cpu_ratio: float = NAN  # CPU seconds of this process per wall second
    cpu_cores: float = NAN  # cores it may use
    throttled: float = NAN  # fraction of time a CPU quota held it back
    memory_bytes: float = NAN  # resident set
    memory_ratio: float = NAN  # memory in use over the limit that applies here
    gpu_utilisation: float = NAN
    gpu_memory_ratio: float = NAN


@dataclass(frozen=True, slots=True)
class Flow:
    """One TCP connection seen from one end. Counters never fall; NaN where the source cannot tell."""

    local: str  # address:port, IPv6 in brackets
    remote: str
    bytes_out: float  # payload the other end has acknowledged
    bytes_in: float
    retransmits: float  # segments sent again
    busy_s: float = NAN  # time during which sent data was not yet acknowledged
    rtt_s: float = NAN
    unsent_bytes: float = NAN  # written, not yet acknowledged
    unread_bytes: float = NAN  # received, not yet read


@dataclass(frozen=True, slots=True)
class RoleReport:
    """What any role tells about its connections and its machine, every second or at the end of a window."""

    name: str  # worker-0, server-1, scheduler
    role: str  # worker, server, scheduler
    rank: int  # of a worker; -1 for others
    host: str
    pid: int
    time_s: float  # unix time of the reading
    network_source: str
    network_age_s: float
    flows: tuple[Flow, ...]
    system: SystemSample


@dataclass(frozen=True, slots=True)
class LinkView:
    """One worker's link to all servers, joined from the reports of both sides. Rates; NaN is unknown."""

    rank: int
    push_bytes_per_s: float = NAN  # as the servers received it
    pull_bytes_per_s: float = NAN  # as the worker acknowledged it to the servers
    push_retransmits_per_s: float = NAN  # segments the worker sent again
    pull_retransmits_per_s: float = NAN  # segments the servers sent again to this worker
    push_rtt_s: float = NAN  # as the worker sees it
    pull_rtt_s: float = NAN  # as the servers see it
    push_busy: float = NAN  # fraction of time with data on the way from worker to servers
    pull_busy: float = NAN  # and back
    push_difference: float = NAN  # (servers' push rate - worker's) / larger of the two; 0 where both sides agree
    source: str = "none"  # of the servers' side
    age_s: float = NAN  # of the older of the two sides
    slow: str = ""  # what holds everybody up here: "compute", "link", or nothing


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server or the scheduler; rates since the window before was closed. NaN is unknown."""

    name: str
    push_bytes_per_s: float = NAN  # received from workers
    pull_bytes_per_s: float = NAN  # sent to workers
    unread_bytes: float = NAN  # waiting to be summed: the server is behind
    unsent_bytes: float = NAN  # waiting for the network: the links are behind
    system: SystemSample = SystemSample()
    source: str = "none"
    age_s: float = NAN


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
