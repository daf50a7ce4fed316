"""Worker processes that stay up and run one script after the other, with the data plane kept open between them."""

from __future__ import annotations

import json
import os
import select
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import worker_hooks.session
from tests.cases.harness import RecordingAttach, in_double
from tests.forked import ForkServer, Worker
from tests.property.script import Script, train

LIMIT_S = 60.0  # for one script


class Pool:
    """`size` workers on gloo. When a script ends them, the next one gets new ones. A context manager."""

    def __init__(self, size: int, folder: Path, serves: str = "tests.property.pool:serve") -> None:
        """`folder`: for what the workers write. `serves`: what runs in them."""
        self.size, self._folder, self._started, self._serves = size, folder, 0, serves
        self._server = ForkServer("dynamix_ps.torch,tests.property.script")
        self._pipes: list[tuple[IO[str], IO[str]]] = []

    def run(self, script: dict[str, Any]) -> list[dict[str, Any]] | list[Worker]:
        """What every worker tells of this script, such as its `values` and what it `recorded`; or how all have ended.

        Raises AssertionError if some end and others do not, or if they take too long.
        """
        if not self._pipes:
            self._start()
        for to, _ in self._pipes:
            to.write(json.dumps(script) + "\n")
            to.flush()
        answers = [self._answer(back) for _, back in self._pipes]
        if all(answers):
            return [json.loads(answer) for answer in answers]
        for pipes in self._pipes:
            for pipe in pipes:
                pipe.close()
        self._pipes = []
        ended = self._server.wait()
        assert not any(answers), f"some workers went on: {[bool(answer) for answer in answers]}, {ended}"
        return ended

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for to, _ in self._pipes:
            to.close()  # the workers end by themselves
        self._server.__exit__(kind, error, trace)
        for _, back in self._pipes:
            back.close()

    def _start(self) -> None:
        self._started += 1
        folder = self._folder / str(self._started)
        folder.mkdir()
        for rank in range(self.size):
            os.mkfifo(folder / f"in-{rank}")
            os.mkfifo(folder / f"out-{rank}")
        self._server.start(
            self._serves,
            str(folder),
            folder,
            sizes=(8,) * self.size,
            limit_s=3600.0,
            mode="observe",
            lr_rule="none",
            metrics={"network": "off"},
        )
        self._pipes = [((folder / f"in-{r}").open("w"), (folder / f"out-{r}").open()) for r in range(self.size)]

    @staticmethod
    def _answer(back: IO[str]) -> str:
        ready, _, _ = select.select([back], [], [], LIMIT_S)
        assert ready, f"a worker has not answered for {LIMIT_S:g} s"
        return back.readline()


# -- in a worker ------------------------------------------------------------------------------------------------------


def serve(folder: str) -> None:
    """Run the scripts that come, until the pipe is closed."""
    answer_all(folder, lambda job: run_script(Script.of(job)))


def answer_all(folder: str, run: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer what comes with what `run` returns, until the pipe is closed."""
    rank = os.environ["DMLC_WORKER_ID"]
    with Path(folder, f"in-{rank}").open() as jobs, Path(folder, f"out-{rank}").open("w") as answers:
        for line in jobs:
            worker_hooks.session._accounts.clear()  # a script begins with its own sizes
            answers.write(json.dumps(run(json.loads(line))) + "\n")
            answers.flush()


def run_script(script: Script) -> dict[str, Any]:
    attach = RecordingAttach([(0, script.sizes), *script.plans])
    return {"values": in_double(lambda attach: train(script, attach), attach), "recorded": attach.recorded}
