"""Several loops, several trainings, one after the other in one script."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from tests.cases.harness import data, net, weights


def steps(run: Any, model: Any, optimizer: Any, batches: Any) -> int:
    """Train over these batches; returns how many there were."""
    count = 0
    for _, x, y in batches:
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        count += 1
    return count


def close_then_attach_again(attach: Any) -> Any:
    """Another model, another optimizer, another length."""
    found = []
    for number in range(2):
        torch.manual_seed(number)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = attach(model, optimizer, data(192 + 64 * number))
        count = steps(run, model, optimizer, run.batches(epochs=2))
        found += [count, run.iteration, *weights(model)]
        run.close()
    return found


def attach_the_same_again(attach: Any) -> Any:
    """The same model and optimizer, without close: the first training ends."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        run = attach(model, optimizer, data())
        steps(run, model, optimizer, run.batches(epochs=1))
    run.close()
    return weights(model)


def folds(attach: Any, close: bool) -> Any:
    found = []
    everything = data()
    for fold in range(3):
        keep = torch.arange(len(everything)) % 3 != fold
        part = TensorDataset(torch.arange(int(keep.sum())), *(column[keep] for column in everything.tensors[1:]))
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        run = attach(model, optimizer, part)
        found.append(steps(run, model, optimizer, run.batches(epochs=2)))
        found += weights(model)
        if close:
            run.close()
    return found


def folds_closed(attach: Any) -> Any:
    return folds(attach, close=True)


def folds_not_closed(attach: Any) -> Any:
    return folds(attach, close=False)


def second_optimizer(attach: Any) -> Any:
    """A break, an evaluation, and a second loop with another optimizer on the same model."""
    model = net()
    first = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, first, data())
    for _, x, y in run.batches(epochs=20):
        first.zero_grad()
        run.backward(mse_loss(model(x), y))
        first.step()
        if run.iteration >= 7 - (run.size == 1):  # a plain run counts after the body
            break
    second = torch.optim.Adam(model.parameters(), lr=0.01)
    count = steps(run, model, second, run.batches(epochs=2))
    run.close()
    return count, weights(model)


def one_epoch_in_a_loop(attach: Any) -> Any:
    """Trains three epochs, as it says."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    counts = [steps(run, model, optimizer, run.batches(epochs=1)) for _ in range(3)]
    run.close()
    return counts, weights(model)


def epochs_in_all(attach: Any) -> Any:
    """The other usual loop: epochs=epoch + 1."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    counts = [steps(run, model, optimizer, run.batches(epochs=epoch + 1)) for epoch in range(3)]
    run.close()
    return counts, weights(model)


def epochs_of_the_run(attach: Any) -> Any:
    """for epoch in run.epochs(3)."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run = attach(model, optimizer, data())
    counts = [steps(run, model, optimizer, run.batches()) for _ in run.epochs(3)]
    run.close()
    return counts, weights(model)


def scheduler(attach: Any) -> Any:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=12)
    run = attach(model, optimizer, data())
    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        schedule.step()
    run.close()
    return schedule.get_last_lr(), weights(model)


def evaluation(attach: Any) -> Any:
    """In mid-run, on all workers: the value is that of one process over everything."""
    model, found = net(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    run, everything = attach(model, optimizer, data()), data(100)

    def score(_: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (model(x) - y).abs().sum()

    for _, x, y in run.batches(epochs=2):
        optimizer.zero_grad()
        run.backward(mse_loss(model(x), y))
        optimizer.step()
        if (run.iteration + (run.size == 1)) % 5 == 0:
            found.append(float(run.evaluate(everything, score)))
    run.close()
    return found, weights(model)


def interrupted(attach: Any) -> Any:
    """An exception in mid-epoch, as Ctrl-C in a notebook, and then the same again."""
    found = []
    for attempt in range(2):
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        run = attach(model, optimizer, data())
        try:
            for number, (_, x, y) in enumerate(run.batches(epochs=2)):
                optimizer.zero_grad()
                run.backward(mse_loss(model(x), y))
                if attempt == 0 and number == 3:
                    raise KeyboardInterrupt
                optimizer.step()
        except KeyboardInterrupt:
            continue
        found += weights(model)
    run.close()
    return found


def own_checkpoint(attach: Any) -> Any:
    """The script's own file in mid-epoch, and another attach that goes on from it: three epochs in all."""
    file, counts = io.BytesIO(), []
    for resumed in (False, True):
        torch.manual_seed(1 + resumed)
        model = net()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=4, gamma=0.5)
        if resumed:
            saved = torch.load(file, weights_only=False)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        run = attach(model, optimizer, data())
        run.register(schedule=schedule)
        if resumed:
            run.load_state_dict(saved["run"])
        counts.append(0)
        for _, x, y in run.batches(epochs=3):
            optimizer.zero_grad()
            run.backward(mse_loss(model(x), y))
            optimizer.step()
            schedule.step()
            counts[-1] += 1
            if not resumed and counts[-1] == 8:
                break
        if not resumed:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "run": run.state_dict()}
            torch.save(state, file)
            file.seek(0)
        run.close()
    return counts, schedule.get_last_lr(), weights(model)
