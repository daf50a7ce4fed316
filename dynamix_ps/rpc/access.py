"""What a role needs to call the arbitrator of its run."""

from __future__ import annotations

from dataclasses import dataclass, field

from dynamix_ps.certificates import Certificates
from dynamix_ps.config.schema import Timeouts


@dataclass(frozen=True, slots=True)
class ArbitratorAccess:
    """Where the arbitrator is, how to prove that a call belongs to its run, and how long to wait.

    Attributes:
        address: host:port.
        run_id: of the run.
        token: secret of the run.
        timeouts: `rpc_s` is the deadline of every call, a third of `lease_s` the time between heartbeats.
        certificates: with which calls are encrypted; none: they are not.
    """

    address: str
    run_id: str
    token: str = field(repr=False)
    timeouts: Timeouts
    certificates: Certificates | None = None
