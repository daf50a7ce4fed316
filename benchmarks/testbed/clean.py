"""Removes test beds whose owner ended without removing them (kill -9).

    python -m benchmarks.testbed.clean

A new bed does the same before it comes up.
"""

from __future__ import annotations

import sys

from benchmarks.testbed.commands import BedError
from benchmarks.testbed.removal import remove_left_over


def main() -> None:
    try:
        gone = remove_left_over()
    except BedError as error:
        sys.exit(f"error: {error}")
    print("\n".join(f"removed {bed}" for bed in gone) or "no leftover test bed found")


if __name__ == "__main__":
    main()
