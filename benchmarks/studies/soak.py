"""One job to which 100 events happen in half an hour: whether it ends right, with flat memory and nothing left behind.

    python -m benchmarks.studies.soak [--json FILE] [--seed N] [--quick]

8 workers and 3 servers on real BytePS, all on this machine, train a small model. At random moments something happens to
a worker: it is killed, is stopped for longer than its lease, leaves by a signal or by `dynamix leave`, or is told to
come back; or a server is killed or stopped. No event goes below 4 workers and 2 servers. Who is lost also comes back by
itself. At the end the weights of
all workers are the same bit for bit, and those of one process that takes the same steps, to 1e-5; every sample came
once per epoch; the memory of no process has grown; and no process, shared memory, socket or control group is left
(benchmarks/studies/soak_job.py).

Every event is a row of soak.csv. `--quick` makes 20 events in a job of 4 workers and 3 servers in about a minute, to
show that the study works, and keeps them in soak-quick.csv. The exit code is 1 if something is wrong.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.soak_events import KINDS, Event
from benchmarks.studies.soak_job import FULL, QUICK, Outcome, Plan, SoakJob
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="decides when what happens (default: %(default)s)")
    parser.add_argument("--quick", action="store_true", help="a short job; shows that it works")
    args = parser.parse_args(arguments)
    plan = dataclasses.replace(QUICK if args.quick else FULL, seed=args.seed)
    console, stem = make_console(), "soak-quick" if args.quick else "soak"
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        outcome = run_soak(plan)
    args.out.mkdir(parents=True, exist_ok=True)
    if outcome.events:
        write_csv(args.out / f"{stem}.csv", [row_of(event) for event in outcome.events])
    call = f"python -m benchmarks.studies.soak{' --quick' * args.quick} --seed {args.seed}"
    update_page(args.out / f"{stem}.md", f"{page(call, plan, outcome)}\n")
    if args.json:
        args.json.write_text(json.dumps(dataclasses.asdict(outcome), indent=2) + "\n")
    console.print("\n".join(outcome.wrong) or f"{len(outcome.events)} events, all is right", markup=False)
    return 1 if outcome.wrong else 0


def run_soak(plan: Plan) -> Outcome:
    """Run it in a folder of its own, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="dx-soak-") as folder:
        return SoakJob(plan, Path(folder)).run()


def row_of(event: Event) -> dict[str, str]:
    """What the table keeps of an event; times are in seconds."""
    return {
        "event": str(event.number),
        "at_s": f"{event.at_s:.2f}",
        "what": event.kind,
        "role": event.role,
        "workers_before": str(event.workers),
        "servers_before": str(event.servers),
        "iteration": str(event.iteration),
        "effect_s": "" if event.effect_s is None else f"{event.effect_s:.3f}",
        "pause_s": f"{event.pause_s:.3f}",
    }


def page(call: str, plan: Plan, outcome: Outcome) -> str:
    """The figures: what happened, what it cost, and whether all is right."""
    fewest, most = (f(event.workers for event in outcome.events) for f in (min, max)) if outcome.events else (0, 0)
    table = [
        {
            "what happens": kind.what,
            "events": str(len(mine)),
            "until it shows in a sum, median": f"{statistics.median(one.effect_s or 0.0 for one in mine):.2f} s",
            "longest": f"{max(one.effect_s or 0.0 for one in mine):.2f} s",
            "longest pause of the others, median": f"{statistics.median(one.pause_s for one in mine):.2f} s",
            "longest of all": f"{max(one.pause_s for one in mine):.2f} s",
        }
        for key, kind in KINDS.items()
        if (mine := [event for event in outcome.events if event.kind == key])
    ]
    told = (
        f"`{call}`: {len(outcome.events)} of {plan.events} events, {fewest} to {most} workers, {plan.servers} servers, "
        f"{outcome.iterations:,} iterations, on {where()}."
    )
    verdict = "\n".join(f"- **wrong**: {one}" for one in outcome.wrong) or (
        "It ended right: equal weights, those of one process, every sample once per epoch, flat memory, nothing left."
    )
    return "\n\n".join([told, *([markdown(table)] if table else []), verdict])


if __name__ == "__main__":
    sys.exit(main())
