from __future__ import annotations

import dataclasses
import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dynamix_ps.errors import PolicyError
from dynamix_ps.policy.ppo import policy_file
from dynamix_ps.policy.ppo.actor_critic import ActorCritic, Weights
from dynamix_ps.policy.ppo.learning.rollout import RolloutBatch
from dynamix_ps.policy.ppo.learning.update import learn
from dynamix_ps.policy.ppo.policy_file import PolicySpec, StoredPolicy, load_policy, save_policy
from dynamix_ps.policy.ppo.settings import PpoSettings

SPEC = PolicySpec("test", {"big": ("a", "b"), "small": ("c",)}, {"big": (-1, 0, 1), "small": (0.5, "stay")}, 8)


def network(name: str, normalise: bool = True) -> Weights:
    """Something learned: nothing in it is still zero."""
    rng = np.random.default_rng(4)
    n_features = len(SPEC.features[name])
    settings = PpoSettings(hidden=SPEC.hidden, normalise=normalise)
    agent = ActorCritic.fresh(n_features, len(SPEC.actions[name]), settings, rng)
    acted = agent.act(rng.standard_normal((9, n_features)), explore=True, learn_normaliser=True)
    numbers = rng.standard_normal(9).astype(np.float32)
    learn(agent, RolloutBatch(acted.rows, acted.actions, acted.log_probs, numbers, numbers, acted.values))
    return agent.weights


def stored() -> StoredPolicy:
    return StoredPolicy({name: network(name) for name in SPEC.features}, SPEC, {"origin": "test", "updates": 7})


def weight(policy: StoredPolicy) -> np.ndarray:
    return policy.networks["big"].params.actor[0][0]


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
    before, after = stored(), load_policy(saved, SPEC)
    assert list(after.networks) == ["big", "small"]
    for name, old in before.networks.items():
        new = after.networks[name]
        assert new.params.flat.tobytes() == old.params.flat.tobytes()
        assert new.params.flat.dtype == np.float32
        assert new.params.shape == old.params.shape
        assert new.adam is not None
        assert old.adam is not None
        assert new.adam.mean.tobytes() == old.adam.mean.tobytes()
        assert new.adam.square.tobytes() == old.adam.square.tobytes()
        assert new.adam.step == old.adam.step > 0
        for part in ("count", "mean", "spread"):
            np.testing.assert_array_equal(getattr(new.normaliser, part), getattr(old.normaliser, part))
    assert after.provenance == {"origin": "test", "updates": 7}
    assert after.spec == SPEC


def test_any_spaces_can_be_looked_at(saved: Path) -> None:
    assert load_policy(saved, None).spec == SPEC


@pytest.mark.parametrize("normalise", [True, False])
def test_exported_without_adam_or_normaliser(tmp_path: Path, normalise: bool) -> None:
    full = {name: network(name, normalise) for name in SPEC.features}
    small = {name: Weights(one.params, None, one.normaliser) for name, one in full.items()}
    save_policy(tmp_path / "full.npz", StoredPolicy(full, SPEC, {}))
    save_policy(tmp_path / "small.npz", StoredPolicy(small, SPEC, {}))
    after = load_policy(tmp_path / "small.npz", SPEC).networks["big"]
    assert after.adam is None
    assert (after.normaliser is not None) == normalise
    assert after.params.flat.tobytes() == full["big"].params.flat.tobytes()
    assert (tmp_path / "small.npz").stat().st_size < (tmp_path / "full.npz").stat().st_size


def test_a_loaded_network_acts_as_before(saved: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((20, 2))
    acted = [
        ActorCritic(policy.networks["big"], PpoSettings(hidden=8), np.random.default_rng(1)).act(rows, explore=True)
        for policy in (stored(), load_policy(saved, SPEC))
    ]
    np.testing.assert_array_equal(acted[0].actions, acted[1].actions)
    np.testing.assert_array_equal(acted[0].values, acted[1].values)


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
        load_policy(tmp_path / "none.npz", SPEC)
    with pytest.raises(PolicyError, match="cannot be read"):
        load_policy(tmp_path, SPEC)


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.9, 0.999])
def test_truncated(saved: Path, part: float) -> None:
    content = saved.read_bytes()
    saved.write_bytes(content[: int(part * len(content))])
    with pytest.raises(PolicyError, match="cut off"):
        load_policy(saved, SPEC)


def test_any_flipped_byte_of_the_arrays_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for position in range(200, len(content), len(content) // 40):
        damaged = bytearray(content)
        damaged[position] ^= 0xFF
        saved.write_bytes(bytes(damaged))
        try:
            found = load_policy(saved, SPEC)
        except PolicyError:
            continue
        np.testing.assert_array_equal(weight(found), weight(stored()))


def test_damaged_with_valid_archive(saved: Path) -> None:
    rewrite(saved, {"big/normaliser.mean": np.array([9.0, 9.0])}, rehash=False)
    with pytest.raises(PolicyError, match=r"expected sha256 [0-9a-f]{64}, found [0-9a-f]{64}"):
        load_policy(saved, SPEC)


def test_pickled_payload_is_refused_unread(saved: Path, tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return (Path.touch, (tmp_path / "pwned",))  # type: ignore[return-value]

    saved.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPEC)
    np.savez(saved, about=np.array([Bomb()], dtype=object))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPEC)
    assert not (tmp_path / "pwned").exists()


def test_an_archive_that_unpacks_to_more_than_a_policy_is_refused_unread(saved: Path) -> None:
    """Some kilobytes with 300 MB of zeros, many arrays, and an array that tells a size of its own."""
    with zipfile.ZipFile(saved, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("about.npy", "w") as out:
        for _ in range(300):
            out.write(bytes(1 << 20))
    assert saved.stat().st_size < 1 << 20
    with pytest.raises(PolicyError, match="1 arrays of 314,572,800 bytes, expected a policy with at most"):
        load_policy(saved, SPEC)
    with zipfile.ZipFile(saved, "w") as archive:
        for number in range(1001):
            archive.writestr(f"{number}.npy", b"")
    with pytest.raises(PolicyError, match="1,001 arrays"):
        load_policy(saved, SPEC)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f8", "fortran_order": False, "shape": (2**50,)})
    with zipfile.ZipFile(saved, "w") as archive:
        archive.writestr("about.npy", header.getvalue() + bytes(80))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPEC)


def test_foreign_archives(saved: Path) -> None:
    np.savez(saved, weights=np.zeros(3))
    with pytest.raises(PolicyError, match="no description"):
        load_policy(saved, SPEC)
    with saved.open("wb") as out:
        np.save(out, np.zeros(3))
    with pytest.raises(PolicyError, match="not a policy file"):
        load_policy(saved, SPEC)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr("readme.txt", "hello")
    saved.write_bytes(content.getvalue())
    with pytest.raises(PolicyError, match=r"no description|not a policy file"):
        load_policy(saved, SPEC)


@pytest.mark.parametrize("version", [1, 9])
def test_other_version(saved: Path, version: int) -> None:
    rewrite(saved, about(saved, version=version))
    with pytest.raises(PolicyError, match=f"found dynamix-ppo version {version}, expected dynamix-ppo version 2"):
        load_policy(saved, None)


def test_other_spaces(saved: Path) -> None:
    for changes, message in (
        ({"hidden": 16}, r"hidden: found 8, expected 16"),
        ({"space": "paper"}, r"space: found test, expected paper"),
        ({"actions": SPEC.actions | {"big": (0, 1)}}, r"actions: found .*\(-1, 0, 1\).*, expected .*\(0, 1\)"),
        ({"features": {"big": ("a", "b")}}, r"features: found .*small.*, expected"),
    ):
        with pytest.raises(PolicyError, match=message):
            load_policy(saved, dataclasses.replace(SPEC, **changes))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("big/actor.0.weight", np.zeros((2, 2), np.float32), r"found float32 \(2, 2\), expected float32 \(4, 8\)"),
        ("big/actor.0.bias", np.zeros(8), r"found float64 \(8,\), expected float32 \(8,\)"),
        ("small/actor.2.bias", np.array([0, np.inf], np.float32), "NaN or infinite"),
        ("small/adam.square", np.zeros(3, np.float32), r"small/adam.square does not fit"),
        ("big/normaliser.mean", np.array([0, np.nan]), "NaN or infinite"),
    ],
)
def test_shapes_types_and_finiteness(saved: Path, name: str, value: np.ndarray, message: str) -> None:
    rewrite(saved, {name: value})
    with pytest.raises(PolicyError, match=message):
        load_policy(saved, SPEC)


@pytest.mark.parametrize(
    "change",
    [
        {"adam_steps": {"big": "x"}},
        {"adam_steps": None},
        {"features": ["a"]},
        {"features": {"big": ["a", "b"], "other": ["c"]}},
        {"hidden": 10**15},
        {"hidden": -1},
        {"provenance": 3},
    ],
)
def test_malformed_description(saved: Path, change: dict[str, object]) -> None:
    rewrite(saved, about(saved, **change))
    with pytest.raises(PolicyError, match=r"incomplete|does not fit"):
        load_policy(saved, None)


def test_missing_array(saved: Path) -> None:
    with np.load(saved) as loaded:
        arrays = {name: loaded[name] for name in loaded.files if name not in ("big/critic.1.bias", "sha256")}
    np.savez(saved, **arrays, sha256=np.array(policy_file._digest(arrays)))
    with pytest.raises(PolicyError, match=r"incomplete: 'critic.1.bias'"):
        load_policy(saved, SPEC)
