"""Distillation: a frozen teacher, a student, a Kullback-Leibler divergence with "batchmean" beside cross entropy, and a
layer of the loss that has weights of its own."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import dynamix_ps.torch as dynamix

T, SOFT_WEIGHT, HINT_WEIGHT, EPOCHS = 2.0, 0.25, 0.1, 3

torch.manual_seed(6)
x = torch.randn(256, 10)
loader = DataLoader(TensorDataset(x, x[:, :4].argmax(1)), batch_size=32, shuffle=True)

teacher = nn.Sequential(nn.Linear(10, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 4))
student = nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, 4))
regressor = nn.Linear(8, 32)  # from hidden values of the student to those of the teacher


def features(network, inputs):
    hidden = network[:-1](inputs)
    return hidden, network[-1](hidden)


# first the teacher, in a training of its own
optimizer = torch.optim.Adam(teacher.parameters(), lr=0.01)
run = dynamix.attach(teacher, optimizer, loader)
for _ in run.epochs(EPOCHS):
    for inputs, labels in run.batches():
        optimizer.zero_grad()
        run.backward(F.cross_entropy(teacher(inputs), labels))
        optimizer.step()
run.close()
teacher.eval().requires_grad_(False)

# then the student
optimizer_of_student = torch.optim.Adam([*student.parameters(), *regressor.parameters()], lr=0.01)
run = dynamix.attach([student, regressor], optimizer_of_student, loader)
for epoch in run.epochs(EPOCHS):
    student.train()
    for inputs, labels in run.batches():
        optimizer_of_student.zero_grad()
        with torch.no_grad():
            teacher_hidden, teacher_logits = features(teacher, inputs)
        hidden, logits = features(student, inputs)
        soft_targets, soft_prob = F.softmax(teacher_logits / T, dim=-1), F.log_softmax(logits / T, dim=-1)
        soft_loss = torch.sum(soft_targets * (soft_targets.log() - soft_prob)) / soft_prob.size(0) * T**2
        kl_loss = F.kl_div(soft_prob, soft_targets, reduction="batchmean") * T**2
        hint_loss = F.mse_loss(regressor(hidden), teacher_hidden)
        label_loss = F.cross_entropy(logits, labels)
        loss = SOFT_WEIGHT * (soft_loss + kl_loss) / 2 + HINT_WEIGHT * hint_loss + (1 - SOFT_WEIGHT) * label_loss
        run.backward(loss)
        optimizer_of_student.step()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
