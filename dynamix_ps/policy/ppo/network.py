"""The networks: a policy and a critic, each an MLP with two tanh layers, evaluated for all rows at once.

All weights are in one vector; Adam, the gradient's norm and checks work on it, and the layers are views of it.
Forward and backward passes keep its type: float32 normally, float64 to check gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Layers = tuple[tuple[Array, Array], ...]  # (weight (inputs, outputs), bias (outputs,)) of each layer


_FORBIDDEN = -1e9  # logit of an action that is not allowed: its probability is 0


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the networks."""

    n_inputs: int
    hidden: int
    n_actions: int

    @property
    def widths(self) -> dict[str, tuple[int, ...]]:
        """Width of the input and of every layer, per network."""
        inside = (self.n_inputs, self.hidden, self.hidden)
        return {"actor": (*inside, self.n_actions), "critic": (*inside, 1)}

    @property
    def size(self) -> int:
        """Number of weights."""
        return sum((into + 1) * out for widths in self.widths.values() for into, out in pairwise(widths))


class Params:
    """All weights: `flat` (shape.size,), and its views `actor` and `critic`."""

    __slots__ = ("actor", "critic", "flat", "shape")

    def __init__(self, shape: Shape, flat: Array) -> None:
        self.shape, self.flat = shape, flat
        start = 0
        parts: dict[str, Layers] = {}
        for part, widths in shape.widths.items():
            layers = []
            for into, out in pairwise(widths):
                end = start + into * out
                layers.append((flat[start:end].reshape(into, out), flat[end : end + out]))
                start = end + out
            parts[part] = tuple(layers)
        self.actor, self.critic = parts["actor"], parts["critic"]

    def copy(self) -> Params:
        return Params(self.shape, self.flat.copy())

    def named(self) -> Iterator[tuple[str, Array]]:
        """Every layer's arrays as (`actor.0.weight`, view)."""
        for part, layers in (("actor", self.actor), ("critic", self.critic)):
            for number, (weight, bias) in enumerate(layers):
                yield f"{part}.{number}.weight", weight
                yield f"{part}.{number}.bias", bias


def initialise(shape: Shape, rng: np.random.Generator) -> Params:
    """Orthogonal weights, zero biases. Gain sqrt(2) inside, 1 for the value, 0.01 for the logits.

    The small last gain makes the first policy nearly uniform over the actions (arXiv 2006.05990, section 3.2).
    """
    params = Params(shape, np.zeros(shape.size, dtype=np.float32))
    for layers, last_gain in ((params.actor, 0.01), (params.critic, 1.0)):
        for weight, _ in layers:
            gain = last_gain if weight is layers[-1][0] else 2.0**0.5
            weight[:] = gain * _orthogonal(len(weight), weight.shape[1], rng)
    return params


def forward(layers: Layers, rows: Array) -> tuple[Array, ...]:
    """The input of each layer, and the output. Takes one matrix product per layer for any number of rows."""
    values = [rows]
    for number, (weight, bias) in enumerate(layers):
        value = values[-1] @ weight
        value += bias
        if number < len(layers) - 1:
            np.tanh(value, out=value)
        values.append(value)
    return tuple(values)


def backward(layers: Layers, values: tuple[Array, ...], d_output: Array, gradient: Layers) -> None:
    """Write the gradient of a loss with respect to every weight into `gradient`, from that of the output.

    `values` is the result of `forward`.
    """
    delta = d_output
    for number in reversed(range(len(layers))):
        into, (d_weight, d_bias) = values[number], gradient[number]
        np.matmul(into.T, delta, out=d_weight)
        delta.sum(axis=0, out=d_bias)
        if number:
            delta = delta @ layers[number][0].T
            delta *= 1 - into * into


def masked(logits: Array, allowed: NDArray[np.bool_] | None) -> Array:
    """Logits that give actions which are not allowed the probability 0."""
    return logits if allowed is None else np.where(allowed, logits, np.asarray(_FORBIDDEN, dtype=logits.dtype))


def log_softmax(logits: Array) -> Array:
    """Log-probabilities of every row of logits, without overflow."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    result: Array = shifted
    return result


def _orthogonal(n_inputs: int, n_outputs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A matrix with orthonormal rows or columns, whichever are fewer."""
    tall = (max(n_inputs, n_outputs), min(n_inputs, n_outputs))
    basis, triangle = np.linalg.qr(rng.standard_normal(tall))
    signed: NDArray[np.float64] = basis * np.sign(np.diag(triangle))
    return signed if n_inputs >= n_outputs else signed.T
