"""A command that is tied to its parent runs as it would without."""

from __future__ import annotations

import subprocess

import pytest

from dynamix_ps.launch.host.parent import tied


def test_a_tied_command_ignores_the_same_signals() -> None:
    command = ["grep", "SigIgn", "/proc/self/status"]
    plain, found = (subprocess.run(argv, capture_output=True, check=True).stdout for argv in (command, tied(command)))
    assert found == plain


def test_a_command_that_is_not_there_is_an_error_of_the_caller() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-command"):
        tied(["no-such-command"])
