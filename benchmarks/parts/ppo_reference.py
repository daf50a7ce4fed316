"""Does our PPO learn, and how fast? A comparison with PPO of stable-baselines3 on CartPole-v1.

    python -m benchmarks.parts.ppo_reference --json FILE [--png FILE]

Both learn with the same hyper-parameters (HYPER_PARAMETERS; those that rl-baselines3-zoo publishes for CartPole, but
10 passes over a batch instead of 20 and a constant clip range), and the same number of environments, networks and
steps. Every training is a separate process on the CPU with one thread (torch's too). The two learners alternate, and
the first one changes from seed to seed. Both step plain `gymnasium.make("CartPole-v1")`, one environment after the
other.

- `solved`: seeds whose mean return over the last 100 episodes of training (with exploration) is at least 475, the
  threshold that gymnasium registers for this environment.
- `wall_s`: wall time of the training, without imports, including the creation of environments and networks.
- `ratio`: our wall time over that of stable-baselines3, both summed over the seeds.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.policy.ppo.settings import Settings
from dynamix_ps.policy.ppo.train import TrainConfig, train
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.run_record.manifest import machine, versions
from dynamix_ps.terminal import make_console, progress_bar

ENVIRONMENT = "CartPole-v1"
SOLVED_RETURN, LAST_EPISODES = 475.0, 100
HYPER_PARAMETERS: dict[str, Any] = {
    "n_envs": 8,
    "n_steps": 32,
    "hidden": 64,
    "learning_rate": 1e-3,  # falls to 0 linearly
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "clip": 0.2,
    "entropy": 0.0,
    "value_weight": 0.5,
    "max_grad_norm": 0.5,
    "target_kl": None,
    "epochs": 10,
    "minibatches": 1,
}
LIMIT_S = 1800.0  # for one training

Episodes = list[tuple[int, float]]  # steps of all environments so far, return


def train_ours(seed: int, steps: int) -> tuple[float, Episodes]:
    """Train with our PPO: wall seconds, and the episodes in the order of their ends."""
    learning = {name: value for name, value in HYPER_PARAMETERS.items() if name not in ("n_envs", "n_steps")}
    config = TrainConfig(
        Settings(normalise=False, **learning), HYPER_PARAMETERS["n_envs"], HYPER_PARAMETERS["n_steps"], anneal=True
    )
    episodes: Episodes = []
    began_s = time.perf_counter()
    train(_make_env, steps, seed, config, lambda so_far, total: episodes.append((so_far, total)))
    return time.perf_counter() - began_s, episodes


def train_baselines(seed: int, steps: int) -> tuple[float, Episodes]:
    """Train with PPO of stable-baselines3: wall seconds, and the episodes that its Monitor wrapper recorded."""
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.monitor import Monitor
    from stable_baselines3.common.vec_env import DummyVecEnv

    torch.set_num_threads(1)
    h = HYPER_PARAMETERS
    began_s = time.perf_counter()
    monitors = [Monitor(_make_env()) for _ in range(h["n_envs"])]
    PPO(
        "MlpPolicy",
        DummyVecEnv([lambda monitor=monitor: monitor for monitor in monitors]),  # type: ignore[misc]
        learning_rate=lambda left: left * h["learning_rate"],
        n_steps=h["n_steps"],
        batch_size=h["n_envs"] * h["n_steps"] // h["minibatches"],
        n_epochs=h["epochs"],
        gamma=h["gamma"],
        gae_lambda=h["gae_lambda"],
        clip_range=h["clip"],
        ent_coef=h["entropy"],
        vf_coef=h["value_weight"],
        max_grad_norm=h["max_grad_norm"],
        target_kl=h["target_kl"],
        policy_kwargs={"net_arch": [h["hidden"], h["hidden"]]},
        seed=seed,
        device="cpu",
    ).learn(steps)
    wall_s = time.perf_counter() - began_s
    ends = [np.cumsum(monitor.get_episode_lengths()) * h["n_envs"] for monitor in monitors]
    episodes = zip(np.concatenate(ends), np.concatenate([m.get_episode_rewards() for m in monitors]), strict=True)
    return wall_s, sorted((int(end), float(total)) for end, total in episodes)


TRAININGS = {"dynamix": train_ours, "stable-baselines3": train_baselines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the learning curves here")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=200_000, help="steps of all environments together, per training")
    parser.add_argument("--one", nargs=2, metavar=("WHO", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        who, seed = args.one
        print(json.dumps(dict(zip(("wall_s", "episodes"), TRAININGS[who](int(seed), args.steps), strict=True))))
        return
    trainings = measure(args.seeds, args.steps)
    figures = summary(trainings)
    show(figures, trainings)
    if args.json:
        about = {"environment": ENVIRONMENT, "steps": args.steps, "hyper_parameters": HYPER_PARAMETERS}
        found = versions() | {name: version(name) for name in ("gymnasium", "stable-baselines3")}
        rows = [{name: value for name, value in one.items() if name != "episodes"} for one in trainings]
        result = {**figures, "trainings": rows, **about, "machine": machine(), "versions": found}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if args.png:
        draw(args.png, trainings, args.steps)


def measure(seeds: int, steps: int) -> list[dict[str, Any]]:
    """Run all trainings, one after the other, each in a fresh process."""
    trainings = []
    console = make_console()
    with progress_bar(console) as bar:
        task = bar.add_task("", total=seeds * len(TRAININGS))
        for seed in range(seeds):
            for who in list(TRAININGS)[:: 1 if seed % 2 == 0 else -1]:
                bar.update(task, description=f"{who}, seed {seed}")
                one = {"who": who, "seed": seed, **_in_process(who, seed, steps)}
                last = [total for _, total in one["episodes"][-LAST_EPISODES:]]
                one["mean_return"] = float(np.mean(last))
                one["solved"] = len(last) == LAST_EPISODES and one["mean_return"] >= SOLVED_RETURN
                trainings.append(one)
                bar.advance(task)
                console.print(f"{who}, seed {seed}: {one['mean_return']:.1f} in {one['wall_s']:.1f} s")
    return trainings


def summary(trainings: list[dict[str, Any]]) -> dict[str, Any]:
    """Solved seeds and wall seconds of both, and the ratio."""
    of = {who: [one for one in trainings if one["who"] == who] for who in TRAININGS}
    solved = {who: sum(one["solved"] for one in ones) for who, ones in of.items()}
    wall_s = {who: sum(one["wall_s"] for one in ones) for who, ones in of.items()}
    ours, theirs = TRAININGS
    return {"solved": solved, "wall_s": wall_s, "ratio": wall_s[ours] / wall_s[theirs]}


def show(figures: dict[str, Any], trainings: list[dict[str, Any]]) -> None:
    table = Table(title=f"{ENVIRONMENT}: mean return of the last {LAST_EPISODES} episodes, wall time")
    table.add_column("seed", justify="right")
    for who in TRAININGS:
        table.add_column(who, justify="right")
        table.add_column("s", justify="right")
    by_seed = {(one["seed"], one["who"]): one for one in trainings}
    for seed in sorted({one["seed"] for one in trainings}):
        cells = [
            text
            for who in TRAININGS
            for text in (f"{by_seed[seed, who]['mean_return']:.1f}", f"{by_seed[seed, who]['wall_s']:.1f}")
        ]
        table.add_row(str(seed), *cells)
    totals = [
        text for who in TRAININGS for text in (f"{figures['solved'][who]} solved", f"{figures['wall_s'][who]:.1f}")
    ]
    table.add_section()
    table.add_row("all", *totals)
    console = make_console()
    console.print(table)
    console.print(f"our wall time is {figures['ratio']:.2f} of that of stable-baselines3")


def draw(target: Path, trainings: list[dict[str, Any]], steps: int) -> None:
    """Draw the return of the latest episodes over steps (thin: one seed, thick: their mean), and wall times."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained", dpi=130)
    returns, walls = figure.subplots(1, 2, width_ratios=(3, 1))
    places = np.linspace(0, steps, 201)[1:]
    for index, who in enumerate(TRAININGS):
        colour = WORKER_COLOURS[index]
        curves = [_curve(one["episodes"], places) for one in trainings if one["who"] == who]
        for curve in curves:
            returns.plot(places, curve, color=colour, alpha=0.3, linewidth=0.8)
        returns.plot(places, np.mean(curves, axis=0), color=colour, linewidth=2, label=who)
        times = [one["wall_s"] for one in trainings if one["who"] == who]
        walls.bar(who, np.mean(times), color=colour)
        walls.scatter([who] * len(times), times, color="black", s=8, zorder=3)
    returns.axhline(SOLVED_RETURN, color="#777777", linewidth=1, linestyle="--")
    returns.set_xlabel("environment steps")
    returns.set_ylabel("return, mean of the last 20 episodes")
    returns.set_title(f"{ENVIRONMENT} (thin: one seed, thick: their mean)", loc="left", fontsize="medium")
    returns.legend(loc="lower right")
    walls.set_ylabel("wall time of a training (s), one thread")
    for axes in (returns, walls):
        axes.grid(color="#e5e5e5")
        axes.set_axisbelow(True)
    figure.savefig(target)


def _curve(episodes: Episodes, places: NDArray[Any]) -> NDArray[Any]:
    """At every place the mean return of the latest 20 episodes; NaN before the first one."""
    ends, totals = np.array([end for end, _ in episodes]), np.array([total for _, total in episodes])
    counts = np.searchsorted(ends, places, side="right")
    return np.array([totals[max(count - 20, 0) : count].mean() if count else np.nan for count in counts])


def _in_process(who: str, seed: int, steps: int) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.parts.ppo_reference", "--one", who, str(seed), "--steps", str(steps)]
    done = subprocess.run(
        command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def _make_env() -> gymnasium.Env[Any, Any]:
    return gymnasium.make(ENVIRONMENT)


if __name__ == "__main__":
    main()
