"""The processes of a race: what their records tell, and why a script is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dynamix_ps.config.schema import Config
from dynamix_ps.errors import DIVERGED, JobFailed, UsageError
from dynamix_ps.rehearsal.rate_race import FRACTION, JUDGED, TRAINED
from dynamix_ps.rehearsal.rate_runs import RateRuns, race_config

# Writes what the record of a trial has; its loss is least at the rate 4 times the script's.
SCRIPT = f"""
import json, os, pathlib, sys
way, factor = sys.argv[1], float(os.environ["DYNAMIX_RATE_TRIAL"])
if way == "crashes" and factor > 1:
    sys.exit("no data")
loss = abs(factor - 4)
lines = [{{"kind": "rate_trial", "iteration": 0, "rate": 0.1}}]
for number in range(1, {TRAINED} + 1 + {JUDGED}):
    if number == {TRAINED}:
        rate = 0.01 if way == "decays" else 0.1
        lines.append({{"kind": "rate_trial", "iteration": number, "rate": rate}})
    judged = number > {TRAINED}
    line = {{"kind": "window", "first_iteration": number, "epoch": number * (0.1 if way == "small" else 0.01)}}
    lines.append({{**line, "global_loss": loss if judged else 9.0 - factor}})
if way == "short":
    lines = lines[:9]
if way == "breaks" and factor > 1:
    lines = [*lines[:5], {{"kind": "failed", "error": "the loss {DIVERGED} 5"}}]
file = pathlib.Path(os.environ["DYNAMIX_RUN_DIR"]) / "workers" / "worker-0.jsonl"
file.write_text("".join(json.dumps(line) + "\\n" for line in lines))
"""


def runs(within: Path, way: str) -> RateRuns:
    script = within / "train.py"
    script.write_text(SCRIPT)
    config = Config.model_validate({"cluster": {"workers": ({}, {})}, "command": (sys.executable, str(script), way)})
    return RateRuns(within / "race", race_config(config, seed=3))


@pytest.mark.timeout(60)
def test_the_losses_of_averaged_weights_count(tmp_path: Path) -> None:
    race, rate = runs(tmp_path, "trains").run(jobs=3)
    assert race.losses == {-2: 3.75, 0: 3.0, 2: 0.0, 4: 12.0} and rate == 0.1


@pytest.mark.timeout(60)
def test_a_rate_that_breaks_is_one_that_does_not_win(tmp_path: Path) -> None:
    race, _ = runs(tmp_path, "breaks").run(jobs=3)
    assert race.losses == {-2: 3.75, 0: 3.0, 2: float("inf")}


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("way", "error", "told"),
    [
        (
            "short",
            UsageError,
            f"the script ends after 9 iterations .*needs {TRAINED + JUDGED + 3}: train for more epochs",
        ),
        ("decays", UsageError, "changes its own learning rate from 0.1 to 0.01 .*race without warm-up"),
        ("small", UsageError, r"29 batches .* that come once, got 2.8 passes"),
        ("crashes", JobFailed, "(?s)a run of the race failed, exit code 1; the end of .*no data"),
    ],
)
def test_what_cannot_be_judged_is_refused(tmp_path: Path, way: str, error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        runs(tmp_path, way).run(jobs=3)


def test_a_race_has_a_part_of_the_batch_and_no_rule_for_the_rate() -> None:
    first = {
        "cluster": {"workers": ({"batch": 96, "min": 64}, {"batch": 31, "min": 31})},
        "lr": "guard",
        "lr_rule": "sqrt",
        "policy": {"name": "ppo"},
        "elastic": {"min_workers": 1},
    }
    config = race_config(Config.model_validate(first), seed=3)
    assert config.initial_sizes() == (23, 8) and sum((23, 8)) == 127 // FRACTION
    assert [config.bounds(rank)[0] for rank in (0, 1)] == [0, 0]
    assert (config.lr, config.lr_rule, config.policy.name, config.window) == ("follow", "none", "static", 1)
    assert config.elastic.min_workers is None and config.seed == 3
