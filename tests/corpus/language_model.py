"""LSTM language model in the shape of word_language_model: the text is cut into columns, one for each row of a batch,
and the state goes on from batch to batch. A worker that gets another part of the columns has no state for them.

refused: what goes from batch to batch, such as the state of an LSTM, must be made anew
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

WORDS, BATCH, BPTT, WIDTH, EPOCHS = 20, 32, 5, 8, 2


class Columns(Dataset):
    """The windows of all columns at one time, then those at the next: a batch is one time of all columns."""

    def __init__(self, text):
        self.columns = text[: len(text) // BATCH * BATCH].view(BATCH, -1)

    def __len__(self):
        return (self.columns.shape[1] - 1) // BPTT * BATCH

    def __getitem__(self, index):
        time, column = divmod(index, BATCH)
        window = self.columns[column, time * BPTT : (time + 1) * BPTT + 1]
        return window[:-1], window[1:]


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Embedding(WORDS, WIDTH)
        self.rnn = nn.LSTM(WIDTH, WIDTH, num_layers=2, batch_first=True)
        self.decoder = nn.Linear(WIDTH, WORDS)
        self.decoder.weight = self.encoder.weight  # tied

    def forward(self, data, hidden):
        output, hidden = self.rnn(self.encoder(data), hidden)
        return self.decoder(output).view(-1, WORDS), hidden

    def init_hidden(self, size):
        weight = next(self.parameters())
        return weight.new_zeros(2, size, WIDTH), weight.new_zeros(2, size, WIDTH)


def repackage_hidden(h):
    return h.detach() if isinstance(h, torch.Tensor) else tuple(repackage_hidden(v) for v in h)


torch.manual_seed(1111)
text = torch.randint(0, WORDS, (BATCH * (8 * BPTT + 1),)).cumsum(0) % WORDS
model = RNNModel()
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
loader = DataLoader(Columns(text), batch_size=BATCH)
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    hidden = None
    for data, targets in run.batches():
        hidden = model.init_hidden(len(data)) if hidden is None else repackage_hidden(hidden)
        model.zero_grad()
        output, hidden = model(data, hidden)
        loss = criterion(output, targets.flatten())
        run.backward(loss)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    print(f"| epoch {epoch} | loss {loss.item():5.2f} |")
