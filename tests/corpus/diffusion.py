"""Denoising diffusion: a random time and random noise for each sample, an average of the weights that the script keeps
by hand, and samples drawn from this average at the end."""

import copy
import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

TIMESTEPS, WIDTH, EMA_DECAY, EPOCHS = 20, 16, 0.95, 2


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.inp, self.time = nn.Linear(2, WIDTH), nn.Sequential(nn.Linear(8, WIDTH), nn.SiLU())
        self.mid, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, x, t):
        freqs = torch.exp(-math.log(1000) * torch.arange(4) / 4)
        args = t[:, None] * freqs[None]
        h = F.silu(self.inp(x)) + self.time(torch.cat([args.cos(), args.sin()], dim=-1))
        return self.out(F.silu(self.mid(h)) + h)


class GaussianDiffusion:
    def __init__(self):
        self.betas = torch.linspace(1e-3, 0.3, TIMESTEPS)
        self.alphas_cumprod = torch.cumprod(1 - self.betas, dim=0)

    def q_sample(self, x_start, t, noise):
        a = self.alphas_cumprod[t][:, None]
        return a.sqrt() * x_start + (1 - a).sqrt() * noise

    def training_losses(self, net, x_start, t):
        noise = torch.randn_like(x_start)
        return F.mse_loss(net(self.q_sample(x_start, t, noise), t), noise)

    @torch.no_grad()
    def sample(self, net, count):
        x = torch.randn(count, 2)
        for i in reversed(range(TIMESTEPS)):
            eps = net(x, torch.full((count,), i))
            beta, a = self.betas[i], self.alphas_cumprod[i]
            x = (x - beta / (1 - a).sqrt() * eps) / (1 - beta).sqrt()
            x += beta.sqrt() * torch.randn_like(x) if i else 0.0
        return x


@torch.no_grad()
def update_ema(target, source):
    for targ, src in zip(target.parameters(), source.parameters(), strict=True):
        targ.mul_(EMA_DECAY).add_(src, alpha=1 - EMA_DECAY)


torch.manual_seed(10)
angles = 6 * torch.rand(256)
loader = DataLoader(TensorDataset(torch.stack([angles.cos(), angles.sin()], 1)), batch_size=32, shuffle=True)
model, diffusion = Denoiser(), GaussianDiffusion()
ema = copy.deepcopy(model).requires_grad_(False)
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for (batch,) in run.batches():
        t = torch.randint(0, TIMESTEPS, (batch.shape[0],))
        loss = diffusion.training_losses(model, batch, t)
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
        update_ema(ema, model)
    print(f"epoch {epoch}: loss {loss.item():.4f}")
print(diffusion.sample(ema, 3))
