"""How float32 values travel in fewer bytes: as bfloat16, or in 8 bits each with a scale per block.

What encoding leaves out remains with the sender, which adds it to what it sends next (error feedback, arXiv
1901.09847). Values that are not finite leave nothing.
"""

from __future__ import annotations

from typing import Any, Protocol

BLOCK = 256  # values with one scale; what is encoded is whole blocks
_STEPS = 127  # from zero to the largest magnitude of a block
_SMALLEST_SCALE = 2.0**-126  # smaller ones lack precision, and their reciprocals are infinite


class Codec(Protocol):
    """Between float32 tensors, shape (values,), and what travels: uint8 tensors, shape (bytes,)."""

    block_bytes: int  # of what travels

    def encode(self, values: Any, encoded: Any) -> None:
        """Write `values`, whole blocks, to `encoded`. What this leaves out remains in `values`."""
        ...

    def decode(self, encoded: Any, values: Any) -> None:
        """Fill `values` with the beginning of what was encoded."""
        ...


class Bfloat16:
    """Rounds to the nearest, ties to even."""

    block_bytes = 2 * BLOCK

    def encode(self, values: Any, encoded: Any) -> None:
        import torch

        halves = encoded.view(torch.bfloat16)
        halves.copy_(values)
        values.sub_(halves).nan_to_num_(0.0, 0.0, 0.0)

    def decode(self, encoded: Any, values: Any) -> None:
        import torch

        values.copy_(encoded.view(torch.bfloat16)[: len(values)])


class BlockInt8:
    """A block is a scale, its largest magnitude / 127, and per value an integer from -127 to 127. Scales come first.

    A value that is not finite makes the scale so, and with it all that is decoded of the block.
    """

    block_bytes = 4 + BLOCK

    def encode(self, values: Any, encoded: Any) -> None:
        import torch

        scales, steps = _scales_and_steps(encoded)
        blocks = values.view(-1, BLOCK)
        scaled = blocks.abs()
        torch.amax(scaled, 1, keepdim=True, out=scales).div_(_STEPS)
        usable = scales.isfinite() & (scales >= _SMALLEST_SCALE)
        torch.mul(blocks, torch.where(usable, scales.reciprocal(), 0.0), out=scaled).round_()
        steps.copy_(scaled)
        blocks.sub_(scaled.mul_(scales)).nan_to_num_(0.0, 0.0, 0.0)

    def decode(self, encoded: Any, values: Any) -> None:
        import torch

        scales, steps = _scales_and_steps(encoded)
        whole, rest = divmod(len(values), BLOCK)
        torch.mul(steps[:whole], scales[:whole], out=values[: whole * BLOCK].view(-1, BLOCK))
        if rest:
            torch.mul(steps[whole, :rest], scales[whole], out=values[-rest:])


CODECS: dict[str, Codec] = {"bf16": Bfloat16(), "int8": BlockInt8()}


def _scales_and_steps(encoded: Any) -> tuple[Any, Any]:
    """Views of what travels: float32, shape (blocks, 1), and int8, shape (blocks, BLOCK)."""
    import torch

    scales_bytes = 4 * (len(encoded) // BlockInt8.block_bytes)
    scales = encoded[:scales_bytes].view(torch.float32)
    return scales.view(-1, 1), encoded[scales_bytes:].view(torch.int8).view(-1, BLOCK)
