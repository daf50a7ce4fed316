"""What a lost worker costs: the jobs that are compared, and the table."""

from __future__ import annotations

from pathlib import Path

from benchmarks.studies.stigmergy_loss import CONTENDERS, config_of, table
from dynamix_ps.config.load import dump_config, load_config


def test_both_jobs_are_valid_and_differ_in_policy_and_membership_alone(tmp_path: Path) -> None:
    found = []
    for contender in CONTENDERS:
        file = tmp_path / f"{contender}.yaml"
        file.write_text(dump_config(config_of(contender, tmp_path)))
        found.append(load_config(file))
    ends, goes_on = found
    assert ends.is_decentralised and not goes_on.is_decentralised
    assert (ends.elastic.min_workers, goes_on.elastic.min_workers) == (None, 2)
    same = {"policy": ends.policy, "elastic": ends.elastic}
    assert goes_on.model_copy(update=same) == ends


def test_the_table_has_medians_and_what_an_elastic_job_does_not_do_is_empty() -> None:
    def row(contender: str, factor: float, repeated: int = 0) -> dict[str, object]:
        times = {
            name: factor * value
            for name, value in zip(("ending_s", "starting_s", "repeating_s"), (1, 2, 3), strict=True)
        }
        return {"contender": contender, **times, "together_s": 6 * factor, "repeated": repeated}

    rows = [row("stigmergy", factor, 31) for factor in (1.0, 2.0, 9.0)] + [row("ppo", 0.05)]
    assert table(rows).splitlines()[2:] == [
        "| stigmergy | 2.0 s | 4.0 s | 6.0 s | 12.0 s (6.0 to 54.0) | 31 |",
        "| ppo, elastic |  |  |  | 0.3 s (0.3 to 0.3) | 0 |",
    ]
