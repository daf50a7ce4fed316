"""Standard streams that a parent has closed (`>&-`). Standard library only."""

from __future__ import annotations

import os
import sys


def open_standard_streams() -> None:
    """Open closed standard streams (`>&-`) to nowhere: the next file that is opened would get their descriptor."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            mode = "r" if number == 0 else "w"
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  stays open
