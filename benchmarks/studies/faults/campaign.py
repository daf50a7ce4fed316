"""A campaign of random faults: kills, stops, full disks and attacks on small real runs, on gloo and on
BytePS, in shared memory and by TCP.

    python -m benchmarks.studies.faults.campaign --minutes 30 [--seed S] [--json FILE] [--only WORDS]

Every trial launches two workers that train a tiny model for some seconds, and does one thing to the run in a random
iteration: see fault_kinds.py. It fails if

    hang      the run does not end
    wrong     it should survive and does not, or its weights differ from those of one process by more than 1e-6
    cause     it should fail, and the error does not name the process that was hit
    left      processes, shared memory, sockets or control groups are left
    slow      the cause is told, or the run has ended, more than 5 s after the fault (later where a timeout of the
              cluster file decides: a stopped process is noticed by `timeouts.stall_fail_s`)

FILE gets one JSON line per trial, as it ends. With the same FILE and seed, the campaign goes on after its last trial.
The exit code is 1 if a trial failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.report.page import markdown
from benchmarks.studies.faults.fault_job import FaultJob, NotStarted
from benchmarks.studies.faults.fault_kinds import ENDS, FAILS, KINDS, SURVIVES, Kind, possible, runs_folder
from benchmarks.testbed.small_disk import small_disk

LIMIT_S = 5.0
_HANG_S = 90.0
_DISK_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Trial:
    """One row of the campaign. Seconds count from the fault; none where there is no such thing."""

    seed: int
    number: int
    fault: str
    plane: str
    expected: str
    seen: str
    cause_s: float | None = None
    end_s: float | None = None
    hang: bool = False
    wrong: str = ""
    cause: str = ""
    left: tuple[str, ...] = ()
    slow: bool = False

    @property
    def failed(self) -> bool:
        return self.hang or bool(self.wrong or self.cause or self.left) or self.slow


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="no trial begins after this time")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="file for one JSON line per trial")
    parser.add_argument("--only", default="", help="only kinds of faults with these words in their name")
    args = parser.parse_args()
    # A shell lets jobs in the background ignore SIGINT, and so would every launch that begins here.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    trials = _read(args.json, args.seed)
    until_s = time.monotonic() + 60 * args.minutes
    kinds = [kind for kind in KINDS if possible(kind) and args.only in kind.key]
    for number, (kind, plane) in enumerate(_plan(kinds, args.seed)):
        if time.monotonic() >= until_s:
            break
        if number < len(trials):
            continue
        trial = run_trial(args.seed, number, kind, plane)
        trials.append(trial)
        print(_line(trial), flush=True)
        if args.json:
            with args.json.open("a", encoding="utf-8") as out:
                out.write(json.dumps(asdict(trial)) + "\n")
    print(f"\n{markdown(summary(trials))}")
    return int(any(trial.failed for trial in trials))


def _plan(kinds: Sequence[Kind], seed: int) -> Iterator[tuple[Kind, str]]:
    """Every kind on every plane that has it, in a random order, again and again."""
    rng = random.Random(seed)
    pairs = [(kind, plane) for kind in kinds for plane in kind.planes]
    while pairs:
        rng.shuffle(pairs)
        yield from pairs


def _read(file: Path | None, seed: int) -> list[Trial]:
    if file is None or not file.exists():
        return []
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [Trial(**{**row, "left": tuple(row["left"])}) for row in rows if row["seed"] == seed]


def run_trial(seed: int, number: int, kind: Kind, plane: str) -> Trial:
    """One run with one fault."""
    rng = random.Random(f"{seed}/{number}")
    folder = Path(tempfile.mkdtemp(prefix="dx-fault-"))
    head = (seed, number, kind.key, plane, kind.expected)
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        runs = runs_folder(folder)
        if kind.small_disk:
            stack.enter_context(small_disk(runs, _DISK_BYTES))
        job = FaultJob(folder, plane, runs, adapts=not kind.small_disk)
        stack.callback(job.kill)
        try:
            kind.wait(job, rng)
            struck_s = time.monotonic()
            kind.strike(job, rng)
        except NotStarted as error:
            if kind.at_end and job.wait(_HANG_S) == 0:  # the run was faster
                return Trial(*head, seen=SURVIVES, wrong=job.wrong_result(), left=tuple(job.leftovers()))
            return Trial(*head, seen="no fault", wrong=str(error))
        code = job.wait(_HANG_S)
        ended_s = time.monotonic()
        if code is None:
            return Trial(*head, seen="hang", hang=True, wrong=job.output[-2000:])
        return _judge(head, kind, job, struck_s, ended_s, code)


def _judge(
    head: tuple[int, int, str, str, str], kind: Kind, job: FaultJob, struck_s: float, ended_s: float, code: int
) -> Trial:
    told_s = job.said_s("^error: ", struck_s)
    if kind.expected == ENDS:  # nobody tells anything; the reaper ends the rest
        job.wait_until_gone(_HANG_S)
        ended_s = time.monotonic()
        seen = ENDS if code < 0 else f"exit code {code}"
    else:
        job.wait_until_gone(LIMIT_S)
        seen = SURVIVES if code == 0 else FAILS
    wrong = cause = ""
    if seen not in kind.expected:
        wrong = f"exit code {code}: {job.output[-1500:]}"
    elif seen == SURVIVES:
        wrong = job.wrong_result()
    elif seen == FAILS and job.said_s(f"^error: .*{kind.names}", struck_s) is None:
        cause = job.output[-1500:]
    cause_s = None if told_s is None or seen != FAILS else told_s - struck_s
    end_s = None if seen == SURVIVES else ended_s - struck_s
    slow = max(cause_s or 0.0, end_s or 0.0) > LIMIT_S + kind.allowed_s
    return Trial(*head, seen, cause_s, end_s, wrong=wrong, cause=cause, left=tuple(job.leftovers()), slow=slow)


def summary(trials: Sequence[Trial]) -> list[dict[str, str]]:
    """One row per kind, and one for all."""
    rows = []
    for name in [*sorted({trial.fault for trial in trials}), ""]:
        of_kind = [trial for trial in trials if name in ("", trial.fault)]
        rows.append(
            {
                "fault": name or "all",
                "trials": str(len(of_kind)),
                "hangs": str(sum(trial.hang for trial in of_kind)),
                "wrong results": str(sum(bool(trial.wrong) for trial in of_kind)),
                "without the cause": str(sum(bool(trial.cause) for trial in of_kind)),
                "leftovers": str(sum(bool(trial.left) for trial in of_kind)),
                "slow ends": str(sum(trial.slow for trial in of_kind)),
                "latest cause (s)": _latest([trial.cause_s for trial in of_kind]),
                "latest end (s)": _latest([trial.end_s for trial in of_kind]),
            }
        )
    return rows


def _latest(times_s: Sequence[float | None]) -> str:
    known = [time_s for time_s in times_s if time_s is not None]
    return f"{max(known):.1f}" if known else "-"


def _line(trial: Trial) -> str:
    times = ", ".join(
        f"{what} after {time_s:.1f} s" for what, time_s in (("cause", trial.cause_s), ("end", trial.end_s)) if time_s
    )
    problems = "; ".join(filter(None, (trial.wrong, trial.cause, *trial.left, "slow" if trial.slow else "")))
    verdict = f"FAILED: {problems}" if trial.failed else "ok"
    return f"{trial.number:3d} {trial.fault} ({trial.plane}): {trial.seen} {times} {verdict}"


if __name__ == "__main__":
    sys.exit(main())
