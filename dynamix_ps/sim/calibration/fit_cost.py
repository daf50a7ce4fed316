"""Fits the cost model (cost.py) to the windows of recorded runs. Pure.

The unknowns are fixed_s, per_sample_s and the exposed network time of each worker, and one jitter. They fit iteration
times, push-pull times and what every worker needs on its own (series.py). The fit cannot tell overlap from bandwidth,
so overlap is 0, and a link's rate is the one that gives its exposed time, wherever the servers of the run were. Weights
and priors are chosen by us.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dynamix_ps.sim.calibration.fitting import Array, Prior, robust_fit, with_values
from dynamix_ps.sim.calibration.series import Series
from dynamix_ps.sim.cluster.cost import LAST_PIECES, WindowTimes, iteration_times
from dynamix_ps.sim.cluster.parameters import Parameters, parameters_of
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.scenario.load import Scenario

ITERATION, NEED, PUSH_PULL = 0.05, 0.15, 0.05  # expected error of a window, relative to its iteration time
FIXED_PART = 0.2  # of what a worker needs: start of the fit
JITTER = 0.05
SPREAD = (2.0, 1.0, 1.0, 1.5)  # spread of the prior, in logarithms: fixed_s, per_sample_s, exposed time, jitter
WIDEST = 7.0  # largest distance from the start, in logarithms
BANDWIDTH_FACTOR = 100.0  # times the needed bandwidth: servers delay no worker here


def predict_times(scenario: Scenario, sizes: Array) -> WindowTimes:
    """Mean times of an iteration with these sizes (T, W), without bursts, events, drift and warm-up."""
    steady = scenario.model_copy(update={"trace": (), "bursts": (), "drift": 0.0, "warm_up": 1.0})
    return _times(parameters_of((steady,)), sizes)


def fit_cost(scenario: Scenario, runs: Sequence[Series]) -> Scenario:
    """The scenario with workers, links and jitter fitted to these runs of its cluster."""
    n = scenario.n_workers
    latency_s = np.array([worker.latency_s for worker in scenario.each_worker])
    sizes, need_s = _all(runs, "sizes"), _all(runs, "need_s")
    iteration_s, push_pull_s = _all(runs, "iteration_s"), _all(runs, "push_pull_s")
    network_s = max(float(np.median(push_pull_s)), float(latency_s.max()))
    bytes_per_s = BANDWIDTH_FACTOR * n * scenario.model_bytes / network_s
    steady = scenario.model_copy(
        update={"servers": scenario.servers.model_copy(update={"bytes_per_s": bytes_per_s}), "overlap": 0.0}
    )
    base = parameters_of((steady,))

    def values(x: Array) -> dict[str, Any]:
        fixed_s, per_sample_s, exposed_s = np.exp(x[:-1]).reshape(3, n)
        transfer_s = np.maximum(exposed_s / (1 + LAST_PIECES) - latency_s, 1e-6)
        link = scenario.model_bytes / transfer_s
        return {"fixed_s": fixed_s, "per_sample_s": per_sample_s, "link_bytes_per_s": link, "jitter": np.exp(x[-1])}

    def residuals(x: Array) -> Array:
        times = _times(with_values(base, values(x)), sizes)
        needs = times.sustained_s + np.exp(x[2 * n : 3 * n])
        return np.concatenate(
            (
                np.log(times.iteration_s / iteration_s) / ITERATION,
                (times.push_pull_s - push_pull_s) / iteration_s / PUSH_PULL,
                np.ravel(np.log(needs / need_s)) / NEED,
            )
        )

    typical_s, typical_size = np.median(need_s, axis=0), np.median(sizes, axis=0)
    per_sample_s = (1 - FIXED_PART) * typical_s / typical_size
    start = np.log(np.concatenate((FIXED_PART * typical_s, per_sample_s, np.full(n, network_s), [JITTER])))
    spread = np.repeat(SPREAD, (n, n, n, 1))
    found = values(robust_fit(residuals, Prior(start, spread, start - WIDEST, start + WIDEST)))
    workers = tuple(
        worker.model_copy(
            update={
                "fixed_s": float(found["fixed_s"][rank]),
                "per_sample_s": float(found["per_sample_s"][rank]),
                "bytes_per_s": float(found["link_bytes_per_s"][rank]),
            }
        )
        for rank, worker in enumerate(steady.each_worker)
    )
    return steady.model_copy(update={"workers": workers, "jitter": float(found["jitter"])})


def _times(parameters: Parameters, sizes: Array) -> WindowTimes:
    steady = Conditions(parameters, np.random.default_rng(0))  # without bursts and drift nothing is drawn
    real = sizes.astype(np.float32)
    return iteration_times(parameters, steady, real, np.zeros_like(real))


def _all(runs: Sequence[Series], name: str) -> Array:
    return np.concatenate([getattr(run, name) for run in runs])
