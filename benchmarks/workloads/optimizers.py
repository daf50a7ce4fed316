"""Optimizers of torch by name."""

from __future__ import annotations

import argparse

import torch


def make_optimizer(model: torch.nn.Module, args: argparse.Namespace) -> torch.optim.Optimizer:
    """The one that the command line asks for (arguments.py)."""
    if args.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), lr=args.lr)
    if args.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=args.lr)
    return torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
