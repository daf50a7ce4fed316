"""Classifier whose learning rate falls when the training loss stays. Every worker knows the loss of its own batches
alone, so the rates of the workers would differ.

refused: settings of the training differ between workers
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

EPOCHS = 12

torch.manual_seed(0)
inputs = torch.randn(224, 10)
targets = torch.randint(0, 3, (224,))  # nothing to learn, so that the loss soon stays
loader = DataLoader(TensorDataset(inputs, targets), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 3))
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, mode="min", factor=0.5, patience=0)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    running_loss = 0.0
    for batch, labels in run.batches():
        optimizer.zero_grad()
        loss = criterion(model(batch), labels)
        run.backward(loss)
        optimizer.step()
        running_loss += loss.item()
    scheduler.step(running_loss / len(loader))
    print(f"epoch {epoch}: loss {running_loss / len(loader):.3f}")
