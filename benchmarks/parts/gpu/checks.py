"""What `benchmarks.parts.gpu_check` checks. The workers are in worker.py."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.parts.gpu.run import (
    MEMORY_SIZES,
    SIZES,
    Check,
    CheckFailed,
    Figures,
    Machine,
    command,
    figures_in,
    free_port,
    launch,
    trained,
)
from benchmarks.parts.gpu.worker import LATE_S

EXACT = 1e-9  # largest relative difference from one process in float64
MIXED = 0.01  # with mixed precision: of the way that the weights have gone


def build(machine: Machine) -> Figures:
    """`dynamix build-byteps --cuda`; in a rehearsal, what is installed."""
    from dynamix_ps.byteps_build import installed_info

    if machine.gpus:
        code, output = command("-m", "dynamix_ps.cli.main", "build-byteps", "--cuda", limit_s=240)
        if code != 0:
            raise CheckFailed(output)
    info = installed_info()
    figures = {"version": info.version, "cuda": info.cuda}
    if not info.ours or info.cuda != bool(machine.gpus):
        raise CheckFailed(f"expected our BytePS, built {'with' if machine.gpus else 'without'} CUDA", figures)
    return figures


def sums(plane: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        return _of_sums(*launch(machine, plane, "sums"), processes=len(SIZES))

    return run


def _of_sums(code: int, output: str, found: list[Figures], processes: int) -> Figures:
    if code != 0 or len(found) != processes:
        raise CheckFailed(f"exit code {code}: {output}")
    figures = {"sums": found[0]["sums"], "wrong": sum(one["wrong"] for one in found)}
    if figures["wrong"]:
        raise CheckFailed(f"{figures['wrong']} wrong sums", figures)
    return figures


def late_worker(plane: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        waiting, late = trained(machine, plane, "late")
        figures = {key: waiting[key] for key in ("waits_s", "waited_s")}
        if waiting["wrong"] or late["wrong"]:
            raise CheckFailed("the sum after the wait is wrong", figures)
        if not figures["waits_s"] or max(figures["waits_s"]) > 1.5 or figures["waited_s"] < LATE_S - 0.5:
            raise CheckFailed("waits of 1 s must return after about 1 s until the late worker is there", figures)
        return figures

    return run


def stopped_worker(plane: str) -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        began_s = time.monotonic()
        code, output, _ = launch(machine, plane, "stopped")
        figures = {"exit_code": code, "ended_after_s": round(time.monotonic() - began_s, 1)}
        if code == 0 or "worker-1 does not answer" not in output:
            raise CheckFailed(f"expected an error that names worker-1, got exit code {code}: {output}", figures)
        return figures

    return run


def equal_to_one_process(plane: str, mode: str, tolerance: float, settings: str = "") -> Callable[[Machine], Figures]:
    def run(machine: Machine) -> Figures:
        workers = trained(machine, plane, mode, settings=settings)
        figures = {"difference": workers[0]["difference"], "skipped_steps": workers[0]["skipped_steps"]}
        if len({one["digest"] for one in workers}) > 1:
            raise CheckFailed("the weights of the workers differ", figures)
        if not figures["difference"] <= tolerance or figures["skipped_steps"] != workers[0]["skipped_alone"]:
            raise CheckFailed(f"expected a difference of {tolerance:g} at most and equally many steps", figures)
        return figures

    return run


def too_little_memory(plane: str) -> Callable[[Machine], Figures]:
    """The second worker has memory for a small part of its batch."""

    def run(machine: Machine) -> Figures:
        workers = trained(machine, plane, "memory", sizes=MEMORY_SIZES, settings="memory: auto\n")
        figures = {"difference": workers[0]["difference"], "at_once": [one["at_once"] for one in workers]}
        if len({one["digest"] for one in workers}) > 1 or not figures["difference"] <= EXACT:
            raise CheckFailed(f"expected the weights of one process, within {EXACT:g}", figures)
        if machine.gpus and not workers[1]["at_once"] < MEMORY_SIZES[1]:
            raise CheckFailed("expected micro-batches on worker 1", figures)
        return figures

    return run


def different_devices(machine: Machine) -> Figures:
    """The second worker computes on the CPU."""
    code, output, _ = launch(machine, "byteps", "devices-differ")
    if code == 0 or "is not the same on all workers" not in output:
        raise CheckFailed(f"expected an error that names the devices, got exit code {code}: {output}")
    return {"exit_code": code}


def several_devices(machine: Machine) -> Figures:
    """One worker with a process for each of two devices, as `dynamix-bpslaunch` starts it."""
    folder = Path(tempfile.mkdtemp(prefix="devices-", dir=machine.folder))
    env = {
        "DMLC_NUM_WORKER": "1",
        "DMLC_NUM_SERVER": "1",
        "DMLC_PS_ROOT_URI": "127.0.0.1",
        "DMLC_PS_ROOT_PORT": str(free_port()),
        "DMLC_NODE_HOST": "127.0.0.1",
        "BYTEPS_FORCE_DISTRIBUTED": "1",
    }
    worker = [
        "python",
        "-m",
        "benchmarks.parts.gpu.worker",
        "devices",
        "--device",
        machine.device,
        "--out",
        str(folder),
    ]
    own = {"DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0", "NVIDIA_VISIBLE_DEVICES": "0,1"}
    with background(env | {"DMLC_ROLE": "scheduler"}), background(env | {"DMLC_ROLE": "server"}):
        code, output = command("-m", "dynamix_ps.cli.bpslaunch", *worker, env=env | own)
    return _of_sums(code, output, figures_in(folder), processes=2)


@contextmanager
def background(env: dict[str, str]) -> Iterator[None]:
    """A scheduler or server of BytePS, killed at the end if it has not ended by then."""
    process = subprocess.Popen(
        [sys.executable, "-c", "import byteps.server"],
        env={**os.environ, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def times(machine: Machine) -> Figures:
    """Milliseconds per iteration, median of each process; one run of each system."""
    figures: Figures = {"where": "shared GPU" if machine.shared else machine.device}
    problems = []
    backends = ["nccl", "gloo"] if machine.gpus else ["gloo"]
    systems = [("byteps", "byteps"), ("ring", "gloo"), *((f"ddp {backend}", None) for backend in backends)]
    for model in ("cnn", "vgg11") if machine.gpus else ("cnn",):
        for name, plane in systems:
            try:
                workers = (
                    trained(machine, plane, "times", "--model", model)
                    if plane
                    else ddp(machine, name.split()[1], model)
                )
                figures[f"{model} {name} ms"] = round(max(one["median_ms"] for one in workers), 2)
            except CheckFailed as error:
                problems.append(f"{model} over {name}: {error}")
    if problems:
        raise CheckFailed("; ".join(problems), figures)
    return figures


def ddp(machine: Machine, backend: str, model: str) -> list[Figures]:
    """DistributedDataParallel with its defaults: the same model, batches of the same sizes."""
    folder = Path(tempfile.mkdtemp(prefix="ddp-", dir=machine.folder))
    place = ["--nproc-per-node", str(len(SIZES)), "--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    worker = ["-m", "benchmarks.parts.gpu.worker", "ddp", "--model", model, "--backend", backend]
    worker += ["--device", machine.device, "--out", str(folder), *["--shared"] * machine.shared]
    code, output = command("-m", "torch.distributed.run", *place, *worker)
    found = figures_in(folder)
    if code != 0 or len(found) != len(SIZES):
        raise CheckFailed(f"exit code {code}: {output}")
    return found


def _on_both(name: str, about: str, of: Callable[[str], Callable[[Machine], Figures]]) -> list[Check]:
    """One check for each data plane; on GPU tensors the ring is NCCL's."""
    return [
        Check(f"byteps {name}", about, of("byteps"), needs=("build",)),
        Check(f"ring {name}", about, of("gloo")),
    ]


CHECKS: tuple[Check, ...] = (
    Check("build", "our BytePS builds with CUDA and loads.", build),
    *_on_both("sums", "Sums of GPU buffers are exact, also right after the kernels that fill them.", sums),
    *_on_both(
        "late worker", "A wait ends at its limit, and the sum still arrives when the late worker is there.", late_worker
    ),
    *_on_both("stopped worker", "A worker that stops for ever is named within the stall time.", stopped_worker),
    *_on_both(
        "training",
        "Uneven batches in float64 give the weights of one process.",
        lambda plane: equal_to_one_process(plane, "train", EXACT),
    ),
    *_on_both(
        "overlap",
        "`overlap: next_forward` gives the weights of one process; weights on a GPU wait for all sums.",
        lambda plane: equal_to_one_process(plane, "train", EXACT, "overlap: next_forward\nbucket_bytes: 4096\n"),
    ),
    *_on_both(
        "mixed precision",
        "autocast and GradScaler give the weights of one process; all skip a step that one worker spoils.",
        lambda plane: equal_to_one_process(plane, "amp", MIXED),
    ),
    *_on_both(
        "loader",
        "Batches of a DataLoader with processes and pinned memory give the weights of one process.",
        lambda plane: equal_to_one_process(plane, "loader", EXACT),
    ),
    *_on_both(
        "memory",
        "A batch that does not fit into the memory of one worker gives the weights of one process.",
        too_little_memory,
    ),
    Check(
        "different devices",
        "Workers on a GPU and on a CPU are refused.",
        different_devices,
        needs=("build",),
        least_gpus=1,
    ),
    Check(
        "several devices",
        "One worker with two devices (local_size 2) sums exactly.",
        several_devices,
        needs=("build",),
        least_gpus=2,
    ),
    Check("times", "Iteration times beside DistributedDataParallel; figures, no verdict.", times),
)
