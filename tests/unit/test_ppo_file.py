from __future__ import annotations

import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dynamix_ps.config import Ppo
from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.features import NAMES
from dynamix_ps.policy.ppo import policy_file
from dynamix_ps.policy.ppo.adam import AdamState, adam_step
from dynamix_ps.policy.ppo.agent import ACTIONS, make_ppo
from dynamix_ps.policy.ppo.network import initialise
from dynamix_ps.policy.ppo.normalise import Normaliser
from dynamix_ps.policy.ppo.policy_file import Spaces, StoredPolicy, load_policy, save_policy

SPACES = Spaces(("a", "b"), (-1, 0, 1), 8)


def stored() -> StoredPolicy:
    rng = np.random.default_rng(4)
    params = initialise(4, 8, 3, rng)
    gradients = {name: rng.standard_normal(value.shape).astype(np.float32) for name, value in params.items()}
    params, adam = adam_step(params, gradients, AdamState.zero(params), 1e-3)
    normaliser = Normaliser.empty(2).updated(rng.standard_normal((9, 2)))
    return StoredPolicy(params, adam, normaliser, SPACES, {"origin": "test", "updates": 7})


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    save_policy(tmp_path / "policy.npz", stored())
    return tmp_path / "policy.npz"


def rewrite(file: Path, change: dict[str, np.ndarray], rehash: bool = True) -> None:
    with np.load(file) as loaded:
        arrays = {name: loaded[name] for name in loaded.files} | change
    if rehash:
        arrays["sha256"] = np.array(policy_file._digest(arrays))
    np.savez(file, **arrays)


def about(file: Path, **change: object) -> dict[str, np.ndarray]:
    with np.load(file) as loaded:
        text = json.loads(str(loaded["about"])) | change
    return {"about": np.array(json.dumps(text))}


def test_round_trip_keeps_every_bit(saved: Path) -> None:
    before, after = stored(), load_policy(saved, SPACES)
    for name, value in before.params.items():
        assert after.params[name].tobytes() == value.tobytes()
        assert after.params[name].dtype == np.float32
        assert after.adam.mean[name].tobytes() == before.adam.mean[name].tobytes()
        assert after.adam.square[name].tobytes() == before.adam.square[name].tobytes()
    assert after.adam.step == 1
    for part in ("count", "mean", "spread"):
        np.testing.assert_array_equal(getattr(after.normaliser, part), getattr(before.normaliser, part))
    assert after.provenance == {"origin": "test", "updates": 7}


def test_nothing_else_is_left_in_the_folder(saved: Path) -> None:
    save_policy(saved, stored())
    assert [path.name for path in saved.parent.iterdir()] == ["policy.npz"]


def test_a_failed_save_keeps_the_old_file(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()

    def fail(_descriptor: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(policy_file.os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        save_policy(saved, stored())
    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == ["policy.npz"]


def test_missing(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(tmp_path / "none.npz", SPACES)
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(tmp_path, SPACES)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated(saved: Path, part: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(PolicyError, match="cut off"):
        load_policy(saved, SPACES)


def test_any_flipped_byte_of_the_arrays_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for position in range(200, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        saved.write_bytes(bytes(damaged))
        try:
            found = load_policy(saved, SPACES)
        except PolicyError:
            continue
        np.testing.assert_array_equal(found.params["actor.0.weight"], stored().params["actor.0.weight"])


def test_damaged_with_valid_archive(saved: Path) -> None:
    rewrite(saved, {"normaliser/mean": np.array([9.0, 9.0])}, rehash=False)
    with pytest.raises(PolicyError, match=r"expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}"):
        load_policy(saved, SPACES)


def test_pickled_payload_is_refused_unread(saved: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "pwned",))  # type: ignore[return-value]

    saved.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPACES)
    np.savez(saved, about=np.array([Bomb()], dtype=object))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPACES)
    assert not (tmp_path / "pwned").exists()


def test_foreign_archives(saved: Path) -> None:
    np.savez(saved, weights=np.zeros(3))
    with pytest.raises(PolicyError, match="no description"):
        load_policy(saved, SPACES)
    with saved.open("wb") as out:
        np.save(out, np.zeros(3))
    with pytest.raises(PolicyError, match="single array"):
        load_policy(saved, SPACES)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("readme.txt", "hello")
    saved.write_bytes(content.getvalue())
    with pytest.raises(PolicyError, match=r"no description|not a policy file"):
        load_policy(saved, SPACES)


def test_other_version_or_spaces(saved: Path) -> None:
    rewrite(saved, about(saved, version=9))
    with pytest.raises(PolicyError, match="found dynamix-ppo version 9, expected dynamix-ppo version 1"):
        load_policy(saved, SPACES)
    save_policy(saved, stored())
    with pytest.raises(PolicyError, match=r"hidden: found 8, expected 16"):
        load_policy(saved, Spaces(SPACES.features, SPACES.actions, 16))
    with pytest.raises(PolicyError, match=r"actions: found \[-1, 0, 1\], expected \(0, 1\)"):
        load_policy(saved, Spaces(SPACES.features, (0, 1), 8))


def test_shapes_and_finiteness(saved: Path) -> None:
    rewrite(saved, {"params/actor.0.weight": np.zeros((2, 2), np.float32)})
    with pytest.raises(PolicyError, match="do not fit"):
        load_policy(saved, SPACES)
    save_policy(saved, stored())
    rewrite(saved, {"params/actor.2.bias": np.array([0, np.inf, 0], np.float32)})
    with pytest.raises(PolicyError, match="NaN or infinite"):
        load_policy(saved, SPACES)
    save_policy(saved, stored())
    rewrite(saved, about(saved, adam_step="x"))
    with pytest.raises(PolicyError, match="incomplete"):
        load_policy(saved, SPACES)


def test_agent_saves_what_it_loads(tmp_path: Path) -> None:
    agent = make_ppo(Ppo(), 3, np.random.default_rng(0), learn=True)
    agent.save(tmp_path / "a.npz")
    again = make_ppo(Ppo(file=str(tmp_path / "a.npz"), learn=False), 5, np.random.default_rng(1), learn=True)
    again.save(tmp_path / "b.npz")
    spaces = Spaces(NAMES, ACTIONS, 64)
    first, second = load_policy(tmp_path / "a.npz", spaces), load_policy(tmp_path / "b.npz", spaces)
    assert all(first.params[name].tobytes() == second.params[name].tobytes() for name in first.params)


def test_nothing_learned_and_nothing_to_learn_is_refused() -> None:
    with pytest.raises(PolicyError, match=r"policy\.ppo\.file"):
        make_ppo(Ppo(learn=False), 3, np.random.default_rng(0), learn=True)
