"""What fewer bytes on the wire would save. Pure."""

from __future__ import annotations

from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_state import RunState

EXPOSED = 0.2  # part of the time from which on a saving is told (chosen by us)


def fewer_bytes_text(state: RunState, config: Config) -> str:
    """What `wire: bf16` would save in a run whose gradients travelled as float32; empty where that is little.

    A sum takes e + h, of which h is hidden behind computing, and workers wait for e. With half the bytes they wait for
    max((e + h) / 2 - h, 0): at least e / 2 is saved, but for the part of e that is round trips.
    """
    as_it_is = config.cluster.wire != "float32" or (
        config.data_plane.is_ring and config.is_elastic
    )  # see config/rules.py
    if as_it_is or not state.traffic.between_hosts:
        return ""
    totals = [worker.totals for worker in state.workers.values()]
    duration_s = sum(of_worker.get("duration", 0.0) for of_worker in totals)
    exposed_s = sum(of_worker.get("push_pull", 0.0) for of_worker in totals)
    if exposed_s <= EXPOSED * duration_s:
        return ""
    part = 100 * exposed_s / duration_s
    return (
        f"workers waited for the network in {part:.0f} % of the time; `wire: bf16` in section cluster halves the bytes "
        f"and would save about {part / 2:.0f} % of the time"
    )
