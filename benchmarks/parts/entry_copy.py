"""How long the state of a training takes from one worker to another that enters, by its size.

    python -m benchmarks.parts.entry_copy --json FILE

The worker that leads makes a copy in its memory, for which training waits, and sends it beside training:

    copy         the state, into memory

Two processes on this machine, connected as a worker that leads and a newcomer are. From the first byte until the
newcomer has the state in its model and its Adam, with which it then is where the other one is:

    tensors      as it travels: the structure, then the bytes of every tensor from memory to memory
    checkpoint   by torch.save and torch.load, as in a checkpoint
    bytes        as many bytes, from one array into another: what the connection takes by itself

A third of the state is the model. The kinds alternate, so that noise of the machine affects all of them; figures are
medians, and `cpu_s` that of both processes together. The first turn of each size does not count.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import statistics
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from socket import socket
from typing import Any, BinaryIO, cast

import numpy as np
import torch

from benchmarks.report.page import RESULTS, markdown, update_page, where, write_csv
from dynamix_ps.comm.peers import PeerListener, dial, received
from dynamix_ps.comm.state_stream import NO_SUM, fill, read_piece, write_piece
from dynamix_ps.messages import Plan
from worker_hooks.membership.arrival import StateCopy
from worker_hooks.sampling.sampler import Cursor
from worker_hooks.saved.checkpoint import Position
from worker_hooks.torch.state.whole import TorchState

SIZES_MB = (37, 150, 500, 1000)
COPY, TENSORS, CHECKPOINT, BYTES = KINDS = ("copy", "tensors", "checkpoint", "bytes")
COLUMNS = {COPY: "copy in memory", TENSORS: "as tensors", CHECKPOINT: "as checkpoint", BYTES: "bytes alone"}
PLACE = Position(0, Cursor(), Plan(0, (1,)), 0, 1)
HOST, TOKEN = "127.0.0.1", "of the benchmark"
LAYERS, OF_ADAM = 8, 3  # it has two numbers for each one of the model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--out", type=Path, default=RESULTS, help="folder of the page (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=7, help="of each kind and size (default: %(default)s)")
    parser.add_argument("--newcomer", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.newcomer:
        enter()
        return
    rows = measure(args.turns)
    write_csv(args.out / "entry-copy.csv", rows)
    figures = summary(rows)
    told = f"`python -m benchmarks.parts.entry_copy`: medians of {args.turns} turns on {where()}."
    update_page(args.out / "entry-copy.md", f"{told}\n\n{markdown([_line(one) for one in figures])}\n")
    if args.json:
        args.json.write_text(json.dumps(figures, indent=2) + "\n")


def measure(turns: int) -> list[dict[str, Any]]:
    """A row for every turn of every kind and size."""
    rows = []
    command = [sys.executable, "-m", "benchmarks.parts.entry_copy", "--newcomer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as newcomer:
        try:
            assert newcomer.stdout is not None
            address = newcomer.stdout.readline().strip()
            for size_mb in SIZES_MB:
                state = trained(size_mb)
                for turn in range(turns + 1):
                    for kind in KINDS:
                        time_s, cpu_s = give(address, size_mb, kind, state)
                        row = {"size_mb": size_mb, "kind": kind, "time_s": f"{time_s:.4f}", "cpu_s": f"{cpu_s:.4f}"}
                        rows += [row] if turn else []
        finally:
            newcomer.terminate()
    return rows


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Medians by size, and of the ratios of the turns."""
    figures = []
    for size_mb in SIZES_MB:
        taken = {kind: [row for row in rows if (row["size_mb"], row["kind"]) == (size_mb, kind)] for kind in KINDS}
        times = {kind: [float(row["time_s"]) for row in those] for kind, those in taken.items()}
        figures.append(
            {
                "size_mb": size_mb,
                "time_s": {kind: statistics.median(those) for kind, those in times.items()},
                "cpu_s": {kind: statistics.median(float(row["cpu_s"]) for row in taken[kind]) for kind in KINDS},
                "ratio": statistics.median(map(float.__truediv__, times[TENSORS], times[CHECKPOINT])),
            }
        )
    return figures


def _line(figures: dict[str, Any]) -> dict[str, str]:
    times, cpu = figures["time_s"], figures["cpu_s"]
    columns = {COLUMNS[kind]: f"{times[kind]:.3f} s" for kind in KINDS}
    return {
        "state": f"{figures['size_mb']:,} MB",
        **columns,
        "tensors to checkpoint": f"{figures['ratio']:.2f}",
        "CPU of the copy": f"{cpu[COPY]:.3f} s",
        "CPU as tensors": f"{cpu[TENSORS]:.3f} s",
        "CPU as checkpoint": f"{cpu[CHECKPOINT]:.3f} s",
    }


class Trained:
    """A model with Adam, of so many MB together."""

    def __init__(self, size_mb: int) -> None:
        width = round((size_mb * 1e6 / OF_ADAM / 4 / LAYERS) ** 0.5)
        self.models = [torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(LAYERS)))]
        self.optimizers = [torch.optim.Adam(self.models[0].parameters())]


def trained(size_mb: int) -> Trained:
    """One that has made a step."""
    one = Trained(size_mb)
    for parameter in one.models[0].parameters():
        parameter.grad = torch.full_like(parameter, 0.1)
    one.optimizers[0].step()
    one.optimizers[0].zero_grad()
    return one


def give(address: str, size_mb: int, kind: str, state: Trained) -> tuple[float, float]:
    """Give the newcomer the state; returns the seconds, and those of the CPU of both."""
    if kind == COPY:
        return copy(state)
    whole = TorchState(state.models, state.optimizers)
    size = len(whole.pack(PLACE)) if kind == CHECKPOINT else int(size_mb * 1e6)
    with closing(dial(address, TOKEN)) as connection, connection.makefile("wb") as out:
        write_piece(out, NO_SUM, json.dumps([size_mb, kind, size]).encode())
        out.flush()
        received(connection, 1)  # it is ready
        payload = np.ones(size, np.uint8) if kind == BYTES else None
        began_s, cpu_s = time.perf_counter(), time.process_time()
        if payload is not None:
            out.write(payload.data)
        elif kind == TENSORS:
            whole.send(PLACE, out)
        else:
            whole.write(PLACE, out)
        out.flush()
        its_cpu_s = float(np.frombuffer(received(connection, 8))[0])
        return time.perf_counter() - began_s, time.process_time() - cpu_s + its_cpu_s


def copy(state: Trained) -> tuple[float, float]:
    """Copy the state in memory; returns the seconds, and those of the CPU."""
    began_s, cpu_s = time.perf_counter(), time.process_time()
    TorchState(state.models, state.optimizers).send(PLACE, cast(BinaryIO, StateCopy()))
    return time.perf_counter() - began_s, time.process_time() - cpu_s


def enter() -> None:
    """Be the newcomer, again and again, as long as the other one lives."""
    listener, parent = PeerListener(HOST, TOKEN), os.getppid()
    print(listener.address, flush=True)
    while os.getppid() == parent:
        if (connection := listener.next(1.0)) is not None:
            with closing(connection), connection.makefile("rb", buffering=0) as stream:
                connection.sendall(np.float64(_take(connection, cast(BinaryIO, stream))).tobytes())


def _take(connection: socket, state: BinaryIO) -> float:
    """The seconds of CPU that it took."""
    size_mb, kind, size = json.loads(read_piece(state))
    mine, place = Trained(size_mb), np.ones(size, np.uint8)
    connection.sendall(b"r")
    cpu_s = time.process_time()
    if kind == TENSORS:
        TorchState(mine.models, mine.optimizers).receive(state)
    else:
        fill(state, place.data)
    if kind == CHECKPOINT:
        TorchState(mine.models, mine.optimizers).restore(io.BytesIO(place.data))
    return time.process_time() - cpu_s


if __name__ == "__main__":
    main()
