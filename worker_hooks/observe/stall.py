"""When the sum does not come: name who is missing, and give up in the end."""

from __future__ import annotations

import logging

from dynamix_ps.config.schema import Timeouts
from dynamix_ps.errors import StallError
from worker_hooks.observe.reporter import Reporting

logger = logging.getLogger("dynamix")


class StallWatch:
    """Sees every long wait: names who is missing after stall_warn_s and again each time the wait has doubled, and
    raises StallError after stall_fail_s."""

    def __init__(self, rank: int, reporter: Reporting, timeouts: Timeouts) -> None:
        self._rank = rank
        self._reporter = reporter
        self._timeouts = timeouts
        self._said_s = 0.0

    def waiting(self, iteration: int, waited_s: float) -> None:
        """This worker has sent its gradients of `iteration` and has waited for the sum since. Raises StallError."""
        if waited_s < self._said_s:
            self._said_s = 0.0
        due = waited_s >= max(self._timeouts.stall_warn_s, 2 * self._said_s)
        failed = waited_s >= self._timeouts.stall_fail_s
        if not due and not failed:
            return
        self._said_s = waited_s
        ranks, servers, sentence = self._reporter.missing(iteration)
        message = f"worker {self._rank} has waited {waited_s:.0f} s for the sum of iteration {iteration}; {sentence}"
        self._reporter.event(
            "stall", iteration=iteration, waited_s=waited_s, missing=list(ranks), missing_servers=list(servers)
        )
        if failed:
            raise StallError(f"{message}; gave up after timeouts.stall_fail_s = {self._timeouts.stall_fail_s:g}")
        logger.warning("%s", message)
