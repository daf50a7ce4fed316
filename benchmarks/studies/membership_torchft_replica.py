"""A replica of torchft in the study of membership: it trains the same model as our workers, and notes each attempt.

It runs in a Python that has torchft, and imports nothing but that and torch. A line per attempt at a step: the number
of the step, 1 if it was committed, 1 if the gradients of this replica were in it, and when on the monotonic clock. The
replica with `--strike` ends itself by `kill -9` in the middle of a backward pass.

The wrapper for the model in torchft 0.2.0 fails where gloo says at once that a peer is gone: its hook asserts that the
sum has a future, and every replica ends. The hook here does the same without that: the manager knows of the error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.nn.functional import cross_entropy

from benchmarks.studies.membership_net import SAMPLES, training

LOCALHOST = "127.0.0.1"


def main() -> None:
    """Train until somebody ends this process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--replica", type=int, required=True)
    parser.add_argument("--replicas-min", type=int, required=True, help="fewer of them train nothing")
    parser.add_argument("--batch", type=int, required=True, help="samples per step")
    parser.add_argument("--sum-s", type=float, required=True, help="longest time of a sum")
    parser.add_argument("--steps", type=Path, required=True, help="the file for the attempts; it is made at once")
    parser.add_argument("--go", type=Path, required=True, help="train once this file is there")
    parser.add_argument("--strike", type=int, help="the step in which this replica ends itself")
    parser.add_argument("--struck", type=Path, help="the file for when it did")
    args = parser.parse_args()
    torchft: Any = importlib.import_module("torchft")
    net, sgd, data = training()

    def load(state: dict[str, Any]) -> None:
        net.load_state_dict(state["model"])
        sgd.load_state_dict(state["optimizer"])

    def strike(gradient: torch.Tensor) -> None:
        args.struck.write_text(repr(time.monotonic()))
        os.kill(os.getpid(), signal.SIGKILL)

    store = TCPStore(LOCALHOST, 0, is_master=True, wait_for_workers=False)
    manager = torchft.Manager(
        pg=torchft.ProcessGroupGloo(timeout=timedelta(seconds=args.sum_s)),
        load_state_dict=load,
        state_dict=lambda: {"model": net.state_dict(), "optimizer": sgd.state_dict()},
        min_replica_size=args.replicas_min,
        init_sync=False,  # all start with the same weights
        replica_id=f"replica_{args.replica}",
        rank=0,
        world_size=1,
        store_addr=LOCALHOST,
        store_port=store.port,
        hostname=LOCALHOST,
        timeout=timedelta(seconds=10),
    )

    class Replicated(torchft.DistributedDataParallel):  # type: ignore[misc]
        _comm_hook = staticmethod(lambda manager, bucket: summed(manager, bucket.buffer()))

    model = Replicated(manager, net)
    chosen = torch.Generator().manual_seed(args.replica)
    with args.steps.open("w", buffering=1) as steps:
        while not args.go.exists():
            time.sleep(0.01)
        while True:
            net.in_backward = strike if manager.current_step() == args.strike else None
            inputs, targets = data[torch.randint(SAMPLES, (args.batch,), generator=chosen)]
            # What torchft.Optimizer does, but that says whether the step is committed.
            manager.start_quorum()
            sgd.zero_grad()
            cross_entropy(model(inputs), targets).backward()  # type: ignore[no-untyped-call]
            committed = manager.should_commit()
            if committed:
                sgd.step()
            step = manager.current_step() - committed
            steps.write(f"{step} {committed:d} {manager.is_participating():d} {time.monotonic()!r}\n")


def summed(manager: Any, gradients: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """Their mean over all replicas, in place; what they are after an error the manager does not commit."""
    manager.allreduce(gradients).wait()
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(gradients)
    return done


if __name__ == "__main__":
    main()
