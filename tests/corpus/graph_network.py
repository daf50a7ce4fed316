"""Graph network that classifies whole graphs: a batch is one large graph of many small ones, made by collate_fn."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

FEATURES, CLASSES, EPOCHS = 3, 2, 3


class Graphs(Dataset):
    """Random graphs of 4 to 9 nodes. The class says whether a graph has many edges."""

    def __init__(self, count):
        self.graphs = []
        for _ in range(count):
            nodes = int(torch.randint(4, 10, ()))
            edges = torch.randint(0, nodes, (2, int(torch.randint(3, 20, ()))))
            self.graphs.append((torch.randn(nodes, FEATURES), edges, int(edges.shape[1] > 2 * nodes)))

    def __len__(self):
        return len(self.graphs)

    def __getitem__(self, index):
        return self.graphs[index]


def collate(graphs):
    features, edges, labels = zip(*graphs, strict=True)
    sizes = torch.tensor([len(one) for one in features])
    first = sizes.cumsum(0) - sizes
    edge_index = torch.cat([one + begin for one, begin in zip(edges, first, strict=True)], dim=1)
    return torch.cat(features), edge_index, torch.arange(len(graphs)).repeat_interleave(sizes), torch.tensor(labels)


class GCNConv(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.lin, self.bias = nn.Linear(inputs, outputs, bias=False), nn.Parameter(torch.zeros(outputs))

    def forward(self, x, edge_index):
        source, target = edge_index
        degree = torch.ones(len(x)).index_add(0, target, torch.ones(len(target)))
        norm = (degree[source] * degree[target]).rsqrt()
        x = self.lin(x)
        return x.div(degree[:, None]).index_add(0, target, norm[:, None] * x[source]) + self.bias


class GCN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1, self.conv2, self.lin = GCNConv(FEATURES, 8), GCNConv(8, 8), nn.Linear(8, CLASSES)

    def forward(self, x, edge_index, batch):
        x = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        counts = batch.bincount()
        pooled = torch.zeros(len(counts), x.shape[1]).index_add(0, batch, x) / counts[:, None]
        return self.lin(F.dropout(pooled, p=0.5, training=self.training))


torch.manual_seed(12345)
train_set, test_set = Graphs(208), Graphs(64)
test_loader = DataLoader(test_set, batch_size=64, collate_fn=collate)
model = GCN()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
run = dynamix.attach(model, optimizer, DataLoader(train_set, batch_size=32, shuffle=True, collate_fn=collate))

for epoch in run.epochs(EPOCHS):
    model.train()
    for x, edge_index, batch, y in run.batches():
        run.backward(F.cross_entropy(model(x, edge_index, batch), y))
        optimizer.step()
        optimizer.zero_grad()
    model.eval()
    hits = sum(int((model(*graph).argmax(1) == y).sum()) for *graph, y in test_loader)
    print(f"Epoch: {epoch}, Test Acc: {hits / len(test_set):.4f}")
