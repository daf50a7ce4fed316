from __future__ import annotations

import numpy as np
import pytest

from benchmarks.suite.contenders import CONTENDERS, contender
from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.rules import findings
from dynamix_ps.errors import ConfigError
from dynamix_ps.messages import Plan
from dynamix_ps.policy.evidence.weighed import WeighedPolicy
from dynamix_ps.policy.registry import make_policy
from dynamix_ps.policy.safety_net import SafetyNet
from tests.control_plane import config, run_under, view
from tests.policy_cluster import assert_valid


@pytest.mark.parametrize("name", CONTENDERS)
def test_every_contender_decides(name: str) -> None:
    cluster = config().model_copy(update={"policy": contender(name).policy})
    assert not list(findings(cluster))
    policy = make_policy(cluster, 3, np.random.default_rng(0))
    plan = Plan(0, (64, 64, 64))
    for window in range(2):
        closed = view(plan, run_under(plan, window))
        assert_valid(policy.decide(closed), closed)


def test_every_policy_takes_part() -> None:
    assert {one.policy.name for one in CONTENDERS.values()} == set(POLICIES)


def test_no_two_contenders_are_the_same() -> None:
    chosen = [(one.policy, one.by_speed, one.over_ddp) for one in CONTENDERS.values()]
    assert all(one not in chosen[:place] for place, one in enumerate(chosen))


def test_our_model_and_our_learned_policy_have_a_safety_net() -> None:
    def nets(name: str) -> bool:
        cluster = config().model_copy(update={"policy": CONTENDERS[name].policy})
        policy = make_policy(cluster, 3, np.random.default_rng(0))
        return isinstance(policy, WeighedPolicy) and isinstance(policy.inner, SafetyNet)

    assert [name for name in CONTENDERS if nets(name)] == ["model", "ppo"]


def test_static_with_a_size() -> None:
    assert contender("static-64").batch == 64
    assert contender("static-64").policy.name == "static"
    assert contender("static-64").lr_factor == 1
    assert contender("static-32-x0.5").batch == 32
    assert contender("static-32-x0.5").lr_factor == 0.5
    assert contender("static-32-x10").lr_factor == 10
    assert contender("static").batch is None


@pytest.mark.parametrize(
    "name", ["static-", "static-0", "static-07", "static-x", "static-32-x", "static-32-x0", "pid-", ""]
)
def test_an_unknown_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="expected static-N or one of static, by-hand"):
        contender(name)


def test_a_slip_is_guessed() -> None:
    with pytest.raises(ConfigError, match="did you mean 'goodput'"):
        contender("godput")


def test_sizes_by_hand_share_the_first_sizes_by_speed_within_bounds() -> None:
    by_hand = contender("by-hand")
    assert by_hand.first_sizes((128, 128, 128), (4.0, 2.0, 1.0), 32, 512) == (219, 110, 55)
    assert by_hand.first_sizes((64, 64), (100.0, 1.0), 16, 512) == (112, 16)
    assert contender("static").first_sizes((64, 64), (4.0, 1.0), 32, 512) == (64, 64)


def test_a_contender_may_choose_its_wire() -> None:
    fixed = contender("static-64-wire-auto")
    assert (fixed.batch, fixed.wire, contender("static-64").wire) == (64, "auto", "float32")
    with pytest.raises(ConfigError, match="DistributedDataParallel has no such wire"):
        contender("ddp-wire-auto")
