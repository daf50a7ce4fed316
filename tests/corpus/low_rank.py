"""Fine-tuning with low rank: the weights of the base model are frozen integers of 8 bits with a scale for each row, and
what is trained are two small matrices beside each of them, and the head."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

RANK, ALPHA, EPOCHS = 2, 4, 2


class QuantizedLinear(nn.Module):
    """A frozen layer of int8."""

    def __init__(self, layer):
        super().__init__()
        scale = layer.weight.detach().abs().amax(1, keepdim=True) / 127
        self.weight = nn.Parameter((layer.weight.detach() / scale).round().to(torch.int8), requires_grad=False)
        self.bias = nn.Parameter(layer.bias.detach(), requires_grad=False)
        self.register_buffer("scale", scale)

    def forward(self, x):
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


class LoRALinear(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base = base
        outputs, inputs = base.weight.shape
        self.lora_A, self.lora_B = nn.Parameter(torch.empty(RANK, inputs)), nn.Parameter(torch.zeros(outputs, RANK))
        nn.init.kaiming_uniform_(self.lora_A, a=5**0.5)
        self.lora_dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.base(x) + self.lora_dropout(x) @ self.lora_A.T @ self.lora_B.T * (ALPHA / RANK)


def replace_linear(model):
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, LoRALinear(QuantizedLinear(child)))
        else:
            replace_linear(child)


torch.manual_seed(7)
body = nn.Sequential(nn.Linear(12, 24), nn.GELU(), nn.Sequential(nn.Linear(24, 24), nn.GELU()), nn.LayerNorm(24))
for p in body.parameters():
    p.requires_grad = False
replace_linear(body)
model = nn.Sequential(body, nn.Linear(24, 3))
trainable = [p for p in model.parameters() if p.requires_grad]
print(f"trainable: {sum(p.numel() for p in trainable)} of {sum(p.numel() for p in model.parameters())}")

x = torch.randn(256, 12)
loader = DataLoader(TensorDataset(x, x[:, ::4].argmax(1)), batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW(trainable, lr=1e-2)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    model.train()
    for inputs, labels in run.batches():
        loss = nn.functional.cross_entropy(model(inputs), labels)
        run.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
