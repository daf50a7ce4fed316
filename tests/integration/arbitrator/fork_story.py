"""A training process that forks like a data loader while its client is busy.

test_fork.py runs it in a new interpreter. It prints "connected", waits for a line, forks, prints which children failed,
waits until its reports are sent, prints that, and leaves at the next line.
"""

from __future__ import annotations

import multiprocessing
import sys
from typing import Any

from dynamix_ps.messages import Plan
from tests.integration.arbitrator.arbitrator_process import PATIENCE_S, Worker, wait_until

START = Plan(0, (64, 64, 64))


def use_in_child(worker: Worker, done: Any) -> None:
    """What a data-loader worker might do by mistake with the object it inherited."""
    worker.report(START, 5)
    worker.client.progress(3)
    worker.client.newest_plan()
    worker.client.close(60.0)
    done.put("done")


def main(address: str, forks: int) -> int:
    context = multiprocessing.get_context("fork")
    workers = [Worker(address, rank) for rank in range(3)]
    for worker in workers:
        worker.client.start()
    wait_until(lambda: all(len(worker.client.peers()) == 3 for worker in workers), "all to be connected")
    print("connected", flush=True)
    sys.stdin.readline()
    done = context.SimpleQueue()
    failed = []
    for number in range(forks):
        for worker in workers:
            worker.report(START, number)
        child = context.Process(target=use_in_child, args=(workers[number % 3], done))
        child.start()
        child.join(PATIENCE_S)
        if child.exitcode != 0:
            failed.append(child.exitcode)
            child.kill()
    print("failed children:", failed, flush=True)
    wait_until(lambda: all(not worker.client._records for worker in workers), "the parent's reports")
    print("events:", [worker.kinds() for worker in workers], flush=True)
    sys.stdin.readline()
    for worker in workers:
        worker.client.close(PATIENCE_S)
    return 1 if failed else 0
