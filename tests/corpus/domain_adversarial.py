"""Domain-adversarial training (DANN): a layer of the script's own turns the gradient around, and its strength grows
with the place in the training. The two data sets are one, whose samples have an item of each."""

import math

import torch
from torch import nn
from torch.autograd import Function
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

EPOCHS = 3


class SourceAndTarget(Dataset):
    """Of two data sets: the shorter one begins anew."""

    def __init__(self, source, labels, target):
        self.source, self.labels, self.target = source, labels, target

    def __len__(self):
        return max(len(self.source), len(self.target))

    def __getitem__(self, index):
        of_source = index % len(self.source)
        return self.source[of_source], self.labels[of_source], self.target[index % len(self.target)]


class ReverseLayerF(Function):
    @staticmethod
    def forward(ctx, x, alpha):
        ctx.alpha = alpha
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.neg() * ctx.alpha, None


class DANN(nn.Module):
    def __init__(self):
        super().__init__()
        self.feature = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(True))
        self.class_classifier = nn.Sequential(nn.Dropout(0.2), nn.Linear(16, 3), nn.LogSoftmax(dim=1))
        self.domain_classifier = nn.Sequential(nn.Linear(16, 8), nn.ReLU(True), nn.Linear(8, 2), nn.LogSoftmax(dim=1))

    def forward(self, input_data, alpha):
        feature = self.feature(input_data)
        return self.class_classifier(feature), self.domain_classifier(ReverseLayerF.apply(feature, alpha))


torch.manual_seed(19)
x = torch.randn(240, 6)
data = SourceAndTarget(x[:150], x[:150, :3].argmax(1), 0.5 * torch.randn(240, 6) + 0.7)
loader = DataLoader(data, batch_size=32, shuffle=True)
my_net = DANN()
optimizer = torch.optim.Adam(my_net.parameters(), lr=1e-2)
loss_class, loss_domain = nn.NLLLoss(), nn.NLLLoss()
run = dynamix.attach(my_net, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for i, (s_img, s_label, t_img) in enumerate(run.batches()):
        p = (i + epoch * len(loader)) / EPOCHS / len(loader)
        alpha = 2.0 / (1.0 + math.exp(-10 * p)) - 1
        my_net.zero_grad()
        class_output, domain_output = my_net(s_img, alpha)
        err_s_label = loss_class(class_output, s_label)
        err_s_domain = loss_domain(domain_output, torch.zeros(len(s_img), dtype=torch.long))
        _, domain_output = my_net(t_img, alpha)
        err_t_domain = loss_domain(domain_output, torch.ones(len(t_img), dtype=torch.long))
        run.backward(err_t_domain + err_s_domain + err_s_label)
        optimizer.step()
    print(f"epoch {epoch}: label {err_s_label:.4f}, domains {err_s_domain:.4f} and {err_t_domain:.4f}")
