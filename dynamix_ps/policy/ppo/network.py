"""The networks: a policy and a critic, each an MLP with two tanh layers, evaluated for all workers at once.

Parameters are a plain dict of arrays; forward and backward passes are functions of it. They keep the type
of the parameters: float32 in use, float64 where gradients are checked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating]
Params = dict[str, Array]

PARTS = ("actor", "critic")
LAYERS = 3


@dataclass(frozen=True, slots=True)
class Forward:
    """Outputs for a batch of rows, and the activations that the backward pass needs."""

    logits: Array  # (rows, actions)
    values: Array  # (rows,)
    inputs: dict[str, tuple[Array, ...]]  # per part, what went into each layer


def initialise(n_inputs: int, hidden: int, n_actions: int, rng: np.random.Generator) -> Params:
    """Orthogonal weights, zero biases. Gain sqrt(2) inside, 1 for the value, 0.01 for the logits.

    The small last gain makes the first policy nearly uniform over the actions (chosen by us).
    """
    params: Params = {}
    for part, n_outputs, last_gain in (("actor", n_actions, 0.01), ("critic", 1, 1.0)):
        widths = (n_inputs, hidden, hidden, n_outputs)
        for layer in range(LAYERS):
            gain = last_gain if layer == LAYERS - 1 else 2.0**0.5
            weight = gain * _orthogonal(widths[layer], widths[layer + 1], rng)
            params[f"{part}.{layer}.weight"] = weight.astype(np.float32)
            params[f"{part}.{layer}.bias"] = np.zeros(widths[layer + 1], dtype=np.float32)
    return params


def forward(params: Params, rows: Array) -> Forward:
    """Logits and values of every row: one matrix product per layer, however many workers there are."""
    outputs: dict[str, Array] = {}
    inputs: dict[str, tuple[Array, ...]] = {}
    for part in PARTS:
        seen, value = [], rows
        for layer in range(LAYERS):
            seen.append(value)
            value = value @ params[f"{part}.{layer}.weight"] + params[f"{part}.{layer}.bias"]
            if layer < LAYERS - 1:
                value = np.tanh(value)
        outputs[part], inputs[part] = value, tuple(seen)
    return Forward(outputs["actor"], outputs["critic"][:, 0], inputs)


def backward(params: Params, result: Forward, d_logits: Array, d_values: Array) -> Params:
    """Gradient of a loss with respect to every parameter, from its gradient with respect to the outputs."""
    gradients: Params = {}
    for part, d_outputs in (("actor", d_logits), ("critic", d_values[:, None])):
        delta = d_outputs
        for layer in reversed(range(LAYERS)):
            into = result.inputs[part][layer]
            gradients[f"{part}.{layer}.weight"] = into.T @ delta
            gradients[f"{part}.{layer}.bias"] = delta.sum(axis=0)
            if layer:
                delta = (delta @ params[f"{part}.{layer}.weight"].T) * (1 - into**2)
    return gradients


def log_softmax(logits: Array) -> Array:
    """Log-probabilities of every row of logits, without overflow."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: Array = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


def finite(params: Params) -> bool:
    """Whether no parameter is NaN or infinite."""
    return all(bool(np.isfinite(value).all()) for value in params.values())


def _orthogonal(n_inputs: int, n_outputs: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A matrix with orthonormal rows or columns, whichever are fewer."""
    tall = (max(n_inputs, n_outputs), min(n_inputs, n_outputs))
    basis, triangle = np.linalg.qr(rng.standard_normal(tall))
    basis = basis * np.sign(np.diag(triangle))
    return basis if n_inputs >= n_outputs else basis.T
