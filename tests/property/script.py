"""Small training scripts as data: what hypothesis draws, and what workers and the plain process run alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import nn

from tests.cases.harness import data, weights

ROWS = 80
LARGEST = 12  # batch size of a worker; all together take less than ROWS

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.005, momentum=0.5),
}
MODELS = ("linear", "deep", "normalised", "embedding", "sometimes", "tied")
CLIPS = ("none", "norm", "value", "run_norm", "run_value")
ACCUMULATIONS = ("none", "parts", "batches", "batches_run")
HOOKS = ("none", "reads", "clamps", "reads_after", "halves_after")  # on gradients; the last two when they are added
CHANGING_HOOKS = ("clamps", "halves_after")
MISTAKES = (
    "none",
    "backward_after_sum",
    "clip_before_sum",
    "two_steps",
    "step_before_sum",
    "freeze_on_one_worker",
    "no_step_on_one_worker",
    "stop_early_on_one_worker",
)


@dataclass(frozen=True)
class Phase:
    """A loop over batches with an optimizer of its own."""

    iterations: int
    optimizer: str = "sgd"
    two_optimizers: bool = False  # one for the first layer, one for the others
    attach_again: bool = False  # close the run before and attach another one; else the loop is one more of the same run
    clip: str = "none"
    accumulation: str = "none"
    every: int = 2  # batches or parts that are accumulated
    scaler: bool = False
    tokens: bool = False  # losses are means over tokens, and run.backward() gets their number
    overflow: int = -1  # iteration in which the gradient of one sample overflows; only with a scaler
    toggles: tuple[tuple[int, int], ...] = ()  # (iteration, layer) that is frozen, or thawed, before that batch
    hook: str = "none"
    keeps: bool = False  # gradients by reference: half of those of the step before are added
    ahead: bool = False  # each batch is taken before the one before is trained
    summed: bool = False  # losses are sums, divided by a constant


@dataclass(frozen=True)
class Script:
    """A training by `len(sizes)` workers."""

    sizes: tuple[int, ...]
    plans: tuple[tuple[int, tuple[int, ...]], ...] = ()  # (iterations of a run, batch sizes from then on)
    model: str = "linear"
    phases: tuple[Phase, ...] = (Phase(3),)
    mistake: str = "none"
    mistake_at: int = 1  # iteration of the first phase
    seed: int = 0

    def as_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def of(cls, values: dict[str, Any]) -> Script:
        """From `as_dict()`, also after JSON."""
        phases = tuple(Phase(**{**one, "toggles": tuple(map(tuple, one["toggles"]))}) for one in values["phases"])
        plans = tuple((after, tuple(sizes)) for after, sizes in values["plans"])
        return cls(**{**values, "sizes": tuple(values["sizes"]), "plans": plans, "phases": phases})


class Sometimes(nn.Module):
    """Its last layer takes part where the batch has a sample whose number ends in 0."""

    def __init__(self) -> None:
        super().__init__()
        self.rare = nn.Linear(6, 1)
        self.layers = nn.ModuleList([nn.Linear(6, 4), nn.Linear(4, 1), self.rare])

    def forward(self, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers[1](torch.tanh(self.layers[0](x)))
        rare = rows % 10 == 0
        return found + rare[:, None] * self.rare(x) if rare.any() else found


class Words(nn.Module):
    """The number of a sample is its word."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Embedding(ROWS, 3), nn.Linear(9, 5), nn.Linear(5, 1)])

    def forward(self, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.layers[2](torch.tanh(self.layers[1](torch.cat([self.layers[0](rows), x], 1))))
        return found


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, rows: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def make_model(kind: str) -> Any:
    """All have `layers`, of which those with parameters can be frozen."""
    if kind == "sometimes":
        return Sometimes()
    if kind == "embedding":
        return Words()
    if kind == "normalised":
        return Stack(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 1))
    if kind == "deep":
        return Stack(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 1, bias=False))
    if kind == "tied":
        model = Stack(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 1))
        model.layers[2].weight = model.layers[0].weight
        return model
    return Stack(nn.Linear(6, 1))


def train(script: Script, attach: Any) -> list[list[float]]:
    """Run the script; `attach` is that of the hook, or the plain one. Returns the weights at the end."""
    torch.manual_seed(script.seed)
    model, dataset = make_model(script.model), data(ROWS)
    run = None
    for number, phase in enumerate(script.phases):
        optimizers = make_optimizers(phase, model)
        if run is None or phase.attach_again:
            if run is not None:
                run.close()
                model.zero_grad()
            run = attach(model, optimizers, dataset)
        Loop(script, phase, number, model, optimizers, run).train()
    assert run is not None
    run.close()
    return weights(model)


def make_optimizers(phase: Phase, model: Any) -> list[torch.optim.Optimizer]:
    make, parameters = OPTIMIZERS[phase.optimizer], list(model.parameters())
    if phase.two_optimizers and len(parameters) > 2:
        return [make(parameters[:2]), make(parameters[2:])]
    return [make(parameters)]


class Loop:
    """One phase of a script."""

    def __init__(self, script: Script, phase: Phase, number: int, model: Any, optimizers: Any, run: Any) -> None:
        self.phase, self.model, self.optimizers, self.run = phase, model, optimizers, run
        self.mistake = script.mistake if number == 0 else "none"
        self.mistake_at = script.mistake_at
        self.kept: dict[nn.Parameter, torch.Tensor] = {}
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, growth_interval=3, enabled=phase.scaler)

    def makes(self, mistake: str, iteration: int) -> bool:
        return self.mistake == mistake and iteration == self.mistake_at

    def train(self) -> None:
        hooks = [hook for parameter in self.model.parameters() for hook in self.hooks_on(parameter)]
        self.loop()
        for hook in hooks:
            hook.remove()

    def hooks_on(self, parameter: nn.Parameter) -> list[Any]:
        kind, seen = self.phase.hook, []
        if kind == "none" or not parameter.requires_grad:
            return []
        if kind == "reads":
            return [parameter.register_hook(lambda gradient: seen.append(gradient.sum()))]
        if kind == "clamps":
            return [parameter.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))]
        if kind == "reads_after":
            return [parameter.register_post_accumulate_grad_hook(lambda one: seen.append(one.grad.sum()))]
        return [parameter.register_post_accumulate_grad_hook(halve)]

    def loop(self) -> None:
        phase, run = self.phase, self.run
        batches = run.batches(iterations=run.iteration + phase.iterations)
        for iteration, (rows, x, y) in enumerate(one_ahead(batches) if phase.ahead else batches):
            for layer in [layer for at, layer in phase.toggles if at == iteration]:
                self.toggle(layer)
            if self.makes("freeze_on_one_worker", iteration) and run.rank == 1:
                self.toggle(0)
            if self.makes("step_before_sum", iteration):
                self.optimizers[0].step()
            if self.makes("stop_early_on_one_worker", iteration) and run.rank == 1:
                break
            if self.batch(iteration, rows, x, y):
                self.step(iteration)

    def toggle(self, layer: int) -> None:
        """Freeze or thaw a layer; the last trained one stays."""
        layers = [one for one in self.model.layers if any(True for _ in one.parameters())]
        chosen = layers[layer % len(layers)]
        frozen = any(not p.requires_grad for p in chosen.parameters())
        rest = [one for one in layers if one is not chosen and one is not getattr(self.model, "rare", None)]
        mine = set(chosen.parameters())
        others = [p for one in rest for p in one.parameters() if p.requires_grad and p not in mine]
        if frozen or others:
            chosen.requires_grad_(frozen)

    def batch(self, iteration: int, rows: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> bool:
        """Compute the gradients of a batch. Whether a step follows."""
        phase = self.phase
        kind, every = phase.accumulation, phase.every
        over_batches = kind in ("batches", "batches_run")
        if not over_batches or iteration % every == 0:
            for optimizer in self.optimizers:
                optimizer.zero_grad()
        cuts = torch.arange(len(x)).chunk(every) if kind == "parts" else [torch.arange(len(x))]
        tokens = (rows * 7 % 4 * (rows % 3))[:, None]  # none in half of the samples
        due = not over_batches or iteration % every == every - 1
        for part, cut in enumerate(cuts):
            found = self.model(rows[cut], x[cut])
            if phase.scaler and iteration == phase.overflow:
                counts = tokens[cut] > 0 if phase.tokens else True
                factor = torch.where((rows[cut] % 20 == 0)[:, None] & counts, torch.inf, 1.0)
                found.register_hook(lambda gradient, factor=factor: gradient * factor)
            divisor = ROWS if phase.summed else len(x)
            loss = (found - y[cut]).square().sum() / divisor / (every if over_batches else 1)
            if phase.tokens:
                loss = (tokens[cut] * (found - y[cut]).square()).sum() / tokens.sum() / (every if over_batches else 1)
            scaled = self.scaler.scale(loss)
            last = part == len(cuts) - 1
            if last and (due or kind == "batches_run"):
                reduction = "sum" if phase.summed and not phase.tokens else "mean"
                self.run.backward(scaled, weight=tokens.sum() if phase.tokens else None, reduction=reduction)
            else:
                scaled.backward()
                if self.makes("clip_before_sum", iteration) and self.run.size > 1:  # workers may have a single part
                    nn.utils.clip_grad_norm_(self.model.parameters(), 1e-3)
        return due

    def step(self, iteration: int) -> None:
        if self.makes("backward_after_sum", iteration):
            sum(p.square().sum() for p in self.model.parameters() if p.requires_grad).backward()
        clip = self.phase.clip
        if clip != "none":
            for optimizer in self.optimizers:
                self.scaler.unscale_(optimizer)
        parameters = list(self.model.parameters())
        if clip == "norm":
            nn.utils.clip_grad_norm_(parameters, 0.05)
        elif clip == "value":
            nn.utils.clip_grad_value_(parameters, 0.01)
        elif clip == "run_norm":
            self.run.clip_grad_norm_(0.05)
        elif clip == "run_value":
            self.run.clip_grad_value_(0.01)
        if self.makes("no_step_on_one_worker", iteration) and self.run.rank == 1:
            return
        if self.phase.keeps:
            self.add_half_of_the_last(parameters)
        for optimizer in self.optimizers:
            if not any(p.grad is not None for group in optimizer.param_groups for p in group["params"]):
                continue  # a GradScaler refuses such a step
            self.scaler.step(optimizer)
            if self.makes("two_steps", iteration):
                optimizer.step()
        self.scaler.update()

    def add_half_of_the_last(self, parameters: list[nn.Parameter]) -> None:
        found = {p: p.grad for p in parameters if p.grad is not None}
        for p, gradient in found.items():
            if p in self.kept:
                p.grad = gradient + self.kept[p] / 2
        self.kept = found


def halve(parameter: nn.Parameter) -> None:
    assert parameter.grad is not None
    parameter.grad.mul_(0.5)


def one_ahead(batches: Iterator[Any]) -> Iterator[Any]:
    following = next(batches, None)
    while following is not None:
        batch, following = following, next(batches, None)
        yield batch


# -- what hypothesis draws --------------------------------------------------------------------------------------------


def batch_sizes(workers: int) -> st.SearchStrategy[tuple[int, ...]]:
    """Of every worker, some without samples."""
    return st.tuples(*(st.integers(0, LARGEST) for _ in range(workers))).filter(any)


phases = st.builds(
    Phase,
    iterations=st.integers(1, 7),
    optimizer=st.sampled_from(sorted(OPTIMIZERS)),
    two_optimizers=st.booleans(),
    attach_again=st.booleans(),
    clip=st.sampled_from(CLIPS),
    accumulation=st.sampled_from(ACCUMULATIONS),
    every=st.integers(2, 3),
    scaler=st.booleans(),
    tokens=st.booleans(),
    overflow=st.integers(-1, 4),
    hook=st.sampled_from(("none",) * 4 + HOOKS[1:]),
    keeps=st.booleans(),
    ahead=st.sampled_from((False, False, True)),
    summed=st.sampled_from((False, False, True)),
    toggles=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 3)), max_size=3).map(lambda t: tuple(sorted(t))),
).filter(lambda phase: phase.accumulation != "parts" or phase.hook not in CHANGING_HOOKS)
# A batch of one sample is one part, whose hook gets the global gradient; one process would have several parts.


def scripts(workers: int) -> st.SearchStrategy[Script]:
    """Scripts for so many workers. One in eight contains a mistake."""
    plans = st.lists(st.tuples(st.integers(0, 6), batch_sizes(workers)), max_size=3)
    return st.builds(
        Script,
        sizes=st.tuples(*(st.integers(1, LARGEST) for _ in range(workers))),
        plans=plans.map(lambda p: tuple(sorted(p))),
        model=st.sampled_from(MODELS),
        phases=st.lists(phases, min_size=1, max_size=3).map(tuple),
        mistake=st.sampled_from(("none",) * 50 + MISTAKES[1:]),
        mistake_at=st.integers(0, 4),
        seed=st.integers(0, 3),
    )
