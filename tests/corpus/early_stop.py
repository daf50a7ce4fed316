"""Early stop: training ends when the loss on the validation set has not fallen for some epochs, and the best weights
come back. The loop over epochs is left by `break`."""

import copy

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

MAX_EPOCHS, PATIENCE = 40, 2


class EarlyStopping:
    def __init__(self, patience, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter, self.best_loss, self.best_state, self.early_stop = 0, float("inf"), None, False

    def __call__(self, val_loss, network):
        if val_loss < self.best_loss - self.delta:
            self.best_loss, self.counter = val_loss, 0
            self.best_state = copy.deepcopy(network.state_dict())
        else:
            self.counter += 1
            self.early_stop = self.counter >= self.patience
            print(f"EarlyStopping counter: {self.counter} out of {self.patience}")


torch.manual_seed(11)
x = torch.randn(260, 12)
y = x[:, :2].prod(1, keepdim=True) + 0.5 * torch.randn(260, 1)
train_loader = DataLoader(TensorDataset(x[:200], y[:200]), batch_size=32, shuffle=True)
valid_loader = DataLoader(TensorDataset(x[200:], y[200:]), batch_size=32)
model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Dropout(0.1), nn.Linear(32, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
early_stopping = EarlyStopping(PATIENCE)
run = dynamix.attach(model, optimizer, train_loader)

for epoch in run.epochs(MAX_EPOCHS):
    model.train()
    for data, target in run.batches():
        optimizer.zero_grad()
        run.backward(F.mse_loss(model(data), target))
        optimizer.step()

    model.eval()
    with torch.no_grad():
        valid_losses = [F.mse_loss(model(data), target).item() for data, target in valid_loader]
    valid_loss = sum(valid_losses) / len(valid_losses)
    print(f"[{epoch}/{MAX_EPOCHS}] valid_loss: {valid_loss:.5f}")
    early_stopping(valid_loss, model)
    if early_stopping.early_stop:
        print("Early stopping")
        break

model.load_state_dict(early_stopping.best_state)
