"""Clusters whose links and speeds change while training runs, for any number of workers (chosen by us).

- `alone`: H-level 4, and each worker changes by itself, at random. Its link falls to a quarter for 15 s about once in
  90 s, and loses 0.1 % of its segments for 15 s about once in 180 s; it computes 2.5 times as long for 20 s about once
  in 120 s; its speed drifts by 10 %. The more workers there are, the more of them change in every window.
- `racks`: eighths of the cluster change together, as the scenarios `spot-slowdown` and `bandwidth-drop` say: speeds and
  links of up to half of the workers, for 50 s to 130 s.
"""

from __future__ import annotations

from dynamix_ps.sim.scenario.load import Scenario, load_scenario
from dynamix_ps.sim.scenario.parts import Burst

BURSTS = (
    Burst(what="bandwidth", every_s=90, for_s=15, value=0.25),
    Burst(what="loss", every_s=180, for_s=15, value=0.001),
    Burst(what="compute", every_s=120, for_s=20, value=2.5),
)


def unsteady() -> tuple[Scenario, Scenario]:
    """Both, with eight workers; `with_workers` makes them larger."""
    uneven, slowed, thinned = (load_scenario(name) for name in ("h-level-4", "spot-slowdown", "bandwidth-drop"))
    alone = {"name": "alone", "about": "Every link and every speed changes by itself.", "bursts": BURSTS}
    racks = {"name": "racks", "about": "Eighths of the cluster change together.", "bursts": ()}
    return (
        uneven.model_copy(update=alone | {"drift": 0.1}),
        slowed.model_copy(update=racks | {"trace": (*slowed.trace, *thinned.trace)}),
    )
