"""The networks, and the normaliser of their inputs: a policy and a critic, each an MLP with two tanh layers.

Every network evaluates all rows at once. All weights are in one vector; Adam, the gradient's norm and checks work on
it, and the layers are views of it. Forward and backward passes keep its type: float32 normally, float64 to check
gradients.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]
Layers = tuple[tuple[Array, Array], ...]  # (weight (inputs, outputs), bias (outputs,)) of each layer

LIMIT = 5.0  # normalised values are cut off here
_SMALLEST_STD = 1e-6
_LARGEST = 1e30  # a larger value counts as unknown, because its square could overflow
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


@dataclass(frozen=True)
class Normaliser:
    """Running mean and variance of every feature, without unknown values. A saved policy contains them.

    Statistics per feature, float64: number of known values, their mean, and their sum of squared differences.
    """

    count: NDArray[np.float64]
    mean: NDArray[np.float64]
    spread: NDArray[np.float64]

    @staticmethod
    def empty(n_features: int) -> Normaliser:
        return Normaliser(np.zeros(n_features), np.zeros(n_features), np.zeros(n_features))

    def updated(self, rows: NDArray[np.floating[Any]]) -> Normaliser:
        """A normaliser that includes `rows` (NaN: unknown); the pairwise update of Chan, Golub and LeVeque (1979)."""
        known = np.abs(rows) < _LARGEST
        filled = np.where(known, rows, 0.0).astype(np.float64, copy=False)
        count = known.sum(axis=0).astype(np.float64)
        mean = filled.sum(axis=0) / np.maximum(count, 1)
        filled -= mean
        filled *= known
        spread = np.einsum("ij,ij->j", filled, filled)
        total = self.count + count
        share = count / np.maximum(total, 1)
        difference = np.where(count > 0, mean - self.mean, 0.0)
        return Normaliser(
            total, self.mean + difference * share, self.spread + spread + difference**2 * self.count * share
        )

    def apply(self, rows: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
        """Normalised rows (N, F), with one mask column per feature (1: known) appended: (N, 2 F), always finite.

        An unknown value is 0 with mask 0. So is every value of a feature that never varied: the policy cannot have
        learned anything from it, and it has no scale.
        """
        n_features = rows.shape[1]
        varied, per_std = self._units
        known = (np.abs(rows) < _LARGEST) & varied
        result = np.empty((len(rows), 2 * n_features), dtype=np.float32)
        values = result[:, :n_features]
        with np.errstate(over="ignore"):  # in unknown values
            np.subtract(rows, self.mean, out=values, casting="same_kind")
            values *= per_std
        np.maximum(values, -LIMIT, out=values)
        np.minimum(values, LIMIT, out=values)
        np.copyto(values, 0, where=~known)
        result[:, n_features:] = known
        return result

    @cached_property
    def _units(self) -> tuple[NDArray[np.bool_], NDArray[np.float32]]:
        """Which features have varied, and 1 / standard deviation of those."""
        std = np.sqrt(self.spread / np.maximum(self.count, 1))
        varied = std > _SMALLEST_STD
        return varied, (1 / np.where(varied, std, 1.0)).astype(np.float32)
