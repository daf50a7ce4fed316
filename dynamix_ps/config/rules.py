"""Rules between keys of a cluster file, which no single field can check. Pure."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from dynamix_ps.config.host_rules import host_findings
from dynamix_ps.config.policies import POLICIES, entry_of
from dynamix_ps.config.resolve import with_places
from dynamix_ps.config.schema import MAX_GLOBAL_BATCH, Config, PolicySection
from dynamix_ps.config.validate import BrokenRule
from dynamix_ps.config.variables import allowed_in_cluster_file
from dynamix_ps.config.yaml_lines import Path

# How many workers there are, which is known even when a key of one of them is wrong.
_COUNT: Path = ("cluster", "workers", "count")
SHORTEST_WINDOW = 6  # iterations, where workers choose their own sizes


def findings(config: Config) -> Iterator[BrokenRule]:
    """Every broken rule of a configuration whose fields are valid one by one."""
    yield from _batch_sizes(config)
    yield from _memory(config)
    yield from _policy(config)
    yield from _without_arbitrator(config)
    yield from _timeouts(config)
    yield from _cluster(config)
    yield from _learning_rate(config)
    yield from _elastic(config)
    yield from host_findings(with_places(config))
    yield from _environment(config)


def _bound_paths(config: Config, rank: int) -> tuple[Path, Path]:
    worker = config.cluster.workers[rank]
    here: Path = ("cluster", "workers", rank)
    return (
        ("batch", "min") if worker.min is None else (*here, "min"),
        ("batch", "max") if worker.max is None else (*here, "max"),
    )


def _batch_sizes(config: Config) -> Iterator[BrokenRule]:
    if config.batch.min > config.batch.max:
        yield BrokenRule(
            ("batch", "min"), f"must not exceed batch.max = {config.batch.max}", config.batch.min, (("batch", "max"),)
        )
    for rank, worker in enumerate(config.cluster.workers):
        low, high = config.bounds(rank)
        uses = _bound_paths(config, rank)
        own = next((path for path in uses if path[0] == "cluster"), None)
        here: Path = ("cluster", "workers", rank, "batch")
        if low > high:
            if own is not None:
                got = low if own[-1] == "min" else high
                yield BrokenRule(own, f"leaves no size between {low} and {high} for worker {rank}", got, uses)
        elif not low <= worker.batch <= high:
            yield BrokenRule(here, f"must lie within {low}..{high}, the bounds of worker {rank}", worker.batch, uses)
    places = with_places(config)
    largest = sum(places.bounds(rank)[1] for rank in range(len(places.cluster.workers)))
    if largest > MAX_GLOBAL_BATCH:
        message = f"lets the global batch grow beyond {MAX_GLOBAL_BATCH}, where its sum is no longer exact"
        yield BrokenRule(("batch", "max"), message, config.batch.max, (("cluster", "workers"),))


def _memory(config: Config) -> Iterator[BrokenRule]:
    """Trials find out how many samples fit."""
    if config.memory == "auto" and config.batch.unit != "samples":
        message = f"finds out samples, and sizes are in {config.batch.counted}; set at_once, or batch.unit: samples"
        yield BrokenRule(("memory",), message, config.memory, (("batch", "unit"),))


def _policy(config: Config) -> Iterator[BrokenRule]:
    yield from _foreign_keys(config.policy)
    if config.policy.name == "static" and config.policy.sizes is not None:
        yield from _static_sizes(config, config.policy.sizes)
    ppo = config.policy.ppo
    transitions = ppo.windows_per_update * len(config.cluster.workers)
    if config.policy.name == "ppo" and ppo.minibatches > transitions:
        message = f"must not exceed the {transitions} transitions of one update (windows_per_update x workers)"
        uses: tuple[Path, ...] = (("policy", "ppo", "windows_per_update"), _COUNT)
        yield BrokenRule(("policy", "ppo", "minibatches"), message, ppo.minibatches, uses)


def _foreign_keys(policy: PolicySection) -> Iterator[BrokenRule]:
    """Keys under `policy:` that only another policy takes."""
    for key in policy.foreign_keys:
        owners = [name for name, entry in POLICIES.items() if key in entry.keys] or ["package.module:Class"]
        message = f"is only for policy.name: {' or '.join(owners)}; remove it, or choose that policy"
        yield BrokenRule(("policy", key), message, f"policy.name: {policy.name}", (("policy", "name"),))


def _without_arbitrator(config: Config) -> Iterator[BrokenRule]:
    """What a policy that does not decide in the arbitrator cannot have."""
    if entry_of(config.policy.name).central or config.mode == "off":
        return
    here, uses = f"policy.name: {config.policy.name}", (("policy", "name"),)
    if config.mode == "observe":
        message = f"has nobody that could decide beside the workers with {here}; use mode: adapt, or another policy"
        yield BrokenRule(("mode",), message, config.mode, uses)
    if config.window < SHORTEST_WINDOW:
        message = f"must be at least {SHORTEST_WINDOW} with {here}: the workers choose their sizes in four sums"
        yield BrokenRule(("window",), message, config.window, uses)


def _static_sizes(config: Config, sizes: tuple[int, ...]) -> Iterator[BrokenRule]:
    path: Path = ("policy", "sizes")
    workers = len(config.cluster.workers)
    if len(sizes) != workers:
        yield BrokenRule(path, f"needs one size per worker, {workers} in all", list(sizes), (_COUNT,))
        return
    for rank, size in enumerate(sizes):
        low, high = config.bounds(rank)
        if low <= high and not low <= size <= high:
            message = f"must lie within {low}..{high}, the bounds of worker {rank}"
            yield BrokenRule((*path, rank), message, size, _bound_paths(config, rank))


def _timeouts(config: Config) -> Iterator[BrokenRule]:
    limits = config.timeouts
    order = ("rpc_s", "lease_s", "stall_warn_s", "stall_fail_s")
    for smaller, larger in itertools.pairwise(order):
        low, high = getattr(limits, smaller), getattr(limits, larger)
        if low >= high:
            yield BrokenRule(("timeouts", larger), f"must exceed {smaller} = {low:g}", high, (("timeouts", smaller),))
    if limits.job_s is not None and limits.job_s <= limits.launch_s:
        message = f"must exceed launch_s = {limits.launch_s:g}"
        yield BrokenRule(("timeouts", "job_s"), message, limits.job_s, (("timeouts", "launch_s"),))


def _cluster(config: Config) -> Iterator[BrokenRule]:
    cluster = config.cluster
    most = config.data_plane.most_workers
    if most is not None and len(cluster.workers) > most:
        limit = "one worker" if most == 1 else f"at most {most} workers"
        message = f"is for {limit}, the cluster has {len(cluster.workers)}; use byteps"
        yield BrokenRule(("comm",), message, config.comm, (_COUNT,))
    if cluster.port and cluster.port == cluster.arbitrator_port:
        message = "is already the scheduler's port (cluster.port)"
        yield BrokenRule(("cluster", "arbitrator_port"), message, cluster.arbitrator_port, (("cluster", "port"),))
    if cluster.wire != "float32":
        yield from _wire(config)
    if config.prefetch >= config.window:
        message = f"must be below window = {config.window}, or a plan shows only after the next decision"
        yield BrokenRule(("prefetch",), message, config.prefetch, (("window",),))
    if config.emulation == "none":
        for rank, worker in enumerate(cluster.workers):
            if worker.speed < 1:
                path: Path = ("cluster", "workers", rank, "speed")
                yield BrokenRule(path, "has no effect with emulation: none", worker.speed, (("emulation",),))


def _wire(config: Config) -> Iterator[BrokenRule]:
    """What a wire other than float32 needs."""
    path: Path = ("cluster", "wire")
    if not config.data_plane.uses_network:
        message = f"needs workers that exchange gradients, comm is {config.comm}; remove it"
        yield BrokenRule(path, message, config.cluster.wire, (("comm",),))
    elif config.data_plane.is_ring and config.is_elastic:
        message = "cannot be sent again after a loss over a ring; remove it or elastic.min_workers, or use comm: byteps"
        yield BrokenRule(path, message, config.cluster.wire, (("elastic", "min_workers"), ("comm",)))
    elif config.cluster.wire == "auto" and config.mode != "adapt":
        message = f"needs mode: adapt, as it changes while training runs; mode is {config.mode}"
        yield BrokenRule(path, message, config.cluster.wire, (("mode",),))


def _learning_rate(config: Config) -> Iterator[BrokenRule]:
    if config.lr_rule == "adascale" and len(config.cluster.workers) == 1:
        message = "needs two workers or more, whose gradients tell the noise that it follows; use linear or sqrt"
        yield BrokenRule(("lr_rule",), message, config.lr_rule, (_COUNT,))
    if config.lr == "script" and config.lr_rule != "none":
        message = "has no effect with lr: script; remove it, or use lr: follow"
        yield BrokenRule(("lr_rule",), message, config.lr_rule, (("lr",),))


def _elastic(config: Config) -> Iterator[BrokenRule]:
    """What a job needs that goes on without a lost worker or server."""
    path, least = ("elastic", "min_workers"), config.elastic.min_workers
    yield from _places(config)
    if least is None:
        if config.elastic.restarts:
            message = "needs elastic.min_workers, with which the others go on meanwhile; set it"
            yield BrokenRule(("elastic", "restarts"), message, config.elastic.restarts, (path,))
        return
    workers = config.first_workers
    if 0 < workers < least:
        yield BrokenRule(path, f"must not exceed the number of workers, {workers}", least, (_COUNT,))
    if not config.data_plane.uses_network:
        message = "needs comm: byteps or gloo, with several workers; remove it"
        yield BrokenRule(path, message, least, (("comm",),))
    if config.elastic.join_wait_s >= config.timeouts.stall_fail_s:
        message = f"must be below timeouts.stall_fail_s, {config.timeouts.stall_fail_s:g}, when workers give up to wait"
        yield BrokenRule(
            ("elastic", "join_wait_s"), message, config.elastic.join_wait_s, (("timeouts", "stall_fail_s"),)
        )
    if config.mode == "off":
        message = "needs an arbitrator, which mode: off does without; use mode: adapt, or observe"
        yield BrokenRule(path, message, least, (("mode",),))


def _places(config: Config) -> Iterator[BrokenRule]:
    """Workers that come later."""
    workers, most = config.cluster.workers, config.elastic.max_workers
    path: Path = ("elastic", "max_workers")
    if most is not None and most < len(workers):
        yield BrokenRule(path, f"must not be less than the number of workers, {len(workers)}", most, (_COUNT,))
    later = [rank for rank, worker in enumerate(workers) if worker.later]
    if later and not all(worker.later for worker in workers[later[0] :]):
        message = "must stand behind the workers that the job begins with"
        yield BrokenRule(("cluster", "workers", later[0], "later"), message, True)
    if len(later) == len(workers):
        yield BrokenRule(("cluster", "workers", 0, "later"), "leaves no worker that the job begins with", True)
    if later:
        path = ("cluster", "workers", later[0], "later")
    elif most is None or most <= len(workers):
        return
    got = True if later else most
    if config.elastic.min_workers is None:
        yield BrokenRule(path, "needs elastic.min_workers; set it", got, (("elastic", "min_workers"),))
    if config.policy.sizes is not None:
        uses: tuple[Path, ...] = (("policy", "sizes"),)
        yield BrokenRule(path, "needs a policy that can tell the sizes of more workers; remove policy.sizes", got, uses)


def _environment(config: Config) -> Iterator[BrokenRule]:
    for name, value in config.env.items():
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
            yield BrokenRule(("env", name), "is no name of an environment variable", value)
        elif not allowed_in_cluster_file(name):
            yield BrokenRule(
                ("env", name), "belongs to the launcher, which sets it where it is needed; remove it", value
            )
