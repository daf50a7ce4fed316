"""A role of `benchmarks.parts.probe`: a BytePS server, scheduler or worker that reads its traffic as in a real run.

    python -m benchmarks.parts.processes.probe_role --socket PATH [--log FILE]

A worker trains the demo's CNN until it is killed, and writes a line per iteration: its end (monotonic clock, seconds)
and its duration (seconds). While there is a probe at PATH, a worker reads its traffic at the end of every window, in a
separate thread; a server or scheduler reads it every second. Without a probe they read nothing.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
from pathlib import Path

import torch

from benchmarks.parts.processes.comm_worker import batches, fresh, make_ours
from dynamix_ps.metrics.network.connection import SourceError
from dynamix_ps.metrics.network.meter import TrafficMeter
from dynamix_ps.metrics.network.probe.client import ProbeSource

MODEL = "cnn"
WINDOW = 20  # iterations, as in configs/demo.yaml
INTERVAL_S = 1.0  # metrics.interval_s


class Reader:
    """Reads the traffic of this process on request and every `interval_s` seconds, while there is a probe."""

    def __init__(self, path: str, interval_s: float | None) -> None:
        self.due = threading.Event()
        self._path, self._interval_s = path, interval_s
        threading.Thread(target=self._run, name="network-metrics", daemon=True).start()

    def _run(self) -> None:
        source, meter = ProbeSource(self._path), TrafficMeter()
        while True:
            self.due.wait(self._interval_s)
            self.due.clear()
            try:
                if os.path.exists(self._path):
                    meter.update(source.read())
                else:
                    source.close()
            except SourceError:  # the probe is starting or ending
                source.close()


def train(reader: Reader, log_file: Path) -> None:
    from dynamix_ps.comm import open_comm

    torch.set_num_threads(1)
    comm = open_comm("byteps")
    comm.init()
    step, _ = make_ours(MODEL, *fresh(MODEL), batches(comm.rank), comm)
    iteration = 0
    with log_file.open("w", buffering=1) as log:
        while True:
            began_s = time.monotonic()
            step(iteration)
            ended_s = time.monotonic()
            log.write(f"{ended_s:.6f} {ended_s - began_s:.6f}\n")
            iteration += 1
            if iteration % WINDOW == 0:
                reader.due.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--socket", required=True, metavar="PATH")
    parser.add_argument("--log", type=Path, metavar="FOLDER", help="where a worker writes worker-<rank>")
    args = parser.parse_args()
    if os.environ["DMLC_ROLE"] == "worker":
        train(Reader(args.socket, None), args.log / f"worker-{os.environ['DMLC_WORKER_ID']}")
    else:
        Reader(args.socket, INTERVAL_S)
        import byteps.server  # noqa: F401  runs until all workers have left


if __name__ == "__main__":
    main()
