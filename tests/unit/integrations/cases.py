"""What the workers of these tests run: small trainings in each framework, with batch sizes that change."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, Dataset, IterableDataset, Sampler, TensorDataset

from benchmarks.workloads.frameworks.shared import padded
from dynamix_ps.errors import TrainingError
from dynamix_ps.messages import Plan
from worker_hooks.session import Session
from worker_hooks.training import Training

ROWS, BATCH = 250, 32


def hand_out(plans: Sequence[tuple[int, Sequence[int]]]) -> None:
    """Every worker of this process gets these plans: [(after so many iterations, batch sizes), ...]."""
    trainings: list[Training] = []
    begin_batch = Training.begin_batch

    def remember(training: Training, batch: Any) -> None:
        trainings[:] = [training]
        begin_batch(training, batch)

    def newest_plan(session: Session) -> Plan | None:
        due = [number for number, (after, _) in enumerate(plans) if after <= trainings[0].progress.iteration]
        return Plan(due[-1] + 1, tuple(plans[due[-1]][1])) if due else None

    Training.begin_batch = remember  # type: ignore[method-assign]
    Session.newest_plan = newest_plan  # type: ignore[method-assign]


def data() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(ROWS, 8, generator=generator)
    return TensorDataset(inputs, (inputs @ torch.randn(8, 3, generator=generator)).argmax(1))


def net() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))


class Stream(IterableDataset[Any]):
    """The same rows without numbers."""

    def __iter__(self) -> Iterator[Any]:
        return iter(data())


def refusals(trainings: Sequence[Callable[[], object]]) -> list[str]:
    """What each of them, none of which can be right, is refused with."""
    said = []
    for train in trainings:
        try:
            train()
        except TrainingError as error:
            said.append(str(error))
        else:
            said.append("nothing")
    return said


def recorded() -> list[dict[str, Any]]:
    """The evaluations that this worker has written into the run folder."""
    file = Path(f"run/workers/worker-{os.environ['DMLC_WORKER_ID']}.jsonl")
    lines = map(json.loads, file.read_text().splitlines())
    return [line for line in lines if line["kind"] == "evaluation"]


def weights_of(model: nn.Module) -> list[float]:
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def in_lightning(job: dict[str, Any]) -> dict[str, Any]:
    """Train by Lightning. `trainer`: arguments of the Trainer; `checkpoint`: to go on from."""
    import lightning.pytorch as pl
    import torchmetrics
    from lightning.pytorch.callbacks import EMAWeightAveraging, ModelCheckpoint

    from dynamix_ps.integrations.lightning import DynamixStrategy

    hand_out(job.get("plans", ()))
    seen: list[int] = []

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = net()
            self.automatic_optimization = not job.get("manual")
            self.batches = torchmetrics.MeanMetric()

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.net(inputs)

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            inputs, targets = batch
            seen.append(len(targets))
            loss = cross_entropy(self(inputs), targets)
            self.log("loss", loss, on_epoch=True, on_step=False, sync_dist=True)
            self.batches.update(loss, weight=len(targets))
            self.log("mean_loss", self.batches, on_epoch=True, on_step=False)
            if job.get("manual"):
                optimizer = self.optimizers()
                optimizer.zero_grad()
                self.manual_backward(loss, correct=0)
                optimizer.step()
            return {"loss": loss, **({"weight": len(targets)} if job.get("weighted") else {})}

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            inputs, targets = batch
            self.log("accuracy", (self(inputs).argmax(1) == targets).float().mean())

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.SGD(self.parameters(), lr=0.2, momentum=0.9)
            return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8)]

    validated: list[int] = []

    class Count(pl.Callback):
        def on_validation_end(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
            validated.append(trainer.global_step)

    module = Module()
    saving = ModelCheckpoint("kept", "{step}", save_top_k=-1, every_n_train_steps=3, save_on_train_epoch_end=False)
    trainer = pl.Trainer(
        strategy=DynamixStrategy(),
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=[Count(), saving, *([EMAWeightAveraging(decay=0.5)] if job.get("averaged") else [])],
        **{"max_epochs": 3, "num_sanity_val_steps": 1, **job.get("trainer", {})},
    )
    loader = DataLoader(Stream(), BATCH) if job.get("stream") else DataLoader(data(), BATCH, shuffle=True)
    trainer.fit(module, loader, DataLoader(data(), 100), ckpt_path=job.get("checkpoint"))
    return {
        "weights": weights_of(module),
        "steps": trainer.global_step,
        "epochs": trainer.current_epoch,
        "validated": validated,
        "seen": seen,
        **{name: float(value) for name, value in trainer.callback_metrics.items()},
        "kept": sorted(map(str, Path("kept").resolve().glob("*.ckpt"))),
        "recorded": sorted({name for line in recorded() for name in line["values"]}),
    }


def refused_in_lightning(jobs: Sequence[dict[str, Any]]) -> list[str]:
    return refusals([partial(in_lightning, job) for job in jobs])


def in_accelerate(job: dict[str, Any]) -> dict[str, Any]:
    """Train by accelerate. `accumulated`: batches in one step; `save_after`, `state`: steps, folder to go on from."""
    from dynamix_ps.integrations.accelerate import Accelerator

    hand_out(job.get("plans", ()))
    accelerator = Accelerator(gradient_accumulation_steps=job.get("accumulated", 1), cpu=True)
    model, rows = net(), data()
    torch.manual_seed(accelerator.process_index)  # workers draw other numbers, as in a script that seeds nothing
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
    model, optimizer, loader, test = accelerator.prepare(
        model, optimizer, DataLoader(rows, BATCH, shuffle=True), DataLoader(rows, 100, shuffle=True)
    )
    if "state" in job:
        accelerator.load_state(job["state"])
    seen, steps, right, evaluated, loops = [], 0, 0, [], 0
    for _ in range(job.get("epochs", 3)):
        model.train()
        for inputs, targets in loader:
            with accelerator.accumulate(model):
                seen.append(len(targets))
                accelerator.backward(cross_entropy(model(inputs), targets))
                steps += accelerator.sync_gradients
                optimizer.step()
                optimizer.zero_grad()
            if steps == job.get("save_after"):
                accelerator.save_state("state")
        model.eval()
        evaluated, right, loops = [], 0, 0
        for inputs, targets in test:
            found = accelerator.gather_for_metrics((model(inputs).argmax(1), targets, inputs[:, 0]))
            right, loops = right + int((found[0] == found[1]).sum()), loops + 1
            evaluated += found[2].tolist()
    with accelerator.main_process_first():
        late = Path("first").exists()
        Path("first").touch()
    sizes = accelerator.gather(torch.arange(accelerator.process_index + 1)).tolist()
    mean = accelerator.reduce(torch.tensor(float(accelerator.process_index)), "mean").item()
    return {
        "weights": weights_of(model),
        "steps": steps,
        "seen": seen,
        "accuracy": right / len(evaluated),
        "evaluated": evaluated,
        "evaluations": [len(test), loops],
        "gathered": sizes,
        "mean": mean,
        "is_main": accelerator.is_main_process,
        "late": late,
        "state": str(Path("state").resolve()),
    }


def refused_in_accelerate(_: None) -> list[str]:
    """What several workers would get wrong: other cuts of batches, streams, orders that differ, things not tensors."""
    from accelerate import DataLoaderConfiguration

    from dynamix_ps.integrations.accelerate import Accelerator

    def loop(dataset: Dataset[Any], *, trains: bool, sampler: Any = None) -> None:
        model = net().train(trains)
        prepared = accelerator.prepare(
            model, torch.optim.SGD(model.parameters(), lr=0.2), DataLoader(dataset, BATCH, sampler=sampler)
        )
        next(iter(prepared[-1]))

    class Anyhow(Sampler[int]):
        def __iter__(self) -> Iterator[int]:
            return iter(range(ROWS))

    splitting = DataLoaderConfiguration(split_batches=True)
    first = refusals([lambda: Accelerator(cpu=True, dataloader_config=splitting)])
    accelerator = Accelerator(cpu=True)
    return first + refusals(
        [
            lambda: accelerator.gather_for_metrics(["words"]),
            lambda: loop(Stream(), trains=False),
            lambda: loop(data(), trains=False, sampler=Anyhow()),
            lambda: loop(Stream(), trains=True),
        ]
    )


class Lines(Dataset[bytes]):
    """Lines of different lengths."""

    def __init__(self) -> None:
        text = "the quick brown fox jumps over the lazy dog while nobody looks at the small red house"
        self._lines = [text[n % 9 : n % 9 + 12 + 5 * (n % 11)].encode() for n in range(120)]

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, number: int) -> bytes:
        return self._lines[number]


def in_transformers(job: dict[str, Any]) -> dict[str, Any]:
    """Train a byte-level GPT by the Trainer. `arguments`: of the training; `checkpoint`: to go on from."""
    from transformers import GPT2Config, GPT2LMHeadModel, TrainingArguments

    from dynamix_ps.integrations.transformers import Trainer

    hand_out(job.get("plans", ()))
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=256, n_positions=80, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0,
        resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    model = GPT2LMHeadModel(config)
    rates: list[float] = []

    class Rates(Trainer):
        def training_step(self, *args: Any, **kwargs: Any) -> torch.Tensor:
            rates.append(self._get_learning_rate())
            return super().training_step(*args, **kwargs)

    arguments = {
        "output_dir": "out", "num_train_epochs": 2, "per_device_train_batch_size": 16, "learning_rate": 1e-2,
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "eval_strategy": "epoch",
        "dataloader_pin_memory": False, "seed": 3,
    }  # fmt: skip
    trainer = Rates(
        model=model,
        args=TrainingArguments(**{**arguments, **job.get("arguments", {})}),
        train_dataset=Lines(),
        eval_dataset=Lines(),
        data_collator=padded,
    )
    output = trainer.train(resume_from_checkpoint=job.get("checkpoint"))
    return {
        "weights": weights_of(model),
        "steps": output.global_step,
        "evaluated": [one["epoch"] for one in trainer.state.log_history if "eval_loss" in one],
        "rates": rates,
        "kept": sorted(map(str, Path("out").resolve().glob("checkpoint-*"))),
    }


def refused_in_transformers(jobs: Sequence[dict[str, Any]]) -> list[str]:
    return refusals([partial(in_transformers, job) for job in jobs])
