"""The search for learning rates: what it goes on with, and what its table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report.page import write_csv
from benchmarks.studies.learning_rates import SEARCHES, Search, config_of, missing, reached, read, table
from benchmarks.suite.workloads import load_workload

GPT = Search("text-gpt", "adamw", (0.001, 0.004), epochs=1)


def row(
    rate: str, value: str, workload: str = "text-gpt", optimizer: str = "adamw", epochs: str = "1"
) -> dict[str, str]:
    return {"workload": workload, "optimizer": optimizer, "rate": rate, "epochs": epochs, "value": value, "took_s": "1"}


def test_it_goes_on_with_what_has_not_ended(tmp_path: Path) -> None:
    file = tmp_path / "learning-rates.csv"
    assert read(file) == [] and [rate for _, rate in missing([], [GPT])] == [0.001, 0.004]
    write_csv(file, [row("0.001", "3.1"), row("0.004", "3.2", epochs="2"), row("0.004", "0.4", optimizer="sgd")])
    assert list(missing(read(file), [GPT])) == [(GPT, 0.004)]


def test_the_best_is_the_smallest_loss_or_the_largest_accuracy() -> None:
    rows = [row("0.004", "2.9"), row("0.001", "3.1"), row("0.008", "diverged")]
    rows += [row("0.02", "0.4", "cifar-resnet", "adam", "2"), row("0.01", "0.3", "cifar-resnet", "adam", "2")]
    gpt, resnet = table(rows)
    assert gpt["rate: reached"] == "0.001: 3.100, **0.004: 2.900**, 0.008: diverged"
    assert resnet["rate: reached"] == "0.01: 30.00, **0.02: 40.00**"
    assert (resnet["optimizer"], resnet["epochs"], resnet["metric"]) == ("adam", "2", "accuracy (%)")


def test_the_last_evaluations_count_together() -> None:
    evaluations = [{"values": {"bpb": value, "accuracy": 0.5}} for value in (9.0, 3.0, 2.0, 1.0)]
    assert reached({"evaluations": evaluations}, "bpb") == pytest.approx(2.0)


@pytest.mark.parametrize("search", SEARCHES)
def test_every_search_is_a_training_of_its_workload(search: Search, tmp_path: Path) -> None:
    config = config_of(search, search.rates[0], tmp_path)
    words = dict(zip(config.command[3::2], config.command[4::2], strict=True))
    assert (words["--optimizer"], float(words["--lr"])) == (search.optimizer, search.rates[0])
    assert (words["--epochs"], config.cluster.workers[0].batch) == (
        str(search.epochs),
        3 * load_workload(search.workload).batch,
    )
