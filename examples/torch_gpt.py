"""A small GPT that learns English byte by byte, with torch. A number marks each line that DYNAMIX needs.

    dynamix launch -c examples/cluster.yaml -- python examples/torch_gpt.py

Started with plain `python`, it is ordinary training in one process. The text is the language reference that Python
carries for its `help()`.
"""

from pydoc_data.topics import topics

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import Dataset

import dynamix_ps.torch as dynamix  # 1

LENGTH, WIDTH, BYTES = 64, 64, 256


class Windows(Dataset):
    """Pieces of the text, each with the same piece one byte later: what comes next is the target."""

    def __init__(self, text: bytes) -> None:
        self.codes = torch.frombuffer(bytearray(text), dtype=torch.uint8).long()

    def __len__(self) -> int:
        return (len(self.codes) - 1) // LENGTH

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        start = index * LENGTH
        return self.codes[start : start + LENGTH], self.codes[start + 1 : start + LENGTH + 1]


class SmallGPT(nn.Module):
    """Two layers of causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(BYTES, WIDTH)
        self.position = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, BYTES)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(codes.shape[1])
        hidden = self.layers(self.embedding(codes) + self.position[: codes.shape[1]], mask=mask, is_causal=True)
        return self.head(hidden)


torch.manual_seed(0)
text = "\n".join(topics[name] for name in sorted(topics)).encode()
train_set = Windows(text[:120_000])
model = SmallGPT()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

run = dynamix.attach(model, optimizer, train_set, batch_size=32)  # 2

for codes, following in run.batches(epochs=1):  # 3, in place of the epoch loop and the DataLoader
    optimizer.zero_grad()
    logits = model(codes)
    loss = cross_entropy(logits.flatten(0, 1), following.flatten())
    run.backward(loss)  # 4, in place of loss.backward()
    optimizer.step()
    if run.every(20) and run.rank == 0:
        print(f"iteration {run.iteration}: {loss.item():.2f} nats per byte")

run.close()  # 5
