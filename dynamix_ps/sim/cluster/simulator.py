"""Synchronous training in many simulated clusters at once: one call simulates one window of k iterations in each.

    sizes -> times (cost.py, traces.py) -> progress (learning.py) -> measurements (measure.py)

The result is the WindowArrays of a live cluster, so state, rewards and policies are the same code in both.
Deterministic: the same parameters, generator and sizes give the same bits.
"""

from __future__ import annotations

import numpy as np

from dynamix_ps.apportion import Whole
from dynamix_ps.messages import NAN
from dynamix_ps.policy.base import View
from dynamix_ps.policy.window_arrays import WindowArrays
from dynamix_ps.sim.cluster import learning, measure
from dynamix_ps.sim.cluster.cost import WindowTimes, iteration_times
from dynamix_ps.sim.cluster.parameters import Mask, Parameters, Reals
from dynamix_ps.sim.cluster.traces import Conditions
from dynamix_ps.sim.cluster.views import views_of


class Simulator:
    """E clusters of W workers. All public arrays are (E,), sizes (E, W).

    Attributes:
        sizes: the plan in force.
        time_s: seconds of training since the start of each run (float64).
        progress: sum of noiseless steps so far (learning.py); true_progress: that of the last window.
        test_accuracy: on a test set so large that it adds no noise.
        done: whether this run has reached the target accuracy.
        windows: closed so far; samples: processed so far.
        times: how the last window's iterations spent their time; None before the first window.
        conditions: those of the coming window.
    """

    def __init__(self, parameters: Parameters, rng: np.random.Generator) -> None:
        self.parameters = parameters
        self._rng = rng
        self.conditions = Conditions(parameters, rng)
        shape = parameters.environments
        self.sizes: Whole = parameters.initial.copy()
        self.time_s = np.zeros(shape)
        self.samples = np.zeros(shape)
        self.windows = np.zeros(shape, dtype=np.int64)
        self.progress: Reals = np.zeros(shape, dtype=np.float32)
        self.true_progress: Reals = np.zeros(shape, dtype=np.float32)
        self.done: Mask = np.zeros(shape, dtype=bool)
        self.times: WindowTimes | None = None
        self._smoothed_batch = parameters.reference_batch
        self._versions = np.zeros(shape, dtype=np.int64)
        self._ones = np.ones(parameters.initial.shape, dtype=np.float32)
        self._report: WindowArrays | None = None

    @property
    def excess(self) -> Reals:
        """Loss of the weights beyond the last one, over that at the start."""
        return learning.excess_loss(self.parameters, self.progress)

    @property
    def noise_scale(self) -> Reals:
        """N in samples."""
        return learning.noise_scale(self.parameters, self.excess)

    @property
    def test_accuracy(self) -> Reals:
        return learning.test_accuracy(self.parameters, self.excess, self._smoothed_batch)

    @property
    def truncated(self) -> Mask:
        """Whether the run has reached its longest length, `max_windows`."""
        return self.windows >= self.parameters.max_windows

    def restart(self, which: Mask) -> None:
        """Begin a new run in some environments, on the same clusters."""
        self.sizes = np.where(which[:, None], self.parameters.initial, self.sizes)
        for array in (
            self.time_s,
            self.samples,
            self.windows,
            self.progress,
            self.true_progress,
            self.done,
            self._versions,
        ):
            array[which] = 0
        self._smoothed_batch = np.where(which, self.parameters.reference_batch, self._smoothed_batch)
        self.conditions.replace(self.parameters, which)

    def replace(self, which: Mask, others: Parameters) -> None:
        """Begin new runs on the clusters of `others`, one per environment in `which`, in order."""
        self.parameters = self.parameters.replaced(which, others)
        self.restart(which)

    def step(self, sizes: Whole) -> WindowArrays:
        """Train one window in every environment with these sizes; return its measurements.

        Raises:
            ValueError: sizes of another shape or outside the bounds.
        """
        parameters = self.parameters
        if sizes.shape != parameters.initial.shape:
            raise ValueError(f"sizes have shape {sizes.shape}, this simulator needs {parameters.initial.shape}")
        if ((sizes < parameters.low) | (sizes > parameters.high)).any():
            raise ValueError("sizes lie outside the bounds of their workers; clip them to parameters.low and high")
        self._versions += (sizes != self.sizes).any(axis=-1)
        self.sizes = sizes.astype(np.int64)
        real = sizes.astype(np.float32)
        draws = self._rng.standard_normal((measure.DRAWS, *sizes.shape), dtype=np.float32)
        unit_noise = self._rng.standard_normal((2, sizes.shape[0]), dtype=np.float32)
        times = iteration_times(parameters, self.conditions, real, draws[measure.COMPUTE])
        training = self._train(real.sum(axis=-1), unit_noise[0])
        self._report = self._measure(times, training, real, draws, unit_noise[1])
        self._pass(times)
        return self._report

    def views(self) -> list[View]:
        """The last window of every environment, as the arbitrator of a live cluster gives it to a policy.

        Raises:
            ValueError: before the first `step`.
        """
        if self._report is None or self.times is None:
            raise ValueError("views() returns the last window, but there is none yet; call step() first")
        pushed = (self.times.bytes * self.parameters.window).astype(np.int64)
        return views_of(self._report, pushed, self.windows, self._versions)

    def _train(self, batch: Reals, unit_noise: Reals) -> measure.TrainingState:
        """Train k iterations, with the noise scale at the start of the window."""
        parameters, window = self.parameters, self.parameters.iterations
        batch = np.maximum(batch, 1)
        noise = self.noise_scale
        steps = window * learning.step_progress(parameters, noise, batch)
        gained = steps * (1 + learning.PROGRESS_SPREAD * unit_noise)
        before, self.progress = self.progress, np.maximum(self.progress + gained, 0)
        self.true_progress = self.progress - before
        self.samples += window * batch
        halfway = learning.excess_loss(parameters, before + 0.5 * self.true_progress)
        training = measure.TrainingState(
            halfway, parameters.gradient_sq * halfway, noise, measure.epoch(parameters, self.samples)
        )
        self._smoothed_batch = learning.smoothed_batch(parameters, self._smoothed_batch, batch)
        self.done = self.done | (self.test_accuracy >= parameters.target_accuracy)
        return training

    def _pass(self, times: WindowTimes) -> None:
        """Advance time and conditions by the duration of the window."""
        elapsed_s = times.iteration_s * self.parameters.iterations
        self.time_s += elapsed_s
        self.windows += 1
        self.times = times
        epoch = measure.epoch(self.parameters, self.samples)
        self.conditions.advance(self.time_s.astype(np.float32), epoch, elapsed_s, times.load)

    def _measure(
        self, times: WindowTimes, training: measure.TrainingState, sizes: Reals, draws: Reals, unit_noise: Reals
    ) -> WindowArrays:
        parameters, conditions = self.parameters, self.conditions
        iterations = parameters.iterations
        k = iterations[:, None]
        batch = np.maximum(sizes.sum(axis=-1), 1)
        duration_s = times.iteration_s * iterations
        loss, accuracy = measure.batches(parameters, training, sizes, draws[measure.LOSS])
        norms = measure.gradients(parameters, training, sizes, draws, unit_noise)
        rate, retransmits, rtt_s, busy = measure.links(parameters, conditions, times, draws[measure.RETRANSMITS])
        cpu, cores, throttled, memory, memory_use, gpu = measure.machines(parameters, conditions, times, sizes)
        server_cpu, unread, unsent = measure.servers(parameters, times)
        both = measure.both_sides(parameters)
        return WindowArrays(
            present=np.ones(sizes.shape, dtype=bool),
            low=parameters.low,
            high=parameters.high,
            planned=self.sizes,
            samples=sizes * k,
            worker_duration_s=duration_s[:, None] * self._ones,
            compute_s=times.compute_s * k,
            push_pull_s=(times.push_pull_s * iterations)[:, None] * self._ones,
            wait_s=times.wait_s * k,
            loss=loss,
            accuracy=accuracy,
            accuracy_std=np.sqrt(accuracy * (1 - accuracy) / np.maximum(sizes, 1)),
            grad_sq_local=norms.local,
            grad_norm_std=norms.spread,
            cpu_ratio=cpu,
            cpu_cores=cores,
            throttled=throttled,
            memory_bytes=memory,
            memory_ratio=memory_use,
            gpu_utilisation=gpu,
            gpu_memory_ratio=memory_use * np.where(parameters.gpu, 1, np.float32(NAN))[:, None],
            push_bytes_per_s=rate,
            pull_bytes_per_s=rate,
            retransmits_per_s=retransmits,
            rtt_s=rtt_s,
            push_busy=busy,
            pull_retransmits_per_s=retransmits * both,
            pull_busy=busy * both,
            push_difference=both - 1,
            first_iteration=self.windows * iterations,
            iterations=iterations,
            duration_s=duration_s,
            global_loss=(loss * sizes).sum(axis=-1) / batch,
            global_accuracy=(accuracy * sizes).sum(axis=-1) / batch,
            grad_sq_global=norms.whole,
            noise_variance=norms.variance,
            noise_signal=norms.signal,
            epoch=training.epoch,
            trained_ratio=NAN,  # the end is not known in advance
            lr_ratio=NAN,
            server_cpu=server_cpu,
            server_unread_bytes=unread,
            server_unsent_bytes=unsent,
            lr_rule=parameters.lr_rule,
            reference_batch=parameters.reference_batch,
        )
