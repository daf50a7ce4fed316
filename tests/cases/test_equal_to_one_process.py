"""Scripts as people write them: two workers come to the same weights as one process in plain torch."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cases.harness import case_of, flat, in_double
from tests.cases.plain import plain_attach, put_together
from tests.cases.scripts import (
    accumulation,
    gathered,
    gradients,
    hooks,
    kept,
    loaders,
    loops,
    normalisation,
    parameters,
    phases,
    seeds,
    sums,
    three_lines,
    weighted,
)
from tests.forked import ForkServer, Worker

# helpers, and what has a test of its own
ELSEWHERE = {
    "steps",
    "folds",
    "batch_norm",
    "gan",
    "flattened",
    "token_loss",
    "token_counts",
    "pairs_of_a_batch",
    "nt_xent",
    "sup_con",
}
MODULES = (
    accumulation,
    gathered,
    gradients,
    hooks,
    kept,
    loaders,
    loops,
    normalisation,
    parameters,
    phases,
    seeds,
    sums,
    three_lines,
    weighted,
)
CASES = [
    f"{module.__name__.rsplit('.', 1)[1]}.{name}"
    for module in MODULES
    for name, value in vars(module).items()
    if callable(value) and getattr(value, "__module__", None) == module.__name__
    if name not in ELSEWHERE and not name.startswith("_")
]
PLANS = [[1, [8, 24]], [4, [28, 4]]]  # B stays, so that scripts may count on it
AHEAD = ("one_batch_ahead", "next_batch_before_backward", "copies_one_ahead", "accumulated_ahead", "left_out")
TOLERANCE = {"gradients.bf16_parameters": 0.02} | {f"loops.{name}": 1e-12 for name in AHEAD}


@pytest.mark.parametrize("name", CASES)
def test_two_workers_are_one_process(name: str, server: ForkServer, tmp_path: Path) -> None:
    job = {"name": name, "plans": PLANS}
    check(name, server.run("tests.cases.harness:work", job, tmp_path, mode="observe", lr_rule="none"))


def check(name: str, workers: list[Worker]) -> None:
    """All have the same result, and that of one process on their batches put together."""
    for worker in workers:
        assert worker.code == 0, worker.output
    first, *others = (worker.result["values"] for worker in workers)
    assert all(other == first for other in others)
    recorded = put_together([worker.result["recorded"] for worker in workers])
    assert any(loop for loops in recorded for loop in loops)
    alone = in_double(case_of(name), plain_attach(recorded))
    tolerance = TOLERANCE.get(name, 1e-6)
    assert list(flat(first)) == pytest.approx(list(flat(alone)), rel=tolerance, abs=tolerance)


@pytest.mark.parametrize("name", ["normalisation.gan", "kept.two_tasks", "kept.views_of_the_iteration_before"])
def test_one_worker_is_plain_training(name: str, server: ForkServer, tmp_path: Path) -> None:
    job = {"name": name, "plans": []}
    check(name, server.run("tests.cases.harness:work", job, tmp_path, (32,), mode="observe", lr_rule="none"))


THREE = [
    "gradients.layer_of_some_samples",
    "accumulation.over_batches",
    "parameters.unfreeze",
    "phases.evaluation",
    "sums.over_batches",
    "sums.over_batches_run_backward",
    "weighted.padded_tokens",
    "weighted.parts_of_the_batch",
    "kept.two_tasks",
    "hooks.clamped_after_attach",
    "hooks.on_a_layer_of_some_samples",
    "hooks.accumulated_on_a_layer_of_some_samples",
    "kept.flat_buffer",
    "kept.own_gradient_tensors",
    "gathered.two_views",
    "gathered.labels_too",
    "gathered.over_parts",
    "three_lines.accumulated",
    "three_lines.summed_each_time",
    "three_lines.with_attacks",
]


@pytest.mark.parametrize("name", THREE)
def test_three_workers_are_one_process(name: str, server: ForkServer, tmp_path: Path) -> None:
    """One of them without samples for a while."""
    job = {"name": name, "plans": [[1, [8, 24, 0]], [4, [20, 4, 8]]]}
    check(name, server.run("tests.cases.harness:work", job, tmp_path, (16, 8, 8), mode="observe", lr_rule="none"))


@pytest.mark.parametrize("unit", ["tokens", "padded_tokens"])
@pytest.mark.parametrize("sizes", [(24, 8), (30, 14, 9)])
def test_workers_with_sizes_in_tokens_are_one_process(
    sizes: tuple[int, ...], unit: str, server: ForkServer, tmp_path: Path
) -> None:
    """Plans change while they train, and one of them leaves a worker without tokens; every sample comes once."""
    job = {"name": "weighted.budgets_of_tokens", "plans": [[2, [40, 0, 11][: len(sizes)]], [7, sizes[::-1]]]}
    batch = {"unit": unit, "min": 1}
    workers = server.run("tests.cases.harness:work", job, tmp_path, sizes, mode="observe", lr_rule="none", batch=batch)
    check(job["name"], workers)
    (loop,) = put_together([worker.result["recorded"] for worker in workers])[0]
    rows = [row for taken in loop for row in taken]
    assert sorted(rows[:192]) == sorted(rows[192:]) == list(range(192))


@pytest.mark.parametrize("name", ["divided_by_its_samples", "divided_by_a_constant", "means_of_parts"])
def test_nothing_is_said_of_a_loss_that_is_right(name: str, server: ForkServer, tmp_path: Path) -> None:
    for worker in server.run("tests.cases.harness:work", {"name": f"sums.{name}", "plans": []}, tmp_path):
        assert worker.code == 0 and ": loss: it " not in worker.output, worker.output


def test_what_is_trained_over_pairs_is_said_once(server: ForkServer, tmp_path: Path) -> None:
    workers = server.run("tests.cases.harness:work", {"name": "sums.pairs_of_a_batch", "plans": []}, tmp_path)
    said = [line for worker in workers for line in worker.output.splitlines() if ": loss: it " in line]
    assert [worker.code for worker in workers] == [0, 0]
    assert len(said) == 1 and "over the pairs of each worker's own samples" in said[0]


def test_a_script_that_goes_on_from_its_own_file_makes_as_many_steps(server: ForkServer, tmp_path: Path) -> None:
    job = {"name": "phases.own_checkpoint", "plans": []}
    counts = server.run("tests.cases.harness:work", job, tmp_path)[0].result["values"][0]
    assert sum(counts) == 3 * 192 // 32


def test_every_sample_is_taken_once_per_epoch_whatever_seeds_the_workers_give(
    server: ForkServer, tmp_path: Path
) -> None:
    job = {"name": "seeds.seed_differs_by_rank", "plans": PLANS}
    workers = server.run("tests.cases.harness:work", job, tmp_path, mode="observe", lr_rule="none")
    batches = put_together([worker.result["recorded"] for worker in workers])[0][0]
    rows = [row for batch in batches for row in batch]
    assert sorted(rows[:192]) == sorted(rows[192:]) == list(range(192))
    assert rows[:192] != rows[192:]


@pytest.mark.parametrize(
    ("name", "taken"),
    [("cell_twice", [6, 6, 6, 6]), ("break_in_a_pass", [3, 6, 6]), ("shorter_partner", [5, 5])],
)
def test_each_loop_over_batches_is_a_pass_from_its_beginning(
    name: str, taken: list[int], server: ForkServer, tmp_path: Path
) -> None:
    """As a plain loader of 32 gives them, in order. The partner of zip() ends with a batch in hand."""
    workers = server.run("tests.cases.harness:work", {"name": f"loops.{name}", "plans": []}, tmp_path)
    for worker in workers:
        assert worker.code == 0, worker.output
    loops = put_together([worker.result["recorded"] for worker in workers])[0]
    assert loops == [[list(range(32 * number, 32 * number + 32)) for number in range(count)] for count in taken]
