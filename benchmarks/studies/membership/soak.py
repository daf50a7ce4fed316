"""Jobs to which 100 events happen in half an hour: whether each ends right, with flat memory and nothing left behind.

    python -m benchmarks.studies.membership.soak [--json FILE] [--plane byteps|gloo] [--seed N] [--short N]

8 workers train a small model, with 3 servers on real BytePS, and then as a ring. Each worker and each server is on a
host of its own (network namespaces), and so is the coordinator. At random moments something happens to one of them: it
is killed or stopped, leaves or comes, its link is cut, slow or lossy, its memory or its disk is full (KINDS in
soak_events.py). Each kind comes once before one comes again. No event goes below 4 workers and 2 servers. Who is lost
also comes back by itself. After each event decisions go on, and nobody is lost whom no event explains. At the end the
weights of all workers are the same bit for bit, and those of one process that takes the same steps, to 1e-5; every
sample came once per epoch; the memory of no process has grown; and no process, shared memory, socket, control group,
network namespace or mount is left (soak_job.py).

Every event is a row of soak.csv. `--short N` has N jobs of 4 workers and 20 events per plane in place of the long ones,
about two minutes each, and keeps their events in soak-short.csv. The exit code is 1 if something is wrong. Needs root.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
import statistics
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from benchmarks.studies.membership.soak_events import KINDS
from benchmarks.studies.membership.soak_job import Outcome, SoakJob
from benchmarks.studies.membership.soak_plan import FULL, PLANES, SHORT, Plan
from benchmarks.studies.membership.soak_site import Event
from benchmarks.suite.machine_lock import exclusive_machine
from benchmarks.testbed.bed import permitted
from dynamix_ps.errors import EnvironmentNotReady
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; decides what happens when (default: 0)")
    parser.add_argument("--plane", choices=PLANES, help="`comm` of the cluster file (default: both)")
    parser.add_argument(
        "--short", type=int, metavar="N", help="N short jobs per plane, one after another, with seeds of their own"
    )
    args = parser.parse_args(arguments)
    if (refusal := permitted()) is not None:
        raise EnvironmentNotReady(f"the soak needs hosts of its own, which is not possible here: {refusal}")
    size = SHORT if args.short else FULL
    planes = [args.plane] if args.plane else list(PLANES)
    plans = [
        dataclasses.replace(size, plane=plane, seed=args.seed + n) for plane in planes for n in range(args.short or 1)
    ]
    given = {"plane": args.plane, "seed": args.seed, "short": args.short}
    options = "".join(f" --{name} {value}" for name, value in given.items() if value is not None)
    call = f"python -m benchmarks.studies.membership.soak{options}"
    args.out.mkdir(parents=True, exist_ok=True)
    base = args.out / ("soak-short" if args.short else "soak")
    console, done = make_console(), list[tuple[Plan, Outcome]]()
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for plan in plans:
            outcome = run_soak(plan)
            done.append((plan, outcome))
            told = "\n".join(outcome.wrong) or "all is right"
            console.print(f"{plan}: {len(outcome.events)} events, {told}", markup=False)
            if rows := [row_of(plan, event) for plan, one in done for event in one.events]:
                write_csv(base.with_suffix(".csv"), rows)
            update_page(base.with_suffix(".md"), f"{page(call, plans, done)}\n")
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(one) for _, one in done], indent=2) + "\n")
    return 1 if any(one.wrong for _, one in done) else 0


def run_soak(plan: Plan) -> Outcome:
    """Run it in a folder of its own, which is removed afterwards if all is right."""
    folder = Path(tempfile.mkdtemp(prefix="dx-soak-"))
    outcome = SoakJob(plan, folder).run()
    if outcome.wrong:
        print(f"{plan}: see {folder} for all that the job wrote", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return outcome


def row_of(plan: Plan, event: Event) -> dict[str, str]:
    """What the table keeps of an event; times are in seconds."""
    return {
        "plane": plan.plane,
        "seed": str(plan.seed),
        "event": str(event.number),
        "at_s": f"{event.at_s:.2f}",
        "what": event.kind,
        "role": event.role,
        "lasts_s": "" if event.healed_s is None else f"{event.healed_s - event.at_s:.2f}",
        "strength": f"{event.strength:.2f}",
        "workers_before": str(event.workers),
        "servers_before": str(event.servers),
        "iteration": str(event.iteration),
        "effect_s": "" if event.effect_s is None else f"{event.effect_s:.3f}",
        "pause_s": f"{event.pause_s:.3f}",
    }


def page(call: str, plans: Sequence[Plan], done: Sequence[tuple[Plan, Outcome]]) -> str:
    """The figures of those of the jobs that have ended: what happened, what it cost, and whether all is right."""
    parts = [f"`{call}`, on {where()}."]
    for plane in dict.fromkeys(plan.plane for plan, _ in done):
        due = sum(plan.events for plan in plans if plan.plane == plane)
        parts += _of_plane(plane, due, [(plan, outcome) for plan, outcome in done if plan.plane == plane])
    wrong = [f"- **wrong**, {plan}: {one}" for plan, outcome in done for one in outcome.wrong]
    parts.append(
        "\n".join(wrong)
        or "All ended right: equal weights, those of one process, every sample once per epoch, nobody lost without a "
        "cause, flat memory, nothing left."
    )
    return "\n\n".join(parts)


def _of_plane(plane: str, due: int, done: Sequence[tuple[Plan, Outcome]]) -> list[str]:
    """`due`: events that the jobs are to have."""
    events = [event for _, outcome in done for event in outcome.events]
    workers = [event.workers for event in events] or [0]
    iterations = sum(outcome.iterations for _, outcome in done)
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
        if (mine := [event for event in events if event.kind == key])
    ]
    told = (
        f"`comm: {plane}`: {len(events)} of {due} events, {min(workers)} to {max(workers)} workers, "
        f"{done[0][0].servers} servers, {iterations:,} iterations."
    )
    return [told, *([markdown(table)] if table else [])]


if __name__ == "__main__":
    sys.exit(main())
