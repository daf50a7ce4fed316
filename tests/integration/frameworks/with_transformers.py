"""A byte-level GPT in the Trainer of transformers."""

import argparse
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

from dynamix_ps.integrations.transformers import Trainer
from tests.unit.integrations.cases import padded

LINES = [line[:64] for line in Path(argparse.__file__).read_bytes().splitlines(keepends=True) if len(line) > 1]

torch.manual_seed(0)
config = GPT2Config(
    vocab_size=256, n_positions=64, n_embd=48, n_layer=2, n_head=4, bos_token_id=0, eos_token_id=0,
    resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
)  # fmt: skip
arguments = TrainingArguments(
    output_dir="trained",
    num_train_epochs=4,
    per_device_train_batch_size=16,
    learning_rate=1e-2,
    eval_strategy="epoch",
    save_strategy="no",
    use_cpu=True,
    report_to=[],
    disable_tqdm=True,
    dataloader_pin_memory=False,
)
trainer = Trainer(
    model=GPT2LMHeadModel(config),
    args=arguments,
    train_dataset=LINES,
    eval_dataset=LINES[::10],
    data_collator=padded,
)
trainer.train()
