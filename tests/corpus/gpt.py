"""GPT in the shape of nanoGPT: the next batch is taken after the forward pass, a step is for several batches, with
clipping, a GradScaler and autocast. Autocast leaves float64 as it is, so that in the tests it computes nothing else."""

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

VOCAB, BLOCK, WIDTH, HEADS = 24, 8, 8, 2
ACCUMULATION, WARMUP_ITERS, MAX_ITERS, LEARNING_RATE, MIN_LR = 3, 2, 6, 1e-2, 1e-3


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln_1, self.ln_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (one.view(b, t, HEADS, c // HEADS).transpose(1, 2) for one in self.c_attn(self.ln_1(x)).split(c, 2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.c_proj(y)
        return x + self.mlp(self.ln_2(x))


class GPT(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(VOCAB, WIDTH), nn.Embedding(BLOCK, WIDTH)
        self.h = nn.Sequential(Block(), Block(), nn.LayerNorm(WIDTH))
        self.lm_head = nn.Linear(WIDTH, VOCAB, bias=False)
        self.wte.weight = self.lm_head.weight

    def forward(self, idx, targets):
        logits = self.lm_head(self.h(self.wte(idx) + self.wpe(torch.arange(idx.shape[1]))))
        return logits, F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def get_lr(it):
    cosine = MIN_LR + 0.5 * (1.0 + math.cos(math.pi * it / MAX_ITERS)) * (LEARNING_RATE - MIN_LR)
    return min(LEARNING_RATE * (it + 1) / WARMUP_ITERS, cosine)


torch.manual_seed(1337)
text = torch.randint(0, 3, (1000,)).cumsum(0) % VOCAB
model = GPT()
groups = [
    {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.1},
    {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))
scaler = torch.amp.GradScaler("cpu")
windows = TensorDataset(text[:-1].unfold(0, BLOCK, 1), text[1:].unfold(0, BLOCK, 1))
run = dynamix.attach(model, optimizer, DataLoader(windows, batch_size=32, shuffle=True))
batches = run.batches(iterations=MAX_ITERS * ACCUMULATION)

X, Y = next(batches)
for iter_num in range(MAX_ITERS):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(iter_num)
    for micro_step in range(ACCUMULATION):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits, loss = model(X, Y)
            loss = loss / ACCUMULATION
        X, Y = next(batches, (None, None))  # while the model computes
        if micro_step < ACCUMULATION - 1:
            scaler.scale(loss).backward()
    run.backward(scaler.scale(loss))
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    print(f"iter {iter_num}: loss {loss.item() * ACCUMULATION:.4f}")
