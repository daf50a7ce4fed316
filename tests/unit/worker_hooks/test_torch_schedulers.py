"""The schedulers of a script are found among all objects of the process."""

from __future__ import annotations

import threading

import torch
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, OneCycleLR

from worker_hooks.torch.schedulers import Schedulers


def optimizer() -> torch.optim.Optimizer:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)


def test_those_of_these_optimizers_are_found_however_they_are_kept() -> None:
    first, second, other = optimizer(), optimizer(), optimizer()
    kept = [OneCycleLR(first, 0.1, total_steps=60), CosineAnnealingLR(second, 50), CosineAnnealingLR(other, 50)]
    kept[1].state_dict()  # its attributes are in a dict of its own from now on
    warm_up = LambdaLR(first, lambda step: 1.0)
    schedulers = Schedulers()
    schedulers.look_up([first, second])
    assert schedulers._found is not None
    assert {id(one) for one in schedulers._found} == {id(one) for one in (kept[0], kept[1], warm_up)}


def test_a_tuple_that_another_thread_is_making_does_not_break() -> None:
    mine, stop, broken = optimizer(), threading.Event(), list[SystemError]()

    def make_tuples() -> None:
        while not stop.is_set():
            try:
                tuple(number for number in range(1000))
            except SystemError as error:
                broken.append(error)

    thread = threading.Thread(target=make_tuples)
    thread.start()
    try:
        for _ in range(20):
            Schedulers().look_up([mine])
    finally:
        stop.set()
        thread.join()
    assert not broken
