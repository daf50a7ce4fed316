"""Sharpness-aware minimisation (SAM): an optimizer around another one. A first backward pass moves the weights uphill,
a second one there gives the gradient that the step takes from where the weights were."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

EPOCHS = 2


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self, zero_grad=False):
        grad_norm = torch.stack([p.grad.norm(2) for p in self.parameters()]).norm(2)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["old_p"] = p.data.clone()
                    p.add_(p.grad * group["rho"] / (grad_norm + 1e-12))
        if zero_grad:
            self.zero_grad()

    @torch.no_grad()
    def second_step(self, zero_grad=False):
        for p in self.parameters():
            p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        if zero_grad:
            self.zero_grad()

    def load_state_dict(self, state_dict):
        super().load_state_dict(state_dict)
        self.base_optimizer.param_groups = self.param_groups

    def parameters(self):
        return [p for group in self.param_groups for p in group["params"] if p.grad is not None]


torch.manual_seed(13)
x = torch.randn(256, 8)
loader = DataLoader(TensorDataset(x, x[:, :3].argmax(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss(label_smoothing=0.1)
optimizer = SAM(model.parameters(), torch.optim.SGD, rho=0.5, lr=0.1, momentum=0.9)
scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer.base_optimizer, milestones=[1], gamma=0.2)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for inputs, targets in run.batches():
        loss = criterion(model(inputs), targets)
        run.backward(loss)
        optimizer.first_step(zero_grad=True)
        run.backward(criterion(model(inputs), targets))
        optimizer.second_step(zero_grad=True)
    scheduler.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
