"""Network for tables: an embedding for each category, batch norm for the numbers, dropout, a rare class that weighs
more, and a data set whose samples are dicts."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

CARDINALITIES, NUMBERS, EPOCHS = (7, 4, 12), 5, 2


class Table(Dataset):
    def __init__(self, rows):
        self.categories = torch.stack([torch.randint(0, n, (rows,)) for n in CARDINALITIES], 1)
        self.numbers = torch.randn(rows, NUMBERS)
        self.target = 1.0 * (self.numbers[:, 0] + self.categories[:, 1] > 3.2)

    def __len__(self):
        return len(self.target)

    def __getitem__(self, index):
        return {"cat": self.categories[index], "cont": self.numbers[index], "target": self.target[index]}


class TabularModel(nn.Module):
    def __init__(self):
        super().__init__()
        sizes = [(n, min(50, (n + 1) // 2)) for n in CARDINALITIES]
        self.embeds = nn.ModuleList([nn.Embedding(*size) for size in sizes])
        self.emb_drop, self.bn_cont = nn.Dropout(0.1), nn.BatchNorm1d(NUMBERS)
        width = sum(size for _, size in sizes) + NUMBERS
        self.layers = nn.Sequential(
            nn.Linear(width, 16), nn.ReLU(inplace=True), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Linear(16, 1)
        )

    def forward(self, x_cat, x_cont):
        x = torch.cat([embed(x_cat[:, i]) for i, embed in enumerate(self.embeds)], 1)
        return self.layers(torch.cat([self.emb_drop(x), self.bn_cont(x_cont)], 1)).squeeze(1)


def score(cat, cont, target):
    found = model(cat, cont)
    return {"accuracy": ((found > 0) == (target > 0.5)).sum(), "loss": criterion(found, target) * len(target)}


torch.manual_seed(42)
train_set, valid_set = Table(260), Table(64)
model = TabularModel()
positive = train_set.target.sum()
criterion = nn.BCEWithLogitsLoss(pos_weight=(len(train_set) - positive) / positive)
optimizer = torch.optim.AdamW(
    [
        {"params": model.embeds.parameters(), "weight_decay": 0.0},
        {"params": [*model.bn_cont.parameters(), *model.layers.parameters()], "weight_decay": 0.01},
    ],
    lr=1e-2,
)
run = dynamix.attach(model, optimizer, DataLoader(train_set, batch_size=32, shuffle=True))

for epoch in run.epochs(EPOCHS):
    model.train()
    for batch in run.batches():
        loss = criterion(model(batch["cat"], batch["cont"]), batch["target"])
        optimizer.zero_grad()
        run.backward(loss)
        optimizer.step()
    model.eval()
    for name, value in run.evaluate(valid_set, score).items():
        print(f"epoch {epoch}: {name} {value:.4f}")
