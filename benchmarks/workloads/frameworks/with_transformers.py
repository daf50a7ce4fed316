"""Lines of Python source in the Trainer of transformers: a GPT that predicts the next byte."""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from benchmarks.workloads.frameworks.shared import SIZE, arguments, padded
from dynamix_ps.integrations.transformers import Trainer

LENGTH = 64  # bytes of a line, at most

args = arguments(__doc__, epochs=8)
source = Path(argparse.__file__).read_bytes().splitlines(keepends=True)
lines = [line[:LENGTH] for line in source if len(line) > 1][: args.samples]

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=LENGTH, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=TrainingArguments(
        output_dir="trained",
        num_train_epochs=args.epochs,
        per_device_train_batch_size=SIZE,
        learning_rate=1e-2,
        eval_strategy="epoch",
        save_strategy="no",
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=False,
    ),
    train_dataset=lines,
    eval_dataset=lines[::10],
    data_collator=padded,
)
trainer.train()
