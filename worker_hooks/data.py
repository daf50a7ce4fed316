"""What a training is trained on: where its samples come from, and which worker takes which of them."""

from __future__ import annotations

import math
import zlib
from typing import TYPE_CHECKING, Any

from worker_hooks.loading.batches import NOTHING_READ, Batches, BatchStream, Stream, StreamWorker
from worker_hooks.sampling.sampler import GlobalSampler
from worker_hooks.start import check_enough, check_order, check_place, check_unit, of_every_worker

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from worker_hooks.adapter import Adapter
    from worker_hooks.loading.data_source import DataSource
    from worker_hooks.loading.fingerprint import Fingerprint
    from worker_hooks.plans import Plans
    from worker_hooks.saved.checkpoint import Position
    from worker_hooks.session import Session


class Data:
    """The data of one training.

    Attributes:
        source: of the samples.
        look: what the workers have compared of it.
        lengths: tokens of each sample; none: sizes are in samples.
        stream: the batches, and what is owed of them.
        loaders: that have loaded the batches so far.
        pass_batch: global batch by which a pass is divided.
        size: of a pass, in the unit of the plan; NaN: of a stream.
    """

    look: Fingerprint
    lengths: NDArray[np.int64] | None = None
    stream: Batches
    sampler: GlobalSampler
    pass_batch: int
    size: float = math.nan
    _samples: int  # of a pass

    def __init__(self, data: Any, session: Session, adapter: Adapter, seed: int) -> None:
        """`seed`: of the order of the samples."""
        self._session, self._settings, self._adapter = session, session.settings, adapter
        self.source = self._loading = adapter.source_of(data, session.settings, seed)
        self.loaders = 1

    @property
    def is_stream(self) -> bool:
        """Whether samples have no numbers."""
        return isinstance(self.source, Stream)

    @property
    def lengths_code(self) -> int:
        """Checksum of the tokens of the samples; 0 where sizes are in samples."""
        return 0 if self.lengths is None else zlib.crc32(self.lengths.tobytes())

    @property
    def largest_sample(self) -> int:
        """Tokens of the longest sample; 1 where sizes are in samples."""
        return 1 if self.lengths is None else max(int(self.lengths.max()), 1)

    def begin_at(self, start: Position, plans: Plans, report_reading: Callable[[], None]) -> None:
        """Batches begin at `start`.

        Args:
            report_reading: all workers tell what they have read of a stream.

        Raises TrainingError if `start` is no place in this data.
        """
        settings, source = self._settings, self.source
        check_unit(start, settings.config.batch.unit)
        self.pass_batch = start.pass_batch
        self._samples = source.samples_per_pass(start.pass_batch)
        if isinstance(source, Stream):
            here, smallest = self._session.workers.here, self._adapter.parameters.smallest_share
            reader = StreamWorker(here.start, self._session.workers.count, smallest, plans.plan_at, report_reading)
            self.stream = source.batches(start, reader)
            return
        self.size = self._samples if self.lengths is None else int(self.lengths.sum())
        check_enough(self.size, start.plan, settings.config.batch.unit)
        check_place(start, self._samples)
        check_order(start, source)
        self.sampler = self._make_sampler(start.seed)
        self._make_stream(plans)

    def _make_sampler(self, seed: int) -> GlobalSampler:
        samples, smallest, order = self._samples, self._adapter.parameters.smallest_share, self.source.order
        if self.lengths is None:
            return GlobalSampler(samples, seed, smallest, order)
        from worker_hooks.sampling.token_sampler import TokenSampler

        is_padded = self._settings.config.batch.unit == "padded_tokens"
        return TokenSampler(self.lengths, samples, seed, smallest, order, is_padded)

    def _make_stream(self, plans: Plans) -> None:
        here = self._session.workers.here
        self.stream = BatchStream(self.source, self._loading.load, self.sampler, here, plans.plan_at)

    def load_with(self, source: DataSource, plans: Plans, prefix: str) -> None:
        """From the next loop on, `source` loads the batches; the samples and their order stay. Collective.

        `prefix`: of the keys of this training.
        """
        self._loading.close()
        self._loading = source
        key = f"{prefix}.depth{self.loaders}"
        plans.prepare_ahead(max(of_every_worker(self._session.comm, key, source.depth)))
        self.loaders += 1
        self._make_stream(plans)

    def told_alone(self) -> None:
        """This process alone reads the stream, so it knows what all have read."""
        workers = self._session.workers
        reports = [NOTHING_READ] * workers.count
        reports[workers.here.start] = self.stream.report(used=False)
        self.stream.told(reports, (workers.here.start,))

    def close(self) -> None:
        """End what loads batches ahead."""
        self._loading.close()
        self.stream.close()
