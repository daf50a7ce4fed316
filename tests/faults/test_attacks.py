"""Every row of the table of attacks is run by a test."""

from __future__ import annotations

import subprocess
import sys

from tests.faults.attacks import ATTACKS, TESTS, attacks_at
from tests.launching import ROOT


def test_every_attack_has_its_test() -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *set(TESTS.values())]
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=True).stdout
    ids = collected.splitlines()
    for attack in ATTACKS:
        found = [one for one in ids if one.startswith(f"{TESTS[attack.at]}::") and one.endswith(f"[{attack.key}]")]
        assert found, f"no test of {TESTS[attack.at]} has the id {attack.key}"


def test_keys_are_unique_and_every_place_has_attacks() -> None:
    assert len({attack.key for attack in ATTACKS}) == len(ATTACKS)
    assert all(attacks_at(place) for place in TESTS)
