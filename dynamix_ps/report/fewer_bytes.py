"""What fewer bytes on the wire would save, and what `wire: auto` has chosen. Pure."""

from __future__ import annotations

from dynamix_ps.config.schema import Config
from dynamix_ps.run_record.run_state import RunState

SHOWN = 4  # changes of the wire; of more, only the number is told
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
    if (exposed := _exposed(state)) <= EXPOSED:
        return ""
    return (
        f"workers waited for the network in {100 * exposed:.0f} % of the time; `wire: bf16` in section cluster halves "
        f"the bytes and would save about {50 * exposed:.0f} % of the time"
    )


def _exposed(state: RunState) -> float:
    """The part of their time in which workers waited for the network."""
    totals = [worker.totals for worker in state.workers.values()]
    duration_s = sum(of_worker.get("duration", 0.0) for of_worker in totals)
    return sum(of_worker.get("push_pull", 0.0) for of_worker in totals) / duration_s if duration_s else 0.0


def wire_text(state: RunState, config: Config) -> str:
    """How gradients travelled with `wire: auto`; empty without it."""
    if config.cluster.wire != "auto":
        return ""
    exposed = f"workers waited for the network in {100 * _exposed(state):.0f} % of the time"
    changes = state.progress.wires
    if not changes:
        return f"float32 all the time; {exposed}"
    _, last, why = changes[-1]
    when = [f"{wire} from iteration {iteration:,}" for iteration, wire, _ in changes]
    told = f"float32, {', '.join(when)}" if len(when) <= SHOWN else f"{len(when)} changes, {when[-1]}"
    return f"{last} at the end ({told}: {why}); {exposed}"
