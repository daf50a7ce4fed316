"""The learned policy in a live run: it acts, gets rewards and, if asked to, learns while training runs.

One decision (`decide`):

    clean window -> state (state.py) -> reward of the previous decision -> actions and sizes (agent.py)

While it learns, learner.py collects what decisions brought, and updates copies of the networks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from pydantic import ValidationError

from dynamix_ps.config.schema import Config, Ppo
from dynamix_ps.errors import PolicyError
from dynamix_ps.parts import load
from dynamix_ps.policy.base import Decision, View
from dynamix_ps.policy.learned.agent import AgentDecision, LearnedAgent, UpdateResult
from dynamix_ps.policy.learned.rewards import GoodputReward, PaperReward, Reward
from dynamix_ps.policy.learned.spaces import fresh_networks, make_agent, policy_spec
from dynamix_ps.policy.learned.state import State
from dynamix_ps.policy.model.cluster import ClusterModel
from dynamix_ps.policy.ppo.actor_critic import ActorCritic
from dynamix_ps.policy.ppo.policy_file import PolicySpec, StoredPolicy, load_policy, save_policy
from dynamix_ps.policy.ppo.settings import settings_of
from dynamix_ps.policy.window_arrays import arrays_of

FRESH = "fresh"  # instead of a file: untrained weights
# Settings that depend on the number of decisions per update. They come from the job, never from the policy file.
OF_ONE_UPDATE = ("learning_rate", "epochs", "minibatches")
PRETRAINED = Path(__file__).parents[1] / "pretrained"
_LEARNER = "dynamix_ps.policy.learned.learner:OnlineLearner"


class LearnsOnline(Protocol):
    """What learns beside decisions, with what learner.py offers."""

    @property
    def update_due(self) -> bool: ...

    def reward(self, state: State, decided: AgentDecision) -> float | None:
        """Takes in a decision and the state it saw. Returns the mean reward of the decision before, if it has one."""
        ...

    def begin_update(self) -> Callable[[], UpdateResult]: ...


class PpoPolicy:
    """Acts after windows that ran cleanly under the newest plan, and keeps the plan after all others.

    While it learns, it draws actions from its networks and collects outcomes. Otherwise it takes the likeliest action.
    """

    name = "ppo"

    def __init__(self, agent: LearnedAgent, ppo: Ppo, spec: PolicySpec, provenance: Mapping[str, Any],
                 *, learn: bool, explore: bool) -> None:  # fmt: skip
        self.model = agent.model
        self._agent = agent
        self._spec = spec
        self._provenance = {**provenance, "settings": {**provenance.get("settings", {}), **_recorded(ppo)}}
        self._learner: LearnsOnline | None = None
        if learn:
            self._learner = load(_LEARNER)(agent, settings_of(ppo), ppo.windows_per_update)
        self._explore = explore
        self._choices = agent.choices(explore=explore)

    def decide(self, view: View) -> Decision:
        """New sizes, and the reward of the previous decision if the window ran under its plan."""
        if not view.clean:
            return Decision(view.plan.batch_sizes)
        state = self._agent.states.observe(arrays_of(view))
        if self._learner is None:
            return Decision(tuple(self._agent.sizes(state, self._choices).tolist()))
        decided = self._agent.decide(state, explore=self._explore, learn_normaliser=True)
        return Decision(tuple(decided.sizes.tolist()), self._learner.reward(state, decided))

    @property
    def update_due(self) -> bool:
        return self._learner is not None and self._learner.update_due

    def begin_update(self) -> Callable[[], UpdateResult]:
        """Take the collected outcomes. The returned function learns from them on copies, in any thread."""
        assert self._learner is not None, "`update_due` is false without one"
        return self._learner.begin_update()

    def finish_update(self, finished: UpdateResult) -> Mapping[str, Any]:
        """Use the learned weights. `accepted` is 0 if any network kept its old weights."""
        for name, network in self._agent.networks.items():
            network.adopt(finished.networks[name])
        accepted = min(one["accepted"] for one in finished.diagnostics.values())
        self._provenance["updates"] = int(self._provenance.get("updates", 0)) + int(accepted)
        flat = {f"{name}_{key}": value for name, one in finished.diagnostics.items() for key, value in one.items()}
        return {"accepted": accepted, "updates": float(self._provenance["updates"]), **flat}

    def save(self, file: Path) -> None:
        """Write the present policy to a file. Raises OSError."""
        networks = {name: network.weights for name, network in self._agent.networks.items()}
        save_policy(file, StoredPolicy(networks, self._spec, self._provenance))


def reward_of(ppo: Ppo) -> Reward:
    """The reward with its weights; by default that of the action space."""
    if (ppo.reward or ("paper" if ppo.space == "paper" else "goodput")) == "paper":
        return PaperReward(ppo.alpha, ppo.beta, ppo.delta, ppo.eta, ppo.time)
    return GoodputReward(ppo.efficiency, ppo.throughput, ppo.change, ppo.balance)


def learning_on(ppo: Ppo, file: Path, provenance: Mapping[str, Any]) -> Ppo:
    """The section, completed with the settings that a policy file was trained with. The cluster file has precedence.

    Settings in `OF_ONE_UPDATE` never come from the policy file: an update in the simulator sees thousands of decisions,
    an update in a run only a few. A setting that the file lacks has its default.

    Raises:
        PolicyError: a setting in the file is not usable.
    """
    told = provenance.get("settings", {})
    reward = dict(told.get("reward", {}))
    name = {"PaperReward": "paper", "GoodputReward": "goodput"}.get(reward.pop("name", ""))
    trained = {**told.get("learner", {}), **reward, **({"reward": name} if name else {})}
    known = {key: value for key, value in trained.items() if key in Ppo.model_fields and key not in OF_ONE_UPDATE}
    try:
        return Ppo.model_validate({**known, **ppo.model_dump(exclude_unset=True)})
    except ValidationError as error:
        raise PolicyError(f"{file}: its settings cannot be used: {error}; use another copy") from error


def _check_time(ppo: Ppo, file: Path, provenance: Mapping[str, Any]) -> None:
    """Raises PolicyError if the section asks for another time in the reward than that of a policy that cannot learn."""
    trained = provenance.get("settings", {}).get("reward", {}).get("time", PaperReward().time)
    if "time" in ppo.model_fields_set and ppo.time != trained and not ppo.learn:
        raise PolicyError(
            f"{file}: trained with time {trained}, expected policy.ppo.time = {ppo.time}; train another policy "
            f"(dynamix policy train --space paper --time {ppo.time} -o DIR) and name it in policy.ppo.file"
        )


def _recorded(ppo: Ppo) -> dict[str, Any]:
    """The settings that a policy file keeps, in the form that the simulator also writes."""
    reward = reward_of(ppo)
    return {
        "learner": dataclasses.asdict(settings_of(ppo)),
        "reward": {"name": type(reward).__name__, **dataclasses.asdict(reward)},
    }


def ppo_policy(config: Config, n_workers: int, rng: np.random.Generator, resume: Path | None) -> PpoPolicy:
    """The policy `ppo` of a cluster file. Raises PolicyError."""
    return make_ppo(config.policy.ppo, n_workers, rng, learn=config.mode == "adapt", resume=resume)


def make_ppo(
    ppo: Ppo,
    n_workers: int,
    rng: np.random.Generator,
    *,
    learn: bool,
    resume: Path | None = None,
    effects: bool = True,
) -> PpoPolicy:
    """The policy with shipped weights, those of `ppo.file`, or those that an earlier process of this run saved.

    Args:
        learn: whether this run can learn at all (its plans take effect); `ppo.learn` can still say no.
        effects: whether its model of the cluster looks for recurring work and for tiles.

    Raises:
        PolicyError: a file is unusable or trained for another time than `ppo.time`, or the weights are fresh and the
            policy may not learn.
    """
    file = resume or (PRETRAINED / f"{ppo.space}.npz" if ppo.file is None else Path(ppo.file))
    if resume is None and ppo.file == FRESH:
        if not ppo.learn:
            raise PolicyError("policy.ppo: file is `fresh` and learn is false; let it learn, or name a trained policy")
        spec = policy_spec(ppo.space, ppo.hidden)
        networks, provenance = fresh_networks(spec, settings_of(ppo), rng), {"origin": FRESH, "updates": 0}
    else:
        stored = load_policy(file, policy_spec(ppo.space, ppo.hidden))
        spec, provenance = stored.spec, dict(stored.provenance)
        _check_time(ppo, file, provenance)
        ppo = learning_on(ppo, file, provenance)
        settings = settings_of(ppo)
        networks = {name: ActorCritic(weights, settings, rng) for name, weights in stored.networks.items()}
    agent = make_agent(ppo.space, networks, reward_of(ppo), ClusterModel(n_workers, effects=effects))
    return PpoPolicy(agent, ppo, spec, provenance, learn=learn and ppo.learn, explore=ppo.learn)
