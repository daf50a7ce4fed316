"""Masked language model in the shape of BERT: the loss is a mean over the masked tokens, whose number differs between
batches. Warm-up and linear decay go by steps, and weight decay leaves biases and norms out."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Dataset

import dynamix_ps.torch as dynamix

VOCAB, MASK, PAD, LENGTH, WIDTH, EPOCHS = 20, 18, 19, 8, 8, 2


class Sentences(Dataset):
    def __init__(self, count):
        starts, steps = torch.randint(0, 18, (count,)), torch.randint(1, 3, (count,))
        lengths = torch.randint(3, LENGTH + 1, (count,)).tolist()
        self.sentences = [(s + d * torch.arange(n)) % 18 for s, d, n in zip(starts, steps, lengths, strict=True)]

    def __len__(self):
        return len(self.sentences)

    def __getitem__(self, index):
        return self.sentences[index]


class Collator:
    """Pads, and masks a part of the tokens: those that go by the numbers of token and place."""

    def __call__(self, sentences):
        input_ids = nn.utils.rnn.pad_sequence(sentences, batch_first=True, padding_value=PAD)
        input_ids = F.pad(input_ids, (0, LENGTH - input_ids.shape[1]), value=PAD)
        masked = (input_ids * 7 + torch.arange(LENGTH) * 3) % 6 == 0
        masked &= input_ids != PAD
        return {
            "input_ids": input_ids.masked_fill(masked, MASK),
            "attention_mask": input_ids != PAD,
            "labels": input_ids.masked_fill(~masked, -100),
        }


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.positions = nn.Embedding(VOCAB, WIDTH, padding_idx=PAD), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True, activation="gelu")
        self.layers, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(WIDTH, VOCAB)

    def forward(self, input_ids, attention_mask):
        hidden = self.words(input_ids) + self.positions(torch.arange(LENGTH))
        return self.head(self.layers(hidden, src_key_padding_mask=~attention_mask))


torch.manual_seed(8)
loader = DataLoader(Sentences(240), batch_size=32, shuffle=True, collate_fn=Collator())
model = Encoder()
named = list(model.named_parameters())
decayed = [p for n, p in named if not any(part in n for part in ("bias", "norm"))]
rest = [p for n, p in named if any(part in n for part in ("bias", "norm"))]
optimizer = torch.optim.AdamW([{"params": decayed}, {"params": rest, "weight_decay": 0.0}], lr=5e-3)
total, warmup = EPOCHS * len(loader), 3
scheduler = LambdaLR(optimizer, lambda s: min((s + 1) / warmup, max(0.0, (total - s) / (total - warmup))))
run = dynamix.attach(model, optimizer, loader)

for epoch in run.epochs(EPOCHS):
    for batch in run.batches():
        labels = batch.pop("labels")
        logits = model(**batch)
        loss = F.cross_entropy(logits.view(-1, VOCAB), labels.view(-1), ignore_index=-100)
        run.backward(loss, weight=(labels != -100).sum())
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
    print(f"epoch {epoch}: loss {loss.item():.4f}")
