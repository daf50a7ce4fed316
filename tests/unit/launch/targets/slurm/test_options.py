"""Which options Slurm's sbatch has, and which words are their values."""

from __future__ import annotations

import pytest

from dynamix_ps.launch.targets.slurm.options import by_option, unknown_options

KNOWN = (
    "-N2 -N 2 --nodes=2 --nodes 2 -pgpu -p gpu --gres=gpu:2 --gpus-per-node=4 --mem 8G --mem-per-cpu=1G -t 1:00:00 "
    "--time=1-0 -A acc --qos=high -C a|b --exclusive --exclusive=user --hold -H -vv --nice=-5 --nice --array=0-3 "
    "-w n[1-2] -x n3 -o %j.out -e %j.err --mail-type=END --mail-user=a@b -d afterok:1 --reservation=r "
    "--signal=B:USR1@9 --export=ALL --ntasks-per-node=2 --tasks-per-node=2 --cpus-per-task=4 --threads-per-core=1 "
    "--segment=4 : -J name"
)


def test_what_slurm_users_write_is_known() -> None:
    assert list(unknown_options(KNOWN.split())) == []
    assert [words[0] for words in by_option([word for word in KNOWN.split() if word != ":"]) if len(words) == 2] == [
        *("-N", "--nodes", "-p", "--mem", "-t", "-A", "-C", "-w", "-x", "-o", "-e", "-d", "-J")
    ]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("--node=2 --nodes=2", ["--node"]),
        ("--policies ppo", ["--policies"]),
        ("-time=5 -mem 3", ["-time", "-mem"]),
        ("-Z -5", ["-Z", "-5"]),
    ],
)
def test_what_sbatch_does_not_have_is_named(words: str, names: list[str]) -> None:
    assert list(unknown_options(words.split())) == names
