"""Autoencoder with a code book that goes by averages of the batches (VQ-VAE): each worker would move its code book by
its own samples. Buffers that checkpoints keep are compared between workers.

refused: the weights differ between workers
"""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

CODES, WIDTH, COMMITMENT, DECAY, EPOCHS = 6, 3, 0.25, 0.9, 2


class VectorQuantizerEMA(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("embedding", torch.randn(CODES, WIDTH))
        self.register_buffer("cluster_size", torch.ones(CODES))
        self.register_buffer("ema_w", self.embedding.clone())

    def forward(self, inputs):
        distances = (inputs[:, None] - self.embedding).square().sum(2)
        encodings = F.one_hot(distances.argmin(1), CODES).to(inputs)
        quantized = encodings @ self.embedding
        if self.training:
            with torch.no_grad():
                self.cluster_size.mul_(DECAY).add_(encodings.sum(0), alpha=1 - DECAY)
                self.ema_w.mul_(DECAY).add_(encodings.T @ inputs, alpha=1 - DECAY)
                self.embedding.copy_(self.ema_w / (self.cluster_size + 1e-5)[:, None])
        loss = COMMITMENT * F.mse_loss(quantized.detach(), inputs)
        return loss, inputs + (quantized - inputs).detach()


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, WIDTH))
        self.vq_vae = VectorQuantizerEMA()
        self.decoder = nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 8))

    def forward(self, x):
        loss, quantized = self.vq_vae(self.encoder(x))
        return loss, self.decoder(quantized)


torch.manual_seed(15)
data = torch.randn(5, 8)[torch.randint(0, 5, (256,))] + 0.1 * torch.randn(256, 8)
training_loader = DataLoader(TensorDataset(data), batch_size=32, shuffle=True)
model = Model()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
run = dynamix.attach(model, optimizer, training_loader)

for epoch in run.epochs(EPOCHS):
    for (batch,) in run.batches():
        optimizer.zero_grad()
        vq_loss, data_recon = model(batch)
        recon_error = F.mse_loss(data_recon, batch)
        run.backward(recon_error + vq_loss)
        optimizer.step()
    print(f"epoch {epoch}: recon_error {recon_error.item():.3f}")
