"""Transformers for the workloads: a classifier of images, and a language model. See models.py for their names."""

from __future__ import annotations

import torch
from torch import nn


class PatchTransformer(nn.Module):
    """Classifier on 4x4 patches (arXiv 2010.11929), normalised before each part, mean over patches at the end."""

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 48, heads: int = 3, depth: int = 2) -> None:
        super().__init__()
        channels, height, image_width = shape
        patches = (height // 4) * (image_width // 4)
        self.patches = nn.Conv2d(channels, width, kernel_size=4, stride=4)
        self.position = nn.Parameter(0.02 * torch.randn(patches, width))
        self.encoder = _encoder(width, heads, depth, hidden=2 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        tokens = self.patches(inputs).flatten(2).transpose(1, 2) + self.position
        logits: torch.Tensor = self.head(self.encoder(tokens).mean(1))
        return logits


class ByteGPT(nn.Module):
    """Predicts the next byte at every place of a text, from the bytes up to there; logits (samples, bytes, classes).

    The layers of GPT-2, normalised before each part, and its first embeddings with a deviation of 0.02.
    """

    def __init__(self, shape: tuple[int, ...], classes: int, width: int = 96, heads: int = 4, depth: int = 2) -> None:
        super().__init__()
        (context,) = shape
        self.embedding = nn.Embedding(classes, width)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.position = nn.Parameter(0.02 * torch.randn(context, width))
        self.encoder = _encoder(width, heads, depth, hidden=4 * width)
        self.head = nn.Linear(width, classes)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        tokens = self.embedding(codes) + self.position
        mask = nn.Transformer.generate_square_subsequent_mask(len(self.position), tokens.device, tokens.dtype)
        logits: torch.Tensor = self.head(self.encoder(tokens, mask, is_causal=True))
        return logits


def _encoder(width: int, heads: int, depth: int, hidden: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(
        width, heads, hidden, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )
    return nn.TransformerEncoder(layer, depth, nn.LayerNorm(width), enable_nested_tensor=False)
