"""One job to which 100 events happen in half an hour: whether it ends right, with flat memory and nothing left behind.

    python -m benchmarks.studies.membership.soak [--json FILE] [--seed N] [--short N]

8 workers and 3 servers on real BytePS, all on this machine, train a small model. At random moments something happens to
a worker: it is killed, is stopped for longer than its lease, leaves by a signal or by `dynamix leave`, or is told to
come back; or a server is killed or stopped, or the scheduler is killed. No event goes below 4 workers and 2 servers.
Who is lost also comes back by itself. After each event decisions go on. At the end the weights of all workers are the
same bit for bit, and those of one process that takes the same steps, to 1e-5; every sample came once per epoch; the
memory of no process has grown; and no process, shared memory, socket or control group is left
(benchmarks/studies/membership/soak_job.py).

Every event is a row of soak.csv. `--short N` has N jobs of 4 workers, 3 servers and 20 events in place of the long
one, about 75 seconds each, and keeps their events in soak-short.csv. The exit code is 1 if something is wrong.
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
from benchmarks.studies.membership.soak_events import KINDS, Event
from benchmarks.studies.membership.soak_job import FULL, SHORT, Outcome, Plan, SoakJob
from benchmarks.suite.machine_lock import exclusive_machine
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.terminal import make_console


def main(arguments: Sequence[str] | None = None) -> int:
    return exit_code_of(lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first job; decides what happens when (default: 0)")
    parser.add_argument(
        "--short", type=int, metavar="N", help="N short jobs, one after another, with seeds of their own"
    )
    args = parser.parse_args(arguments)
    plans = [dataclasses.replace(SHORT if args.short else FULL, seed=args.seed + n) for n in range(args.short or 1)]
    call = f"python -m benchmarks.studies.membership.soak --seed {args.seed}" + (
        f" --short {args.short}" if args.short else ""
    )
    args.out.mkdir(parents=True, exist_ok=True)
    base = args.out / ("soak-short" if args.short else "soak")
    console, done = make_console(), list[tuple[Plan, Outcome]]()
    with exclusive_machine(lambda: console.print("a grid runs on this machine, and would slow this down; waiting")):
        for plan in plans:
            outcome = run_soak(plan)
            done.append((plan, outcome))
            told = "\n".join(outcome.wrong) or "all is right"
            console.print(f"seed {plan.seed}: {len(outcome.events)} events, {told}", markup=False)
            if rows := [row_of(plan.seed, event) for plan, one in done for event in one.events]:
                write_csv(base.with_suffix(".csv"), rows)
            update_page(base.with_suffix(".md"), f"{page(call, len(plans), done)}\n")
    if args.json:
        args.json.write_text(json.dumps([dataclasses.asdict(one) for _, one in done], indent=2) + "\n")
    return 1 if any(one.wrong for _, one in done) else 0


def run_soak(plan: Plan) -> Outcome:
    """Run it in a folder of its own, which is removed afterwards if all is right."""
    folder = Path(tempfile.mkdtemp(prefix="dx-soak-"))
    outcome = SoakJob(plan, folder).run()
    if outcome.wrong:
        print(f"seed {plan.seed}: see {folder} for all that the job wrote", file=sys.stderr)
    else:
        shutil.rmtree(folder)
    return outcome


def row_of(seed: int, event: Event) -> dict[str, str]:
    """What the table keeps of an event; times are in seconds."""
    return {
        "seed": str(seed),
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


def page(call: str, jobs: int, done: Sequence[tuple[Plan, Outcome]]) -> str:
    """The figures of those of so many jobs that have ended, at least one: what happened, what it cost, and whether all
    is right.
    """
    events = [event for _, outcome in done for event in outcome.events]
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
    workers = [event.workers for event in events] or [0]
    plan, iterations = done[0][0], sum(outcome.iterations for _, outcome in done)
    told = (
        f"`{call}`: {len(events)} of {jobs * plan.events} events, {min(workers)} to {max(workers)} workers, "
        f"{plan.servers} servers, {iterations:,} iterations, on {where()}."
    )
    wrong = [f"- **wrong**, seed {plan.seed}: {one}" for plan, outcome in done for one in outcome.wrong]
    verdict = "\n".join(wrong) or (
        "All ended right: equal weights, those of one process, every sample once per epoch, flat memory, nothing left."
    )
    return "\n\n".join([told, *([markdown(table)] if table else []), verdict])


if __name__ == "__main__":
    sys.exit(main())
