"""Whether a sum of the data plane is ever wrong while its processes stop and go on at random.

    python -m benchmarks.studies.faults.data_plane_race [--sums 100000] [--path tcp] [--wire int8] [--json FILE]

Four workers and three servers make sums without computing in between; race_worker.py says which. At random times this
program stops one to three of them (SIGSTOP) for a random short while. Every worker checks every sum exactly, and all
must have the same bits. Without `--path` and `--wire` there is a race for each path and wire.

    shared-memory   all on one host: workers sum in shared memory
    references      all on one host: servers sum in shared memory
    tcp             all on one host, without shared memory
    mixed           two hosts of two workers and a server, and a host with a server (network namespaces; needs root)
    ring            all on one host, without servers, over gloo

`--without-parity` lets servers reuse a buffer before its answers have left, and workers fill the sockets: on `tcp` in
float32, sums must then be wrong. The exit code is 1 if a sum was wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from benchmarks.studies.faults.race_worker import WITHOUT_PARITY, Checked
from benchmarks.testbed import Bed, BedError, Link
from benchmarks.testbed.byteps_cluster import BedCluster, Cluster
from dynamix_ps.config import variables
from dynamix_ps.config.role_environment import WIRES

WORKERS, SERVERS = 4, 3
PATHS = {
    "shared-memory": {"DYNAMIX_HOST_SUM": "workers"},
    "references": {"DYNAMIX_HOST_SUM": "server"},
    "tcp": {"DYNAMIX_SHARED_MEMORY": "0"},
    "mixed": {},
    "ring": {},
}
LONGEST_STOP_S, LONGEST_GAP_S = 0.4, 0.4
START_LIMIT_S, LIMIT_S = 60.0, 3600.0
_PROGRESS_S = 10.0
_SCRIPT = "from benchmarks.studies.faults.race_worker import main; main({comm!r}, {seed}, {sums})"
_HOSTS = {"worker-0": "a", "worker-1": "a", "server-0": "a", "worker-2": "b", "worker-3": "b", "server-1": "b"}


@dataclass(frozen=True, slots=True)
class Stop:
    """When, in seconds from the first stop, who was stopped, and for how long."""

    at_s: float
    roles: tuple[str, ...]
    lasts_s: float


@dataclass(frozen=True, slots=True)
class Race:
    """What a race has shown. `checked` counts each sum once per worker."""

    path: str
    wire: str
    seed: int
    parity: bool
    sums: int
    checked: int
    wrong: int
    examples: tuple[str, ...]
    seconds: float
    stops: tuple[Stop, ...]


def race(
    path: str,
    sums: int,
    seed: int,
    parity: bool = True,
    say: Callable[[str], object] = lambda line: None,
    wire: str = WIRES[0],
) -> Race:
    """One race; `say` gets a line of progress now and then.

    Raises AssertionError with the output of all processes if one fails or does not come on, and BedError.
    """
    env = {**PATHS[path], variables.WIRE: wire} | ({} if parity else {WITHOUT_PARITY: "0"})
    servers = 0 if path == "ring" else SERVERS
    script = _SCRIPT.format(comm="byteps" if servers else "gloo", seed=seed, sums=sums)
    with cluster(path, script, env, servers) as running:
        workers = [f"worker-{rank}" for rank in range(WORKERS)]
        for worker in workers:
            running.wait_for(worker, "running", START_LIMIT_S)
        roles = [*workers, *(f"server-{rank}" for rank in range(servers))]
        began_s = time.monotonic()
        stops = tuple(stop_at_random(running, roles, random.Random(f"stops/{seed}"), workers[0], say))
        results = [Checked(**result) for result in running.results(LIMIT_S)]
    examples = [f"worker {rank}: {text}" for rank, result in enumerate(results) for text in result.examples]
    checked, wrong = sum(result.checked for result in results), sum(result.wrong for result in results)
    if len({result.digest for result in results}) > 1:
        wrong, examples = wrong + 1, [*examples, "workers have sums of other bits"]
    return Race(path, wire, seed, parity, sums, checked, wrong, tuple(examples), time.monotonic() - began_s, stops)


@contextmanager
def cluster(path: str, script: str, env: dict[str, str], servers: int) -> Iterator[Cluster]:
    """The processes of a race."""
    with ExitStack() as stack:
        if path == "mixed":
            bed = stack.enter_context(Bed({host: Link() for host in ("a", "b", "c")}))
            running: Cluster = BedCluster(
                bed, script, WORKERS, env=env, servers=servers, host_of=lambda role: _HOSTS.get(role, "c")
            )
        else:
            running = Cluster(script, WORKERS, servers, env)
        yield stack.enter_context(running)


def stop_at_random(
    running: Cluster, roles: Sequence[str], rng: random.Random, watched: str, say: Callable[[str], object]
) -> Iterator[Stop]:
    """Stop roles again and again until one of them has ended; the last line of `watched` is the progress."""
    began_s = said_s = time.monotonic()
    while not any(running.ended(role) for role in roles):
        time.sleep(rng.uniform(0.0, LONGEST_GAP_S))
        stop = Stop(
            time.monotonic() - began_s, tuple(rng.sample(roles, rng.randint(1, 3))), rng.uniform(0.0, LONGEST_STOP_S)
        )
        for role in stop.roles:
            os.kill(running.pid(role), signal.SIGSTOP)
        time.sleep(stop.lasts_s)
        for role in stop.roles:
            os.kill(running.pid(role), signal.SIGCONT)
        yield stop
        if time.monotonic() - said_s > _PROGRESS_S:
            said_s = time.monotonic()
            say(f"{said_s - began_s:5.0f} s: {running.output(watched).splitlines()[-1]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sums", type=int, default=100_000)
    parser.add_argument("--path", choices=PATHS)
    parser.add_argument("--wire", choices=WIRES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--without-parity", action="store_true")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was found, and every stop, here")
    args = parser.parse_args()
    tell = partial(print, flush=True)
    races = []
    for path, wire in itertools.product([args.path] if args.path else PATHS, [args.wire] if args.wire else WIRES):
        try:
            races.append(race(path, args.sums, args.seed, not args.without_parity, tell, wire))
        except (AssertionError, BedError) as error:
            print(error, file=sys.stderr)
            return 1
        tell(in_words(races[-1]))
        if args.json:
            args.json.write_text(json.dumps([asdict(one) for one in races], indent=2) + "\n")
    return int(any(one.wrong for one in races))


def in_words(found: Race) -> str:
    """What a race has shown, in lines."""
    hits = Counter(role for stop in found.stops for role in stop.roles)
    return "\n".join(
        (
            f"{found.path}, {found.wire}, seed {found.seed}: {found.sums} sums, checked by each of {WORKERS} workers "
            f"({found.checked}),",
            f"wrong: {found.wrong}; {len(found.stops)} stops in {found.seconds:.0f} s: {dict(sorted(hits.items()))}",
            *found.examples,
        )
    )


if __name__ == "__main__":
    sys.exit(main())
