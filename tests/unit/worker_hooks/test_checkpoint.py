"""Checkpoint files: whole and unchanged or refused, the newest three kept, every field of the position checked."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dynamix_ps.errors import CheckpointError
from dynamix_ps.messages import Plan
from worker_hooks.sampling.sampler import Cursor
from worker_hooks.sampling.shard_list import Piece
from worker_hooks.saved import checkpoint
from worker_hooks.saved.checkpoint import (
    Position,
    ShardsLeft,
    load_checkpoint,
    newest_valid_checkpoint,
    older_checkpoints,
    save_checkpoint,
)

POSITION = Position(
    12,
    Cursor(1, 30),
    Plan(3, (8, 0)),
    5,
    100,
    (2.0, 1.0),
    0.1,
    0.25,
    7,
    {"scheduler": {"step": 12}},
    (9.5, 4),
    "tokens",
    ShardsLeft(9, 4_294_967_295, (Piece(3, 17), Piece(8))),
    0.25,
    128,
    64,
    (0, 1),
    70,
)


def packed_with(place: str, value: object) -> dict[str, Any]:
    """The packed POSITION with one changed field; `place` is `name` or `name.name`."""
    packed = POSITION.pack()
    table, names = packed, place.split(".")
    for name in names[:-1]:
        table = table[name]
    table[names[-1]] = value
    return packed


def test_a_position_comes_back() -> None:
    assert Position.unpack(POSITION.pack()) == POSITION


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("iteration", -1, "position.iteration: got -1, expected a whole number from 0"),
        ("iteration", True, "position.iteration: got True, expected a whole number"),
        ("iteration", "12", "position.iteration: got '12', expected a whole number"),
        ("cursor", 3, "position.cursor: got 3, expected a dict with epoch, position"),
        ("cursor.position", 100, "position.cursor.position: got 100, expected a whole number from 0 to 99"),
        ("plan.batch_sizes", [8, -1], r"position.plan.batch_sizes\[1\]: got -1"),
        ("plan.batch_sizes", [0, 0], r"position.plan.batch_sizes: got \[0, 0\], expected at least one sample"),
        ("plan.batch_sizes", 8, "position.plan.batch_sizes: got 8, expected a list"),
        ("plan.version", 2**24, "position.plan.version: got 16777216, expected a whole number from 0 to 16777215"),
        ("lr_guard", 2.0, "position.lr_guard: got 2.0, expected a number from 0.125 to 1"),
        ("plan.colour", 1, "position.plan: has the unknown field 'colour'"),
        ("seed", 1.5, "position.seed: got 1.5"),
        ("epoch_samples", -1, "position.epoch_samples: got -1, expected a whole number from 0"),
        ("noise", [1.0], "position.noise: got 1 values, expected 2"),
        ("noise", [1.0, float("nan")], r"position.noise\[1\]: got nan, expected a number"),
        ("largest_lr", -0.1, "position.largest_lr: got -0.1, expected a number from 0"),
        ("progress", 1.5, "position.progress: got 1.5, expected a number from 0 to 1"),
        ("unit", "words", "position.unit: got 'words', expected one of samples, tokens, padded_tokens"),
        ("units", [1.0, 2.5], r"position.units\[1\]: got 2.5, expected a whole number"),
        ("left.shards", 3, r"position.left.pieces\[0\]\[0\]: got 3, expected a whole number from 0 to 2"),
        ("left.code", "x", "position.left.code: got 'x', expected a whole number from 0"),
        ("left.pieces", [[1, -1]], r"position.left.pieces\[0\]\[1\]: got -1"),
        ("left.pieces", [[1]], r"position.left.pieces\[0\]: got 1 values, expected 2"),
        ("reference_batch", -1, "position.reference_batch: got -1, expected a whole number from 0"),
        ("pass_batch", 0.5, "position.pass_batch: got 0.5, expected a whole number from 0"),
        ("epochs_begun", [0, 2, 1], r"position.epochs_begun\[2\]: got 1, expected a whole number from 2"),
        ("not_trained", -1, "position.not_trained: got -1, expected a whole number from 0"),
        ("registered", [1], "position.registered: expected a dict"),
    ],
)
def test_a_wrong_field_is_named(place: str, value: object, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Position.unpack(packed_with(place, value))


def test_a_missing_field_is_named() -> None:
    packed = POSITION.pack()
    del packed["seed"]
    with pytest.raises(CheckpointError, match="position: has no 'seed', expected iteration, cursor, plan, seed"):
        Position.unpack(packed)


def test_a_position_of_an_earlier_version_has_no_code_of_its_pass_and_no_guard() -> None:
    packed = POSITION.pack()
    del packed["pass_code"], packed["lr_guard"], packed["reference_batch"]
    del packed["epochs_begun"], packed["not_trained"]
    found = Position.unpack(packed)
    assert (found.pass_code, found.lr_guard, found.plan) == (0, 1.0, Plan(3, (8, 0)))
    assert (found.reference_batch, found.pass_batch) == (0, 64)
    assert (found.epochs_begun, found.not_trained) == ((0,), 0)


def test_a_decided_factor_of_an_earlier_version_is_not_used_which_a_warning_tells(
    caplog: pytest.LogCaptureFixture,
) -> None:
    for factor in (1.0, 0.5):
        packed = POSITION.pack()
        packed["plan"]["lr_factor"] = factor
        assert Position.unpack(packed) == POSITION
    (told,) = caplog.messages
    assert told.startswith("the checkpoint was trained with a factor 0.5 on the learning rate")


def test_the_newest_three_are_kept_in_the_run_folder_and_one_elsewhere(tmp_path: Path) -> None:
    for number in range(5):
        save_checkpoint(tmp_path / "last.pt", b"%d" % number, checkpoint.KEPT)
        save_checkpoint(tmp_path / "own.pt", b"%d" % number)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["last.1.pt", "last.2.pt", "last.pt", "own.pt"]
    kept = [tmp_path / "last.pt", *older_checkpoints(tmp_path / "last.pt")]
    assert list(map(load_checkpoint, kept)) == [b"4", b"3", b"2"]
    assert load_checkpoint(tmp_path / "own.pt") == b"4"


def cut_off(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def one_bit_changed(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (Path.unlink, "no such checkpoint"),
        (cut_off, "last.pt: not a complete checkpoint: there is no sha256 line at its end"),
        (one_bit_changed, "last.pt: the content has sha256 .* it is damaged"),
    ],
)
def test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used(tmp_path: Path, harm: Any, message: str) -> None:
    newest, said = tmp_path / "last.pt", list[str]()
    for number in range(3):
        save_checkpoint(newest, b"%d" % number, checkpoint.KEPT)
    assert newest_valid_checkpoint(newest, said.append) == (newest, b"2")
    assert said == []
    harm(newest)
    with pytest.raises(CheckpointError, match=message):
        load_checkpoint(newest)
    assert newest_valid_checkpoint(newest, said.append) == (tmp_path / "last.1.pt", b"1")
    cut_off(tmp_path / "last.1.pt")
    assert newest_valid_checkpoint(newest, said.append) == (tmp_path / "last.2.pt", b"0")
    assert said[1].endswith(f"; training goes on from the one before it, {tmp_path / 'last.2.pt'}")
    one_bit_changed(tmp_path / "last.2.pt")
    with pytest.raises(CheckpointError, match=message):
        newest_valid_checkpoint(newest, said.append)


def test_a_save_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "last.pt"
    save_checkpoint(target, b"old", checkpoint.KEPT)

    def torn(handle: int) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint.os, "fsync", torn)
    with pytest.raises(OSError, match="disk full"):
        save_checkpoint(target, b"new", checkpoint.KEPT)
    assert load_checkpoint(target) == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["last.pt"]


def test_what_a_save_that_was_killed_has_left_goes_with_the_next_one(tmp_path: Path) -> None:
    killed = "import os, sys, worker_hooks.saved.checkpoint as c; c._take = lambda out: os._exit(9)\n"
    killed += "c.save_checkpoint(c.Path(sys.argv[1]), b'new')"
    path = tmp_path / "last.pt"
    done = subprocess.run([sys.executable, "-c", killed, str(path)], timeout=60, check=False)
    assert done.returncode == 9
    (tmp_path / ".other.pt.abc.partial").write_text("of another checkpoint")
    assert len(list(tmp_path.glob(".last.pt.*.partial"))) == 1
    save_checkpoint(path, b"next")
    assert sorted(file.name for file in tmp_path.iterdir()) == [".other.pt.abc.partial", "last.pt"]


def test_what_another_process_is_writing_stays(tmp_path: Path) -> None:
    written = tmp_path / ".last.pt.abc.partial"
    with written.open("wb") as out:
        fcntl.flock(out, fcntl.LOCK_EX)
        save_checkpoint(tmp_path / "last.pt", b"state")
        assert written.exists()
    save_checkpoint(tmp_path / "last.pt", b"state")
    assert not written.exists()


def test_the_frameworks_read_a_file_with_its_checksum_as_it_is(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "x")
    save_checkpoint(tmp_path / "x.pt", (tmp_path / "x").read_bytes())
    assert torch.load(tmp_path / "x.pt")["a"].tolist() == [1.0, 1.0, 1.0]
    np.savez(tmp_path / "y", a=np.ones(3))
    save_checkpoint(tmp_path / "y.npz", (tmp_path / "y.npz").read_bytes())
    assert np.load(tmp_path / "y.npz")["a"].tolist() == [1.0, 1.0, 1.0]
