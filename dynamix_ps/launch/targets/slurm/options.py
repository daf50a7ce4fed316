"""The options of Slurm's sbatch, from 22.05 to 25.05, and which words of a command line are none. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from dynamix_ps.errors import UsageError


def _long(names: str) -> tuple[str, ...]:
    return tuple(f"--{name}" for name in names.split())


_WITH_VALUE = _long("""
    account acctg-freq array batch bb bbf begin chdir cluster-constraint clusters comment constraint container
    container-id core-spec cores-per-socket cpu-freq cpus-per-gpu cpus-per-task deadline delay-boot dependency
    distribution error exclude export export-file extra extra-node-info gid gpu-bind gpu-freq gpus gpus-per-node
    gpus-per-socket gpus-per-task gres gres-flags hint input job-name kill-on-invalid-dep licenses mail-type mail-user
    mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus network nodefile nodelist nodes ntasks ntasks-per-core
    ntasks-per-gpu ntasks-per-node ntasks-per-socket open-mode output partition power prefer priority profile qos
    reservation segment signal sockets-per-node switches tasks-per-node thread-spec threads-per-core time time-min tmp
    tres-bind tres-per-task uid wait-all-nodes wckey
""")
_FLAGS = _long("""
    consolidate-segments contiguous exclusive get-user-env hold ignore-pbs nice no-kill no-requeue oom-kill-step
    overcommit oversubscribe parsable propagate quiet reboot requeue resv-ports spread-job spread-segments stepmgr
    test-only use-min-nodes verbose wait
""")  # a value stands behind "=", if they have one
_LETTERS_WITH_VALUE = tuple(f"-{letter}" for letter in "AabDMCScdmexBGiJLFwNnopqt")
_LETTER_FLAGS = tuple(f"-{letter}" for letter in "HkOQsvW")
LONG_NAMES = (*_WITH_VALUE, *_FLAGS)
_KNOWN = {*LONG_NAMES, *_LETTERS_WITH_VALUE, *_LETTER_FLAGS}


def unknown_options(words: Iterable[str]) -> Iterator[str]:
    """The names of options that sbatch itself does not have; a plugin of Slurm may add them.

    A long name with one dash is no option: sbatch takes its first letter for the option.
    """
    for word in words:
        name = _name(word)
        if word.startswith("-") and (name not in _KNOWN or f"-{_before_equals(word)}" in LONG_NAMES):
            yield _before_equals(word)


def by_option(words: Sequence[str]) -> list[list[str]]:
    """Each option, with its value if the value is a word of its own.

    Raises UsageError: a word is neither an option nor the value of one.
    """
    lines: list[list[str]] = []
    for word in words:
        if word.startswith("-"):
            lines.append([word])
        elif lines and len(lines[-1]) == 1 and _waits_for_value(lines[-1][0]):
            lines[-1].append(word)
        else:
            raise UsageError(f"{word!r} is no option of sbatch; the command of the workers stands behind `--`")
    return lines


def _waits_for_value(word: str) -> bool:
    """Whether the next word may be the value of this option."""
    name = _name(word)
    return word == name and name not in (*_FLAGS, *_LETTER_FLAGS)


def _name(word: str) -> str:
    """`--nodes` of `--nodes=2`, `-N` of `-N2`."""
    return _before_equals(word) if word.startswith("--") else word[:2]


def _before_equals(word: str) -> str:
    return word.partition("=")[0]
