"""GAN in the shape of DCGAN: batch norm in both networks, two losses that add up for the critic, and fakes that are
made before the step of the critic and used after it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

LATENT, WIDTH, EPOCHS = 6, 4, 2


class Generator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.ConvTranspose2d(LATENT, 2 * WIDTH, 4, 1, 0, bias=False),
            nn.BatchNorm2d(2 * WIDTH),
            nn.ReLU(True),
            nn.ConvTranspose2d(2 * WIDTH, 1, 4, 2, 1, bias=False),
            nn.Tanh(),
        )

    def forward(self, z):
        return self.main(z)


class Discriminator(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(1, WIDTH, 4, 2, 1, bias=False),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(WIDTH, 2 * WIDTH, 4, 2, 1, bias=False),
            nn.BatchNorm2d(2 * WIDTH),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Conv2d(2 * WIDTH, 1, 2, 1, 0, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, images):
        return self.main(images).view(-1)


def weights_init(m):
    if isinstance(m, nn.Conv2d | nn.ConvTranspose2d):
        nn.init.normal_(m.weight, 0.0, 0.2)
    elif isinstance(m, nn.BatchNorm2d):
        nn.init.normal_(m.weight, 1.0, 0.02)
        nn.init.zeros_(m.bias)


torch.manual_seed(999)
loader = DataLoader(TensorDataset(torch.tanh(torch.randn(256, 1, 8, 8))), batch_size=32, shuffle=True)
netG, netD = Generator().apply(weights_init), Discriminator().apply(weights_init)
criterion = nn.BCELoss()
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3, betas=(0.5, 0.999))
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3, betas=(0.5, 0.999))
run = dynamix.attach([netG, netD], [optimizerG, optimizerD], loader)

for epoch in run.epochs(EPOCHS):
    for (real,) in run.batches():
        netD.zero_grad()
        label = torch.full((len(real),), 1.0)
        errD_real = criterion(netD(real), label)
        errD_real.backward()
        fake = netG(torch.randn(len(real), LATENT, 1, 1))
        label.fill_(0.0)
        errD_fake = criterion(netD(fake.detach()), label)
        run.backward(errD_fake)
        optimizerD.step()

        netG.zero_grad()
        label.fill_(1.0)
        errG = criterion(netD(fake), label)
        run.backward(errG)
        optimizerG.step()
    print(f"[{epoch}/{EPOCHS}] Loss_D: {errD_real + errD_fake:.4f} Loss_G: {errG:.4f}")
