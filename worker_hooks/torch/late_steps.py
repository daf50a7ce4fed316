"""Steps of an optimizer that are taken bucket by bucket, each when its sum is there or when somebody reads a weight.

The optimizers of torch compute every parameter by itself. So a step with the parameters of one bucket, then with those
of the next one, and so on, is a step with all of them, bit for bit: with the same settings, and with one more in the
counter of each. The script's own call of `step()` makes it for the parameters whose sums are there. For the others it
is made later, with the settings of that call.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils._python_dispatch import _disable_current_modes

from worker_hooks.torch import watched_calls
from worker_hooks.torch.late_gradients import gradient_of, set_gradient
from worker_hooks.torch.step_hooks import StepHooks

if TYPE_CHECKING:
    from worker_hooks.exchange.gradient_exchange import Bucket
    from worker_hooks.sums import Sums
    from worker_hooks.torch.late_gradients import LateGradients

_NAMES = "Adadelta Adafactor Adagrad Adam AdamW Adamax ASGD Muon NAdam RAdam RMSprop Rprop SGD"
_HAVE_STATE = {dict, defaultdict, torch.Tensor}
_PLAIN = (torch.Tensor, torch.nn.Parameter)
KNOWN = {found for name in _NAMES.split() if (found := getattr(torch.optim, name, None))}  # torch 2.4 lacks some

Groups = list[dict[str, Any]]


class LateSteps:
    """The steps of one optimizer. `late` gets the reason why it waits for all sums."""

    def __init__(self, optimizer: torch.optim.Optimizer, sums: Sums, late: LateGradients) -> None:
        self._optimizer, self._sums, self._late = optimizer, sums, late
        self._begun: list[torch.nn.Parameter] = []  # parameters that `step()` is to leave alone
        self._due = 0  # buckets whose part of the step is to come
        self._known = 0  # states before the step
        self._states: LateStates | None = None  # in the place of the optimizer's, while some are

    def begin(self) -> None:
        """`step()` is about to begin, with its settings: keep it from the parameters whose sums are not there."""
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        if any(one in self._late.held for one in parameters):
            self._sums.complete()  # of a step before, without a sum between
        if not self._late.due:
            return
        if reason := refusal(self._optimizer) or self._late.weights.refusal(parameters):
            self.wait(reason)
            return
        for bucket in self._late.due_buckets():
            if not bucket.in_place:  # only its sum shows which gradients there are
                self._sums.arrive(bucket)
        self._known = len(self._optimizer.state)
        for bucket, groups in self._parts():
            stepped = [parameter for group in groups for parameter in group["params"]]
            for parameter in stepped:
                self._late.held[parameter] = gradient_of(parameter)
                set_gradient(parameter, None)
            self._begun += stepped
            self._due += 1
            self._late.then(bucket, lambda groups=groups: self._step(groups))  # type: ignore[misc]

    def wait(self, reason: str) -> None:
        """This step is made at once, with all gradients. `reason`: for people."""
        if self._late.due:
            self._late.tell(reason)
            self._sums.complete()

    def end(self) -> None:
        """`step()` is over: parameters have their gradients again, and wait for their part of the step."""
        self._late.has_stepped = True
        if not self._begun:
            return
        for parameter in self._begun:
            set_gradient(parameter, self._late.held[parameter])
        self._states = LateStates(self._optimizer.state, self._sums.complete)
        self._optimizer.state = self._states
        self._late.weights.begin(self._begun)
        self._begun = []

    def _parts(self) -> Iterator[tuple[Bucket, Groups]]:
        """The groups of the optimizer as they are now, with the parameters of each late bucket."""
        groups = self._optimizer.param_groups
        parts: dict[Bucket, list[list[Any]]] = {bucket: [[] for _ in groups] for bucket in self._late.due}
        for number, group in enumerate(groups):
            for parameter in group["params"]:
                if (bucket := self._late.bucket_of(parameter)) in parts:
                    parts[bucket][number].append(parameter)
        for bucket, found in parts.items():
            if any(found):
                yield bucket, [_as_now(group, part) for group, part in zip(groups, found, strict=True)]

    def _step(self, groups: Groups) -> None:
        """A part of a step: its sum is there."""
        optimizer, late = self._optimizer, self._late
        parameters = [parameter for group in groups for parameter in group["params"]]
        shown = [gradient_of(parameter) for parameter in parameters]
        for parameter in parameters:
            set_gradient(parameter, late.held.pop(parameter))
        part = object.__new__(type(optimizer))  # the script's own stays as it is for its other threads
        states = optimizer.state if self._states is None else self._states.real
        part.__dict__ = vars(optimizer) | {"param_groups": groups, "state": states}
        try:
            with _plain_torch():
                inspect.unwrap(type(optimizer).step)(part)  # without hooks, and what dynamo wants around a step
        finally:
            for parameter, gradient in zip(parameters, shown, strict=True):
                set_gradient(parameter, gradient)
            late.weights.end(parameters)
            self._due -= 1
            if not self._due and self._states is not None:
                self._order(self._states.real)
                if optimizer.state is self._states:  # the script has loaded no other
                    optimizer.state = self._states.real
                self._states = None

    def _order(self, states: Any) -> None:
        """States that the parts have made come in the order of the parameters, as one step makes them."""
        if made := set(list(states)[self._known :]):
            for group in self._optimizer.param_groups:
                for parameter in group["params"]:
                    if parameter in made:
                        states[parameter] = states.pop(parameter)


def _as_now(group: dict[str, Any], parameters: list[Any]) -> dict[str, Any]:
    """The settings of the group, whatever schedules do with them later, for these parameters."""
    settings = {
        name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value) for name, value in group.items()
    }
    return settings | {"params": parameters}


@contextmanager
def _plain_torch() -> Iterator[None]:
    """As outside of all that the script may have around its forward pass."""
    with ExitStack() as modes:
        modes.enter_context(torch.inference_mode(False))
        modes.enter_context(torch.no_grad())
        modes.enter_context(torch._C.DisableTorchFunction())
        if torch.is_autocast_enabled("cpu"):
            modes.enter_context(torch.autocast("cpu", enabled=False))
        if torch._C._len_torch_dispatch_stack():
            modes.enter_context(_disable_current_modes())
        if (tracing := torch._C._get_tracing_state()) is not None:
            set_tracing: Any = torch._C._set_tracing_state  # type: ignore[attr-defined]
            set_tracing(None)
            modes.callback(set_tracing, tracing)
        yield


class LateStates(defaultdict[Any, Any]):
    """In the place of an optimizer's states, while some are to change: whoever looks at one waits.

    Attributes:
        real: the states.
    """

    def __init__(self, real: Any, wait: Callable[[], None]) -> None:
        super().__init__(dict)
        self.real, self._wait = real, wait


def _forward(name: str) -> Callable[..., Any]:
    def method(states: LateStates, *args: Any, **kwargs: Any) -> Any:
        states._wait()
        return getattr(states.real, name)(*args, **kwargs)

    return method


for _name in (
    *("__contains__", "__copy__", "__delitem__", "__eq__", "__getitem__", "__ior__", "__iter__", "__len__", "__ne__"),
    *("__or__", "__reduce_ex__", "__repr__", "__reversed__", "__ror__", "__setitem__", "clear", "copy", "get", "items"),
    *("keys", "pop", "popitem", "setdefault", "update", "values"),
):
    setattr(LateStates, _name, _forward(_name))


def refusal(optimizer: torch.optim.Optimizer) -> str:
    """Why a step in parts might not be that of plain torch; empty: it is."""
    name = type(optimizer).__name__
    if type(optimizer) not in KNOWN or not hasattr(type(optimizer).step, "__wrapped__"):
        return f"{name} is no optimizer of torch.optim, and may look at all parameters together"
    if any(group.get("differentiable") for group in optimizer.param_groups):
        return f"{name} is differentiable"
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    if len({one.device.type for one in parameters}) > 1 or any(type(one) not in _PLAIN for one in parameters):
        return f"{name} has parameters of several kinds, and chooses by all of them how it computes"
    if len(set(map(id, parameters))) < len(parameters):
        return f"{name} has a parameter twice"
    hooks = [*optimizer._optimizer_step_pre_hooks.values(), *optimizer._optimizer_step_post_hooks.values()]
    hooks += [*torch_optimizer._global_optimizer_pre_hooks.values()]
    hooks += [*torch_optimizer._global_optimizer_post_hooks.values()]
    if any(not _is_own(hook) for hook in hooks):
        return f"{name} has hooks of the script, which may look at all parameters"
    return _known_states(optimizer)


def _known_states(optimizer: torch.optim.Optimizer) -> str:
    """Why somebody might read states unseen; empty: nobody else has them."""
    states = optimizer.state
    users = [_most_users([states]) - 2, _most_users(states.values())]  # the optimizer and this function know it, too
    users += [_most_users(one.values()) for one in states.values()]
    return (
        f"the script knows states of {type(optimizer).__name__} by other names, and may read them unseen"
        if max(users) > _USERS
        else ""
    )


def _most_users(found: Iterable[Any]) -> int:
    """How many know the one of these dictionaries and tensors that most know."""
    return max((sys.getrefcount(one) for one in found if type(one) in _HAVE_STATE), default=0)


_USERS = _most_users({0: torch.empty(0)}.values())  # of one that nobody else knows


def _is_own(hook: Any) -> bool:
    return hook is watched_calls.before_step or isinstance(getattr(hook, "__self__", None), StepHooks)
