"""All workers do the same, or all of them stop. Pure.

Every sum carries a code of what each worker is doing: which kind of sum it takes part in, in which iteration, at which
place in the data, after how many steps of its optimizers, with which parameters. One more thing travels with it, a
sample of the weights. If anything differs, the workers tell each other in words (`Account`), and all of them raise the
same error before a weight changes.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import NamedTuple, TypeVar

from dynamix_ps.errors import TrainingError

GRADIENTS = "sends the gradients"  # of an iteration
WEIGHTED_GRADIENTS = "sends the gradients with a weight"
GRADIENTS_OF_SUMS = 'sends the gradients with reduction="sum"'
LAYOUT = "changes which parameters are trained"
_Of = TypeVar("_Of")
CODE_BITS = 24  # exact in the float32 trailer


class DataPlace(NamedTuple):
    """Where in the data an iteration begins."""

    epoch: int
    position: int  # samples of this epoch that are done
    seed: int  # of the order
    drawn: int = 0  # code of the order, where a sampler of the script has drawn it
    owed: tuple[tuple[int, int, int], ...] = ()  # epoch, begin and end of samples that are to come again

    def __str__(self) -> str:
        words = f"epoch {self.epoch}, sample {self.position}, seed {self.seed}"
        if self.owed:
            words += f", owed {' '.join(f'{epoch}:{begin}-{end}' for epoch, begin, end in self.owed)}"
        return words + (f", order of the pass {self.drawn:08x}" if self.drawn else "")


class Doing(NamedTuple):
    """What a worker is about to do. Workers whose `kind` differs are at different places of the script."""

    kind: str  # GRADIENTS, or the call that all workers must make
    iteration: int
    steps: int  # that all optimizers have taken so far
    layout: int  # code of the parameters that are summed
    place: DataPlace
    setting: str = ""  # anything else that must be equal, such as the scale of a GradScaler
    refusal: str = ""  # why the loss of this worker must not be in the sum

    def code(self) -> int:
        """24 bits; workers that do different things have different codes, but for one case in 16 million.

        The words are in it by codes that stay, so it is that of a few whole numbers: the same in every process.
        """
        words = _code_of(self.kind), _code_of(self.setting), _code_of(self.refusal)
        return hash((words, self.iteration, self.steps, self.layout, self.place)) & (1 << CODE_BITS) - 1


@lru_cache
def _code_of(words: str) -> int:
    return zlib.crc32(words.encode())


class Account(NamedTuple):
    """What a worker tells the others when something differs."""

    doing: Doing
    parameters: dict[str, str]  # name -> shape and type, of every parameter that is summed
    weights: dict[str, tuple[float, float]]  # name -> direction and size of its sample, as in the trailer

    def pack(self) -> bytes:
        return json.dumps(self).encode()

    @classmethod
    def unpack(cls, packed: bytes) -> Account:
        (kind, iteration, steps, layout, place, *words), parameters, weights = json.loads(packed)
        epoch, position, seed, drawn, owed = place
        place = DataPlace(epoch, position, seed, drawn, tuple((of, begin, end) for of, begin, end in owed))
        return cls(Doing(kind, iteration, steps, layout, place, *words), parameters, weights)


def weights_differ(values: Sequence[Sequence[float]], tolerance: float) -> bool:
    """Whether samples of the weights (directions, sizes; each with one value per worker) differ between workers."""
    return any(max(part) - min(part) > tolerance for part in values)


def disagreement(accounts: Mapping[int, Account], tolerance: float) -> TrainingError:
    """The error that all workers raise. `accounts` are those of the workers that are there, by rank, rising."""
    of_rank = {rank: account.doing for rank, account in accounts.items()}
    doings = list(of_rank.values())
    one_iteration = not _differ([doing.iteration for doing in doings])
    if any(doing.kind == LAYOUT for doing in doings) and one_iteration:
        return _parameters_of(accounts)
    if {doing.kind for doing in doings} == {GRADIENTS, WEIGHTED_GRADIENTS} and one_iteration:
        return _weight_of_some(of_rank)
    if _differ([doing.kind for doing in doings]) or not one_iteration:
        return _different_calls(of_rank)
    if any(doing.refusal for doing in doings):
        return refused_loss(of_rank)
    for values, error_of in (
        ([doing.place for doing in doings], _different_places),
        ([doing.steps for doing in doings], _different_steps),
        ([json.dumps(account.parameters) for account in accounts.values()], None),
        ([doing.setting for doing in doings], _different_settings),
    ):
        if _differ(values):
            return error_of(of_rank) if error_of else _parameters_of(accounts)
    return _different_weights(accounts, tolerance)


def _differ(values: Sequence[object]) -> bool:
    return any(value != values[0] for value in values)


def _different_calls(doings: Mapping[int, Doing]) -> TrainingError:
    places = {rank: _place(doing) for rank, doing in doings.items()}
    told = "; ".join(
        f"{name_workers([rank for rank, other in places.items() if other == place])} {place}"
        for place in dict.fromkeys(places.values())
    )
    return TrainingError(
        f"the workers are at different places of the script: {told}. "
        "Every worker must run the same loops and make the same calls; no `if run.rank == 0` around them"
    )


def _weight_of_some(doings: Mapping[int, Doing]) -> TrainingError:
    without = [rank for rank, doing in doings.items() if doing.kind == GRADIENTS]
    iteration = _first(doings).iteration
    return TrainingError(
        f"{name_workers(without)} called run.backward() without weight= in iteration {iteration}, others "
        "with it; give the weight on every worker, 0 where there is nothing to learn from, or on none"
    )


def refused_loss(doings: Mapping[int, Doing]) -> TrainingError:
    """The error for a loss that must not be in the sum: what is said of it by the first worker that says something."""
    rank, doing = next((rank, doing) for rank, doing in doings.items() if doing.refusal)
    return TrainingError(
        f"the loss of {name_workers([rank])} in iteration {doing.iteration} {doing.refusal}. run.backward(loss) takes "
        "the mean over the batch; no step was made with this loss"
    )


def _different_places(doings: Mapping[int, Doing]) -> TrainingError:
    told = ", ".join(f"worker {rank}: {doing.place}" for rank, doing in doings.items())
    if not _differ([doing.place._replace(drawn=0) for doing in doings.values()]):
        return TrainingError(
            f"the sampler has drawn another order on some workers ({told}); seed its generator alike on every worker, "
            "and leave it to the hook to give each worker its part"
        )
    return TrainingError(
        f"the workers are at different places in the data in iteration {_first(doings).iteration} ({told}); "
        "leave a loop over batches (break) after the same iteration on every worker, and give run.load_state_dict() "
        "the same state on every worker"
    )


def _different_steps(doings: Mapping[int, Doing]) -> TrainingError:
    told = ", ".join(f"worker {rank}: {doing.steps}" for rank, doing in doings.items())
    return TrainingError(
        f"the optimizers have taken different numbers of steps before iteration {_first(doings).iteration} ({told}); "
        "a step that is left out must be left out on every worker, so decide it by values that all share"
    )


def _different_settings(doings: Mapping[int, Doing]) -> TrainingError:
    told = "; ".join(f"worker {rank}: {doing.setting or 'none'}" for rank, doing in doings.items())
    return TrainingError(
        f"settings of the training differ between workers in iteration {_first(doings).iteration} ({told}); "
        "make them the same on every worker; a schedule that follows a loss needs the same loss everywhere, "
        "such as that of run.evaluate()"
    )


def _place(doing: Doing) -> str:
    if doing.kind in (GRADIENTS, WEIGHTED_GRADIENTS, GRADIENTS_OF_SUMS):
        return f"{doing.kind} of iteration {doing.iteration}"
    return f"calls {doing.kind} after {doing.iteration} iterations"


def _first(of_rank: Mapping[int, _Of]) -> _Of:
    return next(iter(of_rank.values()))


def _parameters_of(accounts: Mapping[int, Account]) -> TrainingError:
    parameters = {rank: account.parameters for rank, account in accounts.items()}
    return different_parameters(parameters, f"in iteration {_first(accounts).doing.iteration}")


def on_device(kind: str) -> str:
    """What is said of a parameter's kind of device, such as `cuda`: nothing for the CPU."""
    return "" if kind == "cpu" else f" on {kind}"


def different_parameters(parameters: Mapping[int, Mapping[str, str]], when: str) -> TrainingError:
    """The error for workers that do not train the same.

    Args:
        parameters: shape and type of every trained parameter by name, one mapping per worker, by rank.
        when: the place in the script where they differ, such as "in iteration 3".
    """
    for name in dict.fromkeys(name for described in parameters.values() for name in described):
        found = {rank: described.get(name, "not trained") for rank, described in parameters.items()}
        if _differ(list(found.values())):
            told = ", ".join(f"worker {rank}: {value}" for rank, value in found.items())
            return TrainingError(
                f"parameter {name} is not the same on all workers {when} ({told}); "
                "freeze, add or change parameters on every worker in the same iteration"
            )
    return TrainingError(
        f"the parameters are in another order on some workers {when}; "
        "build models and optimizers in the same order on every worker"
    )


def _different_weights(accounts: Mapping[int, Account], tolerance: float) -> TrainingError:
    first, ranks = _first(accounts), list(accounts)
    iteration = first.doing.iteration
    for name in first.weights:
        values = [account.weights[name] for account in accounts.values()]
        if weights_differ(list(zip(*values, strict=True)), tolerance):
            odd = [ranks[place] for place in _odd_places(values, tolerance)]
            return TrainingError(
                f"the weights differ between workers before the step of iteration {iteration}: {name} of "
                f"{name_workers(odd)} is not that of the others; change weights on every worker alike, "
                "or let the optimizer do it"
            )
    return TrainingError(
        f"the weights differ between workers in iteration {iteration}; change weights on every worker alike"
    )


def _odd_places(values: Sequence[tuple[float, float]], tolerance: float) -> list[int]:
    """The places that differ from the largest group of equal ones; of groups of one size, that of the first."""
    same = [
        [at for at, other in enumerate(values) if not weights_differ(list(zip(one, other, strict=True)), tolerance)]
        for one in values
    ]
    largest = max(same, key=len)
    return [place for place in range(len(values)) if place not in largest]


def name_workers(ranks: Sequence[int]) -> str:
    """Such as `workers 0, 2`."""
    return f"worker{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
