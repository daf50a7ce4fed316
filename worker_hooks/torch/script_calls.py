"""What a script calls in torch by itself, and what it means for its training: backward passes, steps, hooks, loaders.

watched_calls.py sees the calls.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader

from dynamix_ps.errors import TrainingError
from worker_hooks.torch import watched_calls
from worker_hooks.torch.data.loader import CLOSED, TorchLoader, check_loader
from worker_hooks.torch.gradient_hooks import GradientHooks
from worker_hooks.torch.gradients import TorchExchange
from worker_hooks.torch.loss.graph_nodes import reaches
from worker_hooks.torch.parameters import TorchParameters
from worker_hooks.torch.step_hooks import StepHooks
from worker_hooks.torch.summed_gradients import SummedGradients

if TYPE_CHECKING:
    from worker_hooks.training import Training

_open: list[ScriptCalls] = []


class ScriptCalls:
    """The calls that concern one training.

    Attributes:
        stepped_by: the optimizers of `attach`, and those of later phases.
        summed: what the last sum has left, where losses are sums.
    """

    _loader: DataLoader[Any] | None = None  # with `run.batch_sampler()`, that the batches come from

    def __init__(
        self,
        training: Training,
        optimizers: Sequence[torch.optim.Optimizer],
        parameters: TorchParameters,
        script_hooks: GradientHooks,
    ) -> None:
        self._training, self._parameters = training, parameters
        self._script_hooks, self.summed = script_hooks, SummedGradients(parameters)
        self._in_backward = False
        self._options: dict[str, Any] = {}  # of the call of backward that is a sum
        self._additions = 0  # gradients that were added outside run.backward(), as far as their losses are known
        self._hooks: list[Any] = []
        self.stepped_by: list[torch.optim.Optimizer] = []
        for optimizer in optimizers:
            self.hook_steps(optimizer)
        watched_calls.watch(self)
        _open.append(self)

    def close(self) -> None:
        """The training is over."""
        for hook in self._hooks:
            hook.remove()
        watched_calls.unwatch(self)
        _open.remove(self)

    @property
    def _exchange(self) -> TorchExchange:
        exchange = self._training.sums.exchange
        assert isinstance(exchange, TorchExchange)
        return exchange

    def backward(self, loss: torch.Tensor) -> None:
        """The backward pass of `run.backward()`."""
        self._in_backward = True
        try:
            torch.autograd.backward(loss, **self._options)
        finally:
            self._in_backward = False

    def batches_of(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """The script loops over its loader with `run.batch_sampler()`: the batches of a pass, loaded as it says."""
        training = self._training
        if training.is_closed:
            raise TrainingError(CLOSED)
        if loader is not self._loader:
            check_loader(loader)
            if loader.dataset is not training.data.source.dataset:
                raise TrainingError(
                    "a DataLoader with run.batch_sampler() has another data set than attach() got; pass the same object"
                )
            source = TorchLoader(loader, training.session.settings.config.prefetch, training.data.stream.seed)
            training.sums.announce("a loop over a DataLoader with run.batch_sampler()")
            training.data.load_with(source, training.plans, training.sums.prefix)
            self._loader = loader
        return training.loops.batches(1, None)

    def sums_backward(self, losses: Sequence[torch.Tensor], options: Mapping[str, Any]) -> bool:
        """`loss.backward()` in a loop over `run.loader` is `run.backward(loss)`, if its loss is of this training.

        Raises TrainingError, on all workers, for a call that says what the gradient of the loss is, or that keeps a
        graph of the gradients: it would be the graph of those before the sum.
        """
        training = self._training
        if self._in_backward or not training.loops.sums_backward or not training.now.has_batch:
            return False
        if options.get("inputs") is not None or not any(reaches(loss, self._parameters.knows) for loss in losses):
            return False
        if options.get("create_graph"):
            training.sums.announce("loss.backward(create_graph=True)")
            raise TrainingError(
                "loss.backward(create_graph=True) in a loop over run.loader: gradients of gradients would be those of "
                "this worker alone; take them by torch.autograd.grad(..., create_graph=True)"
            )
        if len(losses) > 1 or any(options.get(name) is not None for name in ("grad_tensors", "grad_variables")):
            training.sums.announce("loss.backward() with a gradient, or of several losses,")
            raise TrainingError(
                "backward() in a loop over run.loader got a gradient, or several losses; call loss.backward() for one "
                "loss that is a number, or accumulate in `with run.no_sync():`"
            )
        self._options = {"retain_graph": options.get("retain_graph")}
        try:
            training.backward(losses[0], None, None, "mean")
        finally:
            self._options = {}
        return True

    def sees_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward outside `run.backward()` is about to add to the gradients of the batch that its loss is of."""
        if self._in_backward:
            return
        self._training.sums.complete()
        if self._training.loops.taken.is_open:
            self._training.loops.settle(losses[0])
        if self._training.sums.reduction.kind == "sum" and not self._training.sums.has_local:
            self.summed.note()

    def saw_backward(self, losses: Sequence[torch.Tensor]) -> None:
        """A backward outside `run.backward()` has added to the gradients of the present batch: its loss counts too."""
        if self._in_backward or not self._training.now.has_batch:
            return
        if self._exchange.additions == self._additions and not self.has_unseen():
            return
        self._additions = self._exchange.additions
        values = [float(loss.detach()) / watched_calls.scale_of(loss) for loss in losses if loss.numel() == 1]
        self._training.now.add_loss(sum(values))

    def has_unseen(self) -> bool:
        """Whether parameters that were thawed or added for the present batch have gradients of it already."""
        return self._parameters.changed() and any(
            p.requires_grad and self._exchange.lacks(p) for p in self._parameters.with_gradient()
        )

    def saw_hook(self, tensor: torch.Tensor) -> None:
        """The script has registered a hook on the gradient of `tensor`."""
        self._script_hooks.take_over((name, p) for name, p in self._parameters.trained.items() if p is tensor)

    def sees_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Take over an optimizer that attach() does not know, if its gradients are summed.

        Raises TrainingError, before it steps, if they are not.
        """
        if any(optimizer in one.stepped_by for one in _open):
            return
        stepped = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.nn.Parameter)]
        if not any(p.requires_grad for p in stepped):
            return  # frozen layers belong to every training and to none
        if summed := next((one for one in _open if one.sums(stepped)), None):
            summed.hook_steps(optimizer)
        elif self._training.session.workers.count > 1:
            raise TrainingError(
                f"an optimizer ({type(optimizer).__name__}) steps parameters that no training sums, so their gradients "
                "would be those of this worker alone; pass all models and optimizers to attach(): "
                "attach([first, second], [first_optimizer, second_optimizer], data)"
            )

    def sums(self, parameters: Sequence[torch.nn.Parameter]) -> bool:
        """Whether the gradients of all these parameters are summed in this training."""
        return set(self._parameters.trained.values()).issuperset(p for p in parameters if p.requires_grad)

    def hook_steps(self, optimizer: torch.optim.Optimizer) -> None:
        """From now on steps of `optimizer` belong to this training."""
        self.stepped_by.append(optimizer)
        number = len(self.stepped_by)

        def before_step() -> float:
            factor = self._training.before_step(number)  # first: a worker without samples has no gradient of its own
            self._check_global(optimizer)
            return factor

        after_step, by_buckets = partial(self._training.after_step, number), None
        if (late := self._exchange.late) is not None:
            from worker_hooks.torch.late_steps import LateSteps  # few trainings step so

            by_buckets = LateSteps(optimizer, self._training.sums, late)
        self._hooks += StepHooks(optimizer, before_step, after_step, by_buckets).install()

    def _check_global(self, optimizer: torch.optim.Optimizer) -> None:
        """Raises TrainingError if a gradient that `optimizer` would step is of this worker alone."""
        touched = self._exchange.touched
        if touched and any(p in touched for group in optimizer.param_groups for p in group["params"]):
            raise TrainingError(
                "loss.backward() has added gradients of this worker alone since run.backward(); "
                + (
                    "call loss.backward() outside of run.no_sync() before optimizer.step()"
                    if self._training.loops.sums_backward
                    else "call run.backward(loss) for the last loss before optimizer.step()"
                )
            )
        if self._training.session.workers.count == 1:
            return
        for name, parameter in self._parameters.frozen.items():
            if not self._exchange.is_global(parameter) and any(
                parameter is one for group in optimizer.param_groups for one in group["params"]
            ):
                raise TrainingError(
                    f"parameter {name} was trained for a while between two sums, so its gradient is that of this "
                    "worker alone; freeze and thaw parameters at the begin of the loop body, or call zero_grad() first"
                )
