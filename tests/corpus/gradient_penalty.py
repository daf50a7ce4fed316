"""Wasserstein GAN with gradient penalty: the critic's loss has a gradient in it, and the generator steps after every
third step of the critic."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

LATENT, LAMBDA_GP, N_CRITIC, EPOCHS = 4, 10, 3, 2


def compute_gradient_penalty(D, real_samples, fake_samples):
    alpha = torch.rand(real_samples.size(0), 1)
    interpolates = (alpha * real_samples + (1 - alpha) * fake_samples).requires_grad_(True)
    d_interpolates = D(interpolates)
    gradients = torch.autograd.grad(
        outputs=d_interpolates,
        inputs=interpolates,
        grad_outputs=torch.ones_like(d_interpolates),
        create_graph=True,
        retain_graph=True,
        only_inputs=True,
    )[0]
    return ((gradients.norm(2, dim=1) - 1) ** 2).mean()


torch.manual_seed(0)
angles = torch.arange(256) * 0.7
samples = torch.stack([angles.cos(), angles.sin()], 1) + 0.1 * torch.randn(256, 2)
generator = nn.Sequential(nn.Linear(LATENT, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 2))
discriminator = nn.Sequential(nn.Linear(2, 16), nn.LeakyReLU(0.2, inplace=True), nn.Linear(16, 1))
optimizer_G = torch.optim.Adam(generator.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizer_D = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.999))
dataloader = DataLoader(TensorDataset(samples), batch_size=32, shuffle=True)
run = dynamix.attach([generator, discriminator], [optimizer_G, optimizer_D], dataloader)

for epoch in run.epochs(EPOCHS):
    for i, (real,) in enumerate(run.batches()):
        optimizer_D.zero_grad()
        fake = generator(torch.randn(real.shape[0], LATENT))
        gradient_penalty = compute_gradient_penalty(discriminator, real.data, fake.data)
        d_loss = -discriminator(real).mean() + discriminator(fake).mean() + LAMBDA_GP * gradient_penalty
        run.backward(d_loss)
        optimizer_D.step()

        optimizer_G.zero_grad()
        if i % N_CRITIC == 0:
            g_loss = -torch.mean(discriminator(generator(torch.randn(real.shape[0], LATENT))))
            run.backward(g_loss)
            optimizer_G.step()
    print(f"[Epoch {epoch}/{EPOCHS}] [D loss: {d_loss.item():f}] [G loss: {g_loss.item():f}]")
