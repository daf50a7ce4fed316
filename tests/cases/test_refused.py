"""Scripts that would train another model: all workers stop with one error, before a weight changes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.errors import TrainingError
from tests.forked import ForkServer, write_cluster_file

CASES = {
    "unattached_optimizer": r"an optimizer \(Adam\) steps parameters that no training sums.*pass all models and",
    "lbfgs": "LBFGS calls its closure many times",
    "no_optimizer": r"attach\(\) got no optimizer, so nobody sees a step.*SGD\(model.parameters\(\), lr\) makes",
    "sparse_adam": "SparseAdam needs sparse gradients",
    "sharded_optimizer": "ZeroRedundancyOptimizer keeps a part of its state on each worker.*give attach",
    "sync_batch_norm": "SyncBatchNorm .* not supported; use BatchNorm",
    "backward_after_the_sum": r"loss.backward\(\) has added gradients of this worker alone",
    "changed_before_the_sum": r"the gradient of \S+ was changed between loss.backward\(\) and run.backward\(\)",
    "flat_buffer_over_batches": r"the gradient of 2.bias is a part of a tensor .*call run.backward\(\) for every batch",
    "hook_that_changes_a_gradient_of_one_worker": r"a hook of parameter 0.weight changes its gradient in loss.back",
    "hook_that_scales_a_gradient_of_one_worker": r"a hook of parameter 0.weight changes its gradient in loss.back",
    "hook_where_gradients_add_up": r"parameter 0.weight has a hook .*call zero_grad\(\) before run.backward\(\)",
    "frozen_while_it_accumulates": "no longer trained have gradients of earlier batches .*: 0.bias, 0.weight; freeze",
    "frozen_while_one_worker_accumulates": "no longer trained have gradients .*: 1.bias, 1.weight; freeze",
    "thawed_between_two_sums": r"parameter 0.\S+ was trained for a while between two sums",
    "step_without_backward": r"call run.backward\(loss\) for the last loss before optimizer.step\(\)",
    "step_before_backward": r"optimizer.step\(\) without run.backward\(loss\) in this iteration",
    "several_losses_in_a_loop_over_the_loader": r"got a gradient, or several losses; call loss.backward\(\) for one",
    "graph_of_gradients_in_a_loop_over_the_loader": r"create_graph=True\) in a loop .*take them by torch.autograd.grad",
    "step_within_no_sync": r"optimizer.step\(\) without run.backward\(loss\) in this iteration",
    "no_sync_on_one_worker": r"different",
    "two_steps": r"optimizer.step\(\) a second time for one run.backward\(\)",
    "loops_of_different_length": "different places of the script: .*worker 1 calls run.close",
    "break_on_one_worker": "different places of the script: .*worker 1 calls run.close",
    "break_in_a_pass_on_one_worker": r"different places in the data in iteration 3 .*leave a loop .*\(break\)",
    "two_batches_ahead": "iteration 2 was taken before those of the two iterations before it .* one batch ahead is",
    "ahead_in_a_stream": "iteration 1 was taken before that of iteration 0 was trained, .* not work with a stream or",
    "batches_of_another_thread": r"iteration 0 was taken by another thread than the one that calls run.backward\(\)",
    "evaluate_on_rank_0_only": r"worker 0 calls run.evaluate\(\) after 3 iterations; worker 1 sends the gradients",
    "step_on_one_worker_only": r"different numbers of steps .*worker 0: 4, worker 1: 3",
    "frozen_on_one_worker": r"parameter \S+ is not the same on all workers .*worker 1: not trained",
    "frozen_on_one_worker_before_attach": r"parameter 0.weight is .* in attach\(\) .*worker 1: not trained",
    "frozen_on_one_worker_in_the_last_batch": r"parameter 0.weight is .* in attach\(\) .*worker 1: not trained",
    "frozen_on_one_worker_in_a_batch_left_out": r"parameter 0.weight is .* in iteration 4 .*worker 1: not trained",
    "layer_of_one_worker": r"parameter .* is not the same on all workers in iteration",
    "scale_of_one_worker": "settings of the training differ .*256.*512",
    "infinite_loss": r"the loss of worker \d is not finite in iteration",
    "weight_of_one_worker": r"worker 0 called run.backward\(\) without weight= in iteration 2, others with it",
    "weight_that_is_nan": r"weight= of run.backward\(\) is no number from 0 on in iteration 2 on worker 1; .*tokens",
    "no_units_at_all": r"weight= of run.backward\(\) adds up to 0 over all workers in iteration 2, .*mean over nothing",
    "weight_over_batches": r"after loss.backward\(\) in an earlier batch, whose number of units is not known; call run",
    "sum_of_losses": r'loss of worker 0 in iteration 0 is a sum divided by 32, and .* 24 samples.*reduction="sum"\)',
    "sum_of_values": r"the loss of worker 0 in iteration 0 is a sum divided by 64",
    "sum_divided_by_what_is_right_once": r"the loss of worker \d in iteration 5 is a sum divided by (24|8), and",
    "weights_of_classes": r"mean over the weights of classes; call .*weight=class_weights\[targets\].sum\(\)\)",
    "ignored_targets": r"loss of worker 1 in iteration 0 is a mean without the targets that are -9 .*\(targets != -9\)",
    "mean_given_as_sum": r"the loss of worker 0 in iteration 0 has a mean in it",
    "reduction_of_one_worker": r'different places .*worker 1 sends the gradients with reduction="sum" of iteration 0',
    "reduction_of_some_sums": r"reduction='mean'\) in iteration 6 after loss.backward\(\), whose .* weighted for sums",
    "added_to_the_sum_before": r"reduction='sum'\) in iteration 2 after loss.backward\(\), whose gradients are added",
    "perturbed_weights": "the weights differ between workers before the step of iteration .*2.weight of worker 1",
    "learning_rate_of_one_worker": r"settings of the training differ .*worker 0: lr \S+ .*worker 1: lr",
    "ema_decay_of_one_worker": r"settings of the training differ .*worker 0: .*ema_decay 0.9\b.*worker 1: .*0.99\b",
    "averaged_on_one_worker": r"worker 0 calls run.evaluate\(averaged=True\) .*worker 1 calls run.evaluate\(\)",
    "gather_on_one_worker": r"worker 0 sends the gradients of iteration 3; worker 1 calls run.gather\(\) of rows of sh",
    "first_gather_on_one_worker": r"worker 0 calls run.gather\(\) of rows of .* with a gradient after 3 .* 1 sends",
    "gathers_in_another_order": r"run.gather\(\) of rows of shape \[\], int64 after 2 .* shape \[\], int32 after 2",
    "one_more_gather_at_the_end": r"worker 0 calls run.close\(\).* worker 1 calls run.gather\(\) of rows of shape \[\]",
    "own_anchors_against_all": r"losses of iteration 0 depend in different ways on the rows .*compute the same loss",
    "dropout_behind_gather": r"losses of iteration 0 depend in different ways on the rows .*what is random in it",
    "gather_and_sum": r"run.backward\(loss, reduction='sum'\) in iteration 0 after run.gather\(\): .*call run",
    "gather_and_weight": r"run.backward\(loss, weight=...\) in iteration 0 after run.gather\(\): .*call run",
    "penalty_on_gathered_gradients": r"torch.autograd.grad\(\) through run.gather\(\): .* leave the gathered rows out",
    "gather_after_the_loop": r"run.gather\(\) of rows with a gradient belongs inside .*under torch.no_grad\(\)",
    "mean_on_rank_0_only": r"worker 0 calls run.mean\(\) of 'value' after 2 iterations; worker 1 sends the gradients",
    "mean_of_other_names": r"worker 0 calls run.mean\(\) of 'accuracy' after 1 .*worker 1 calls run.mean\(\) of 'loss'",
    "mean_with_a_negative_weight": r"worker 1 calls run.mean\(\) got weight=-1.0, expected a number from 0 on",
    "mean_over_nothing": r"run.mean\(\) got weight=0 on every worker",
    "before_all_on_one_worker": r"worker 1 in before_all\(\), worker 0 in attach\(\); call before_all\(\) on every",
    "before_all_after_attach": r"before_all\(\) after attach\(\); call it before",
    "shards_differ": "data set",
    "other_samples": "data set",
    "sampler_without_a_seed": "sampler has drawn another order on some workers .*seed its generator alike",
    "loader_of_a_part": "sampler has drawn another order on some workers .*leave it to the hook",
    "distributed_sampler": "leave the DistributedSampler out, and say shuffle=True",
    "stream_of_a_part": "the stream of worker 1 gives other samples than that of worker 0.*dynamix.shards",
    "shards_of_a_part": "the data sets of the workers differ",
    "evaluation_over_other_shards": r"worker 0 calls run.evaluate\(\) over 8 shards .*worker 1 calls .* over 7 shards",
}
CHANGED_BY_THE_SCRIPT = {"perturbed_weights", "layer_of_one_worker"}


@pytest.mark.parametrize("name", CASES)
def test_all_workers_stop_with_one_error(name: str, server: ForkServer, tmp_path: Path) -> None:
    workers = server.run("tests.cases.harness:refuse", f"refused.{name}", tmp_path, limit_s=30)
    errors = [[line for line in worker.output.splitlines() if line.startswith("error: ")] for worker in workers]
    for worker in workers:
        assert worker.code == TrainingError.exit_code, worker.output
        assert "it went on" not in worker.output
    assert len(errors[0]) == 1 and errors[0] == errors[1]
    assert re.search(CASES[name], errors[0][0]), errors[0][0]
    if name not in CHANGED_BY_THE_SCRIPT:
        assert all("weights unchanged" in worker.output for worker in workers)


def test_what_fails_before_all_stops_all(server: ForkServer, tmp_path: Path) -> None:
    first, second = server.run("tests.cases.harness:refuse", "refused.before_all_that_fails", tmp_path, limit_s=30)
    assert first.code and "error: no room left for /data" in first.output
    said = r"error: worker 0 has failed in before_all\(\) with .*prepare: TrainingError: no room left for /data"
    assert second.code == TrainingError.exit_code and re.search(said, second.output), second.output


def test_lengths_that_differ_between_workers_are_refused(server: ForkServer, tmp_path: Path) -> None:
    batch = {"unit": "tokens", "min": 1}
    for worker in server.run("tests.cases.harness:refuse", "refused.lengths_of_one_worker", tmp_path, batch=batch):
        assert worker.code == TrainingError.exit_code, worker.output
        assert "error: lengths= of attach() differs between workers" in worker.output
        assert "it went on" not in worker.output


def own_sizes(**numbers: float) -> dict[str, Any]:
    return {"mode": "adapt", "policy": {"name": "stigmergy", "stigmergy": numbers}}


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        ({"window": 20}, {"window": 10}, "window: 20 on worker 0, 10 on worker 1; start all workers with the same"),
        ({}, {"bucket_bytes": 4000}, "bucket_bytes: 4000000 on worker 0, 4000 on worker 1"),
        (own_sizes(), own_sizes(evaporation=0.25), "policy.stigmergy.evaporation: 0.5 on worker 0, 0.25 on worker 1"),
        (own_sizes(), {"mode": "adapt"}, "policy.name: stigmergy on worker 0, another one on worker 1"),
    ],
)
def test_cluster_files_that_differ_are_refused(
    ours: dict[str, Any], theirs: dict[str, Any], said: str, server: ForkServer, tmp_path: Path
) -> None:
    (tmp_path / "theirs").mkdir()
    own = {}, {"DYNAMIX_CONFIG": str(write_cluster_file(tmp_path / "theirs", (24, 8), **theirs))}
    for worker in server.run("tests.cases.harness:refuse", "refused.nothing", tmp_path, limit_s=30, own=own, **ours):
        assert worker.code == TrainingError.exit_code, worker.output
        assert f"error: the cluster files of the workers differ in {said}" in worker.output
        assert "it went on" not in worker.output


def test_a_difference_is_found_within_fifty_iterations(server: ForkServer, tmp_path: Path) -> None:
    """Iteration 10 is the one before which a worker has changed a weight."""
    worker = server.run("tests.cases.harness:refuse", "refused.perturbed_weights", tmp_path, limit_s=30)[0]
    found = re.search(r"before the step of iteration (\d+)", worker.output)
    assert found and 10 <= int(found[1]) <= 60, worker.output
