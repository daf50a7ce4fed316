"""The script that examples/torch_tokens.py was before: ordinary training in one process."""

import argparse
import math
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.utils.data import DataLoader, Dataset

EPOCHS, WARM_UP = 2, 10
LENGTH, WIDTH, HEADS, PADDING = 48, 48, 4, -1
STEPS = 100


class Lines(Dataset):
    """Every line of a text with what follows each of its characters, padded to LENGTH."""

    def __init__(self, text: str) -> None:
        self.number = {character: number for number, character in enumerate(sorted(set(text)))}
        self.lines = [line[: LENGTH + 1] for line in text.splitlines(keepends=True) if len(line) > 1]

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        line = torch.tensor([self.number[character] for character in self.lines[index]])
        codes, following = torch.zeros(LENGTH, dtype=torch.long), torch.full((LENGTH,), PADDING)
        codes[: len(line) - 1], following[: len(line) - 1] = line[:-1], line[1:]
        return codes, following


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norms[0](x)).unflatten(2, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
        x = x + self.out(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, characters: int) -> None:
        super().__init__()
        self.token, self.position = nn.Embedding(characters, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.head = nn.Linear(WIDTH, characters, bias=False)
        self.head.weight = self.token.weight

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.token(codes) + self.position.weight))


def rate(step: int) -> float:
    """Factor on the learning rate: a warm-up, then half a cosine."""
    if step < WARM_UP:
        return (step + 1) / WARM_UP
    return 0.1 + 0.45 * (1 + math.cos(math.pi * min((step - WARM_UP) / (STEPS - WARM_UP), 1.0)))


torch.manual_seed(1)
train_set = Lines(Path(argparse.__file__).read_text(encoding="utf-8"))
model = GPT(len(train_set.number))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.95), weight_decay=0.1)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
loader = DataLoader(train_set, batch_size=32, shuffle=True, drop_last=True, generator=torch.Generator().manual_seed(1))

for epoch in range(EPOCHS):
    for codes, following in loader:
        optimizer.zero_grad()
        tokens = (following != PADDING).sum()
        loss = cross_entropy(model(codes).flatten(0, 1), following.flatten(), ignore_index=PADDING, reduction="sum")
        loss = loss / tokens
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"epoch {epoch}: {loss.item():.2f} nats per byte in its last batch, which had {tokens}")
