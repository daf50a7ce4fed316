"""A worker of the study of membership: it trains a model of 37 MB, and notes when each of its steps was complete.

The worker that a signal strikes sends it to itself in the middle of a backward pass: some of its gradients are on their
way, the others are not. It does so once: not if it was started again. With `--settled`, all train until it has been
back for so many iterations.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import signal
import time
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

import dynamix_ps.torch as dynamix
from benchmarks.studies.membership.cost_job import started_file, steps_file, struck_file, weights_file
from benchmarks.studies.membership.cost_net import training
from benchmarks.testbed.names import start_of
from dynamix_ps.config import variables
from dynamix_ps.launch.cleanup.release import processes_of

LONGEST = 2_000  # iterations


def main() -> None:
    """Train to the end, or to the signal."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    length = parser.add_mutually_exclusive_group(required=True)
    length.add_argument("--iterations", type=int, default=LONGEST)
    length.add_argument("--settled", type=int, default=LONGEST)
    parser.add_argument("--struck", type=int, required=True, help="rank of the worker that a signal strikes")
    parser.add_argument("--server", type=int, help="it gets the signal in the worker's place")
    parser.add_argument("--at", type=int, required=True, help="in which iteration")
    parser.add_argument("--signal", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True, help="folder for what is noted")
    args = parser.parse_args()
    net, optimizer, data = training()
    first = os.environ[variables.STARTS] == "0"

    def strike(gradient: torch.Tensor) -> None:
        pids = [os.getpid()] if args.server is None else _pids_of(f"server-{args.server}")
        struck_file(args.out).write_text(repr(time.monotonic()))
        for pid in pids:
            os.kill(pid, signal.Signals(args.signal))

    run = dynamix.attach(net, optimizer, data)
    started_file(args.out, run.rank).write_text(repr(_started_s()))
    back = 0  # iterations with all workers since the one that was struck is back
    with steps_file(args.out, run.rank).open("w", buffering=1) as steps:
        for inputs, targets in run.batches(iterations=args.iterations):
            iteration = run.iteration
            net.in_backward = strike if first and (run.rank, iteration) == (args.struck, args.at) else None
            optimizer.zero_grad()
            run.backward(cross_entropy(net(inputs), targets))
            optimizer.step()
            steps.write(f"{iteration} {time.monotonic()!r}\n")
            assert run.training.now.sum is not None
            back = back + 1 if iteration > args.at and all(run.training.now.sum.view.members) else 0
            if back >= args.settled:
                break
    weights = hashlib.sha256()
    for parameter in net.parameters():
        weights.update(parameter.detach().numpy().tobytes())
    weights_file(args.out, run.rank).write_text(weights.hexdigest())
    run.close()


def _pids_of(role: str) -> list[int]:
    """The processes of a role of this run."""
    mark = f"{variables.ROLE_NAME}={role}".encode()
    pids = processes_of(os.environ[variables.RUN_ID])
    return [pid for pid in pids if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]


def _started_s() -> float:
    """When this process began, on the monotonic clock."""
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(start_of(os.getpid())) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


if __name__ == "__main__":
    main()
