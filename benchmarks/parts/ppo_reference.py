"""Does our PPO learn, and how fast? A comparison with PPO of stable-baselines3 on CartPole-v1 and Acrobot-v1.

    python -m benchmarks.parts.ppo_reference --json FILE [--png FILE] [--keep FOLDER]

Both learn with the same hyper-parameters (`ppo_trainings.TASKS`), and the same number of environments, networks and
steps. Every training is a separate process on the CPU with one thread (torch's too). The two learners alternate, and
the first one changes from seed to seed. Both step plain environments of `gymnasium.make`, one after the other.

- `solved`: seeds whose mean return over the last 100 episodes of training (with exploration) is at least the
  threshold that gymnasium registers for the environment: 475 for CartPole, -100 for Acrobot.
- `wall_s`: wall time of the training, without imports, including the creation of environments and networks.
- `ratio`: our wall time over that of stable-baselines3, both summed over the seeds.

With `--keep FOLDER` every training is written there as it ends, and a later call continues from those.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.table import Table

from benchmarks.parts.references.ppo_trainings import LEARNERS, TASKS, Episodes
from dynamix_ps.errors import UsageError
from dynamix_ps.one_thread import ONE_THREAD
from dynamix_ps.report.plots.style import WORKER_COLOURS
from dynamix_ps.run_record.manifest import machine, versions
from dynamix_ps.terminal import make_console, progress_bar

LAST_EPISODES = 100
LIMIT_S = 1800.0  # for one training


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--png", type=Path, metavar="FILE", help="draw the learning curves here")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep every training here, and continue from it")
    parser.add_argument("--seeds", type=int, default=9, help="seeds 1 to this number (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200_000, help="steps of all environments together, per training")
    parser.add_argument("--one", nargs=3, metavar=("ENVIRONMENT", "WHO", "SEED"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        environment, who, seed = args.one
        wall_s, episodes = LEARNERS[who](TASKS[environment], int(seed), args.steps)
        print(json.dumps({"wall_s": wall_s, "episodes": episodes}))
        return
    trainings = measure(args.seeds, args.steps, args.keep)
    figures = {environment: summary(environment, trainings) for environment in TASKS}
    for environment in TASKS:
        show(environment, figures[environment], trainings)
    if args.json:
        about = {"steps": args.steps, "tasks": {name: asdict(task) for name, task in TASKS.items()}}
        found = versions() | {name: version(name) for name in ("gymnasium", "stable-baselines3")}
        rows = [{name: value for name, value in one.items() if name != "episodes"} for one in trainings]
        result = {**figures, "trainings": rows, **about, "machine": machine(), "versions": found}
        args.json.write_text(json.dumps(result, indent=2) + "\n")
    if args.png:
        draw(args.png, trainings, args.steps)


def measure(seeds: int, steps: int, keep: Path | None) -> list[dict[str, Any]]:
    """Run all trainings, one after the other, each in a fresh process, except those already in the folder `keep`."""
    trainings = []
    console = make_console()
    with progress_bar(console) as bar:
        progress = bar.add_task("", total=len(TASKS) * seeds * len(LEARNERS))
        for environment in TASKS:
            for seed in range(1, seeds + 1):
                for who in list(LEARNERS)[:: 1 if seed % 2 else -1]:
                    bar.update(progress, description=f"{environment}, {who}, seed {seed}")
                    one = _judged(_kept_or_new(environment, who, seed, steps, keep))
                    trainings.append(one)
                    bar.advance(progress)
                    console.print(
                        f"{environment}, {who}, seed {seed}: {one['mean_return']:.1f} in {one['wall_s']:.1f} s"
                    )
    return trainings


def summary(environment: str, trainings: list[dict[str, Any]]) -> dict[str, Any]:
    """Solved seeds and wall seconds of both learners in an environment, and the ratio of the latter."""
    of = {who: [one for one in trainings if (one["environment"], one["who"]) == (environment, who)] for who in LEARNERS}
    solved = {who: sum(one["solved"] for one in ones) for who, ones in of.items()}
    wall_s = {who: sum(one["wall_s"] for one in ones) for who, ones in of.items()}
    ours, theirs = LEARNERS
    return {"solved": solved, "wall_s": wall_s, "ratio": wall_s[ours] / wall_s[theirs]}


def show(environment: str, figures: dict[str, Any], trainings: list[dict[str, Any]]) -> None:
    table = Table(title=f"{environment}: mean return of the last {LAST_EPISODES} episodes, wall time")
    table.add_column("seed", justify="right")
    for who in LEARNERS:
        table.add_column(who, justify="right")
        table.add_column("s", justify="right")
    by_seed = {(one["seed"], one["who"]): one for one in trainings if one["environment"] == environment}
    for seed in sorted({seed for seed, _ in by_seed}):
        cells = [
            text
            for who in LEARNERS
            for text in (f"{by_seed[seed, who]['mean_return']:.1f}", f"{by_seed[seed, who]['wall_s']:.1f}")
        ]
        table.add_row(str(seed), *cells)
    totals = [
        text for who in LEARNERS for text in (f"{figures['solved'][who]} solved", f"{figures['wall_s'][who]:.1f}")
    ]
    table.add_section()
    table.add_row("all", *totals)
    console = make_console()
    console.print(table)
    console.print(f"our wall time is {figures['ratio']:.2f} of that of stable-baselines3")


def draw(target: Path, trainings: list[dict[str, Any]], steps: int) -> None:
    """Draw returns over steps (thin: one seed, thick: the mean of seeds), and wall times; a row per environment."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4 * len(TASKS)), layout="constrained", dpi=130)
    for environment, (returns, walls) in zip(
        TASKS, figure.subplots(len(TASKS), 2, width_ratios=(3, 1), squeeze=False), strict=True
    ):
        _draw_task(returns, walls, environment, [one for one in trainings if one["environment"] == environment], steps)
    figure.savefig(target)


def _draw_task(returns: Any, walls: Any, environment: str, trainings: list[dict[str, Any]], steps: int) -> None:
    places = np.linspace(0, steps, 201)[1:]
    for index, who in enumerate(LEARNERS):
        colour = WORKER_COLOURS[index]
        curves = [_curve(one["episodes"], places) for one in trainings if one["who"] == who]
        for curve in curves:
            returns.plot(places, curve, color=colour, alpha=0.3, linewidth=0.8)
        returns.plot(places, np.mean(curves, axis=0), color=colour, linewidth=2, label=who)
        times = [one["wall_s"] for one in trainings if one["who"] == who]
        walls.bar(who, np.mean(times), color=colour)
        walls.scatter([who] * len(times), times, color="black", s=8, zorder=3)
    returns.axhline(TASKS[environment].solved_return, color="#777777", linewidth=1, linestyle="--")
    returns.set_xlabel("environment steps")
    returns.set_ylabel("return, mean of the last 20 episodes")
    returns.set_title(f"{environment} (thin: one seed, thick: their mean)", loc="left", fontsize="medium")
    returns.legend(loc="lower right")
    walls.set_ylabel("wall time of a training (s), one thread")
    for axes in (returns, walls):
        axes.grid(color="#e5e5e5")
        axes.set_axisbelow(True)


def _curve(episodes: Episodes, places: NDArray[Any]) -> NDArray[Any]:
    """At every place the mean return of the latest 20 episodes; NaN before the first one."""
    ends, totals = np.array([end for end, _ in episodes]), np.array([total for _, total in episodes])
    counts = np.searchsorted(ends, places, side="right")
    return np.array([totals[max(count - 20, 0) : count].mean() if count else np.nan for count in counts])


def _judged(training: dict[str, Any]) -> dict[str, Any]:
    """The training with `mean_return` and `solved`."""
    last = [total for _, total in training["episodes"][-LAST_EPISODES:]]
    mean = float(np.mean(last))
    solved = len(last) == LAST_EPISODES and mean >= TASKS[training["environment"]].solved_return
    return {**training, "mean_return": mean, "solved": solved}


def _kept_or_new(environment: str, who: str, seed: int, steps: int, keep: Path | None) -> dict[str, Any]:
    about = {"environment": environment, "who": who, "seed": seed, "steps": steps}
    if keep is None:
        return about | _in_process(environment, who, seed, steps)
    file, settings = keep / f"{environment}-{who}-{seed}.json", {"steps": steps, **asdict(TASKS[environment])}
    if not file.exists():
        keep.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({"settings": settings, **_in_process(environment, who, seed, steps)}) + "\n")
    kept: dict[str, Any] = json.loads(file.read_text())
    if kept.pop("settings") != settings:
        raise UsageError(f"{file}: other steps or hyper-parameters than now; name another folder for --keep")
    return about | kept


def _in_process(environment: str, who: str, seed: int, steps: int) -> dict[str, Any]:
    one = ["--one", environment, who, str(seed), "--steps", str(steps)]
    command = [sys.executable, "-m", "benchmarks.parts.ppo_reference", *one]
    done = subprocess.run(
        command, env=os.environ | ONE_THREAD, stdout=subprocess.PIPE, text=True, timeout=LIMIT_S, check=True
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


if __name__ == "__main__":
    main()
