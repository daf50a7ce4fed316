"""`dynamix replay`: another policy sees the recorded windows, and its answers appear beside the run's own."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from dynamix_ps.cli.main import cli
from dynamix_ps.cli.replay import with_policy
from dynamix_ps.config.load import dump_config
from dynamix_ps.config.schema import Cluster, Elastic, WorkerSection
from dynamix_ps.errors import PolicyError, UsageError
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.learned.spaces import fresh_networks, policy_spec
from dynamix_ps.policy.ppo.policy_file import StoredPolicy, save_policy
from dynamix_ps.policy.ppo.settings import PpoSettings
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.sim.recorded import read_run
from dynamix_ps.sim.replay import replay
from tests.unit.simulated_run import simulated_run
from tests.unit.synthetic_run import START_S, append, config, new_folder, plan, started, whole_run, window


class Fixed:
    name = "fixed"

    def __init__(self, *answers: tuple[int, ...]) -> None:
        self.answers = list(answers)
        self.seen: list[View] = []

    def decide(self, view: View) -> Decision:
        self.seen.append(view)
        return Decision(self.answers[len(self.seen) - 1], note="said so")


def test_the_policy_sees_every_window_and_its_answers_keep_to_the_bounds() -> None:
    run = simulated_run("run", (128, 128, 128), windows=3)
    policy = Fixed((200, 100, 84), (4, 100, 9999), (128, 128, 128))
    answers = list(replay(run, policy))
    assert [view.window for view in policy.seen] == [0, 1, 2]
    assert [answer.other for answer in answers] == [(200, 100, 84), (16, 100, 512), (128, 128, 128)]
    assert {answer.before for answer in answers} == {answer.recorded for answer in answers} == {(128, 128, 128)}
    assert answers[0].note == "said so"


def test_proportional_would_move_samples_to_the_fast_worker() -> None:
    run = simulated_run("run", (128, 128, 128), windows=6)
    policy = make_policy(with_policy(run.config, "proportional"), 3, np.random.default_rng(0))
    fast, middle, slow = list(replay(run, policy))[-1].other
    assert fast > middle > slow
    assert fast + middle + slow == 384


def test_a_policy_of_another_name_drops_the_sizes_of_static() -> None:
    static = config().model_copy(
        update={"policy": config().policy.model_copy(update={"name": "static", "sizes": (40, 50, 60)})}
    )
    assert with_policy(static, "proportional").policy.sizes is None
    assert with_policy(static, "static").policy.sizes == (40, 50, 60)


@pytest.mark.parametrize("kind", ["structured", "paper"])
def test_a_policy_file_decides_in_its_own_space_and_does_not_learn(tmp_path: Path, kind: str) -> None:
    file, rng = tmp_path / "mine.npz", np.random.default_rng(0)
    spec = policy_spec(kind, 8)
    networks = fresh_networks(spec, PpoSettings(hidden=8), rng)
    save_policy(file, StoredPolicy({name: one.weights for name, one in networks.items()}, spec, {}))
    run = simulated_run("run", (128, 128, 128), windows=4)
    chosen = with_policy(run.config, str(file))
    assert (chosen.policy.ppo.space, chosen.policy.ppo.learn) == (kind, False)
    answers = list(replay(run, make_policy(chosen, 3, rng)))
    assert all(16 <= size <= 512 for answer in answers for size in answer.other)


def test_a_policy_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=r"none\.npz"):
        with_policy(config(), str(tmp_path / "none.npz"))


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(
        UsageError, match=r"must be one of static, proportional.*package\.module:Class, or a policy file.*got 'best'"
    ):
        with_policy(config(), "best")


def test_a_record_that_came_after_the_decision_is_not_part_of_it(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.config_file.write_text(dump_config(config()))
    for rank in range(3):
        append(folder.worker_file(rank), started(rank), window(rank, 0), window(rank, 1))
    append(folder.journal_file, plan(1, [64, 64, 64], reported=[0, 2]), plan(2, [64, 64, 64]))
    first, before_it_was_written_down = (one.view.records for one in read_run(folder.path).decided)
    assert [record is not None for record in first] == [True, False, True]
    assert None not in before_it_was_written_down


def test_places_are_empty_until_somebody_has_come_and_after_one_is_lost(tmp_path: Path) -> None:
    """The policy sees the plan that the arbitrator made when one came, or was lost, and nobody else there."""
    workers = (*(WorkerSection(batch=64),) * 2, *(WorkerSection(batch=64, later=True),) * 2)
    elastic = {"cluster": Cluster(workers=workers), "elastic": Elastic(min_workers=1)}
    folder = new_folder(tmp_path)
    folder.config_file.write_text(dump_config(config().model_copy(update=elastic)))
    for rank in range(3):
        first = started(rank) if rank < 2 else started(rank, 43, time_s=START_S + 2.5)
        versions = {0: 0, 1: 0, 2: 4, 3: 5}  # by window
        told = [window(rank, number, plan_version=versions[number]) for number in range(2 if rank == 2 else 0, 4)]
        append(folder.worker_file(rank), first, *told)
    kept = [plan(version, sizes, kind="kept", window=number, time_s=START_S + 1.05 + number)
            for number, version, sizes in ((0, 0, [64, 64, 0, 0]), (1, 0, [64, 64, 0, 0]))]  # fmt: skip
    adopted = {"kind": "adopted", "time_s": START_S + 2.5, "version": 4, "batch_sizes": [43, 43, 42, 0]}
    decided = plan(5, [40, 48, 40, 0], window=2, time_s=START_S + 3.05)
    gone = {"kind": "adopted", "time_s": START_S + 4.0, "version": 6, "batch_sizes": [0, 70, 58, 0]}
    last = plan(6, [0, 70, 58, 0], kind="kept", window=3, time_s=START_S + 4.05, reported=[1, 2])
    append(folder.journal_file, *kept, adopted, decided, gone, last)
    views = [one.view for one in read_run(folder.path).decided]
    assert [view.plan.batch_sizes for view in views] == [
        (64, 64, 0, 0), (64, 64, 0, 0), (43, 43, 42, 0), (0, 70, 58, 0)
    ]  # fmt: skip
    assert [view.plan.version for view in views] == [0, 0, 4, 6]
    assert [view.clean for view in views] == [True, True, True, False]
    assert [[high > 0 for _, high in view.bounds] for view in views] == [
        [view.window < 3, True, view.window >= 2, False] for view in views
    ]
    done = CliRunner().invoke(cli, ["replay", str(folder.path), "--policy", "proportional"])
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(("comm", "ring"), [("byteps", False), ("gloo", True)])
def test_a_run_read_back_tells_whether_gradients_went_around_a_ring(tmp_path: Path, comm: str, ring: bool) -> None:
    folder = new_folder(tmp_path)
    folder.config_file.write_text(dump_config(config().model_copy(update={"comm": comm})))
    whole_run(folder, windows=3)
    assert [one.view.ring for one in read_run(folder.path).decided] == [ring] * 3


def test_the_command_prints_and_writes_every_window(tmp_path: Path) -> None:
    folder = new_folder(tmp_path)
    folder.config_file.write_text(dump_config(config()))
    whole_run(folder, windows=8)
    out = tmp_path / "sizes.csv"
    done = CliRunner().invoke(cli, ["replay", str(folder.path), "--policy", "static", "--csv", str(out)])
    assert done.exit_code == 0, done.output
    rows = list(csv.DictReader(out.open()))
    assert [int(row["window"]) for row in rows] == list(range(8))
    run = read_run(folder.path)
    assert [tuple(int(row[f"recorded_{rank}"]) for rank in range(3)) for row in rows] == [
        one.batch_sizes for one in run.decided
    ]
    assert all(row["other_0"] == "64" for row in rows)
    assert "static differs in 8 of 8 windows" in done.output
