"""Physics-informed network: the loss has derivatives of the network by its inputs in it, a mean over the points of the
batch, and a mean over points of the boundary that are the same in every batch."""

import math

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

NU, EPOCHS = 0.01 / math.pi, 3


class PINN(nn.Module):
    """The solution u(t, x) of Burgers' equation. Its viscosity is learned."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, 12), nn.Tanh(), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 1))
        self.log_nu = nn.Parameter(torch.tensor(math.log(NU)))

    def forward(self, t, x):
        return self.net(torch.cat([t, x], dim=1))


def residual(network, t, x):
    t, x = t.requires_grad_(), x.requires_grad_()
    u = network(t, x)
    u_t, u_x = torch.autograd.grad(u, (t, x), torch.ones_like(u), create_graph=True)
    (u_xx,) = torch.autograd.grad(u_x, x, torch.ones_like(u_x), create_graph=True)
    return u_t + u * u_x - network.log_nu.exp() * u_xx


torch.manual_seed(12)
t, x = torch.rand(256, 1), 2 * torch.rand(256, 1) - 1
loader = DataLoader(TensorDataset(t, x), batch_size=32, shuffle=True)
x_0 = torch.linspace(-1, 1, 11)[:, None]
t_0, u_0 = torch.zeros_like(x_0), -torch.sin(math.pi * x_0)
model = PINN()
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.9)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for t, x in run.batches():
        optimizer.zero_grad()
        loss_f = (residual(model, t, x) ** 2).mean()
        loss_u = ((model(t_0, x_0) - u_0) ** 2).mean()
        run.backward(loss_f + loss_u)
        optimizer.step()
    scheduler.step()
    print(f"epoch {epoch}: residual {loss_f.item():.5f}, start {loss_u.item():.5f}, viscosity {model.log_nu.exp():.5f}")
