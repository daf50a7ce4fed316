"""`dynamix init`: a cluster file with a comment at every key, after a few questions or from flags."""

from __future__ import annotations

import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import yaml
from pydantic import BaseModel

from dynamix_ps.config.descriptions import describe_keys
from dynamix_ps.config.load import check_rules
from dynamix_ps.config.policies import POLICIES
from dynamix_ps.config.schema import BatchBounds, Cluster, Config, WorkerSection
from dynamix_ps.config.yaml_lines import Dumper
from dynamix_ps.data_planes import DATA_PLANES
from dynamix_ps.errors import ConfigError, EnvironmentNotReady, UsageError

ORIGIN = "dynamix init"  # of a configuration, in errors
WIDTH = 100  # of the comments, in columns
SLOWEST = 0.01  # as in the schema
ROOM = 4  # the bounds let a size shrink and grow by this factor at least
KEYS = (
    ("name", "run_dir", "comm", "mode"),
    ("window", "lr", "lr_rule", "target_accuracy"),
)  # of the top level, before and behind cluster and batch


def speeds_of(text: str) -> tuple[float, ...]:
    """`1,0.5,0.25` as one speed per worker. Raises BadParameter."""
    try:
        speeds = tuple(float(part) for part in text.split(","))
    except ValueError:
        raise click.BadParameter(f"got {text!r}, expected numbers with commas, such as 1,0.5,0.25") from None
    if not all(SLOWEST <= speed <= 1 for speed in speeds):
        raise click.BadParameter(f"got {text!r}, expected speeds from {SLOWEST} to 1, which is full speed")
    return speeds


def command_of(text: str) -> tuple[str, ...]:
    """A command line as words. Raises BadParameter."""
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise click.BadParameter(f"got {text!r}: {error}") from None


_COUNT = click.IntRange(1, 1024)
_SIZE = click.IntRange(1, 1_000_000)


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked for a key, and the click type or function that reads the answer."""

    text: str
    kind: Any
    default: Callable[[Mapping[str, Any]], str]  # by the answers before


QUESTIONS = {
    "workers": Question("Number of workers", _COUNT, lambda _: "2"),
    "batch": Question("First batch size of every worker", _SIZE, lambda _: "64"),
    "speeds": Question(
        "Emulated speed of each worker, 1 is full speed", speeds_of, lambda known: ",".join("1" * known["workers"])
    ),
    "policy": Question(
        "Policy, which chooses the batch sizes", click.Choice(tuple(POLICIES)), lambda _: "proportional"
    ),
    "comm": Question("Data plane", click.Choice(tuple(DATA_PLANES)), lambda _: "byteps"),
    "command": Question("Command of every worker, such as: python train.py", command_of, lambda _: ""),
}
Ask = Callable[[str, Question, str, Callable[[str], Any]], Any]  # key, question, default, check


@click.command(context_settings={"allow_interspersed_args": False, "help_option_names": ["-h", "--help"]})
@click.option("-o", "--out", type=click.Path(path_type=Path, dir_okay=False), default="cluster.yaml", show_default=True)
@click.option("--workers", type=_COUNT, help="Number of workers.  [default: 2, or one per speed]")
@click.option("--batch", type=_SIZE, help="First batch size of every worker.  [default: 64]")
@click.option(
    "--speeds",
    metavar="SPEEDS",
    type=speeds_of,
    help="Emulated speed of each worker, such as 1,0.5,0.25.  [default: all 1]",
)
@click.option("--policy", type=click.Choice([*POLICIES]), help="What chooses the batch sizes.  [default: proportional]")
@click.option("--comm", type=click.Choice(tuple(DATA_PLANES)), help="Data plane.  [default: byteps]")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.argument("cmd", nargs=-1, type=click.UNPROCESSED)
def command(
    out: Path,
    workers: int | None,
    batch: int | None,
    speeds: tuple[float, ...] | None,
    policy: str | None,
    comm: str | None,
    force: bool,
    cmd: tuple[str, ...],
) -> int:
    """Write a cluster file with a comment at every key.

    Asks a few questions on a terminal when no flag but -o and --force is given; a pipe may give the answers too, one a
    line. Otherwise the rest takes its defaults. CMD is what every worker runs.

    \b
    Example:
      dynamix init --workers 3 --speeds 1,0.5,0.25 --policy ppo -- python train.py
    """
    if out.exists() and not force:
        raise UsageError(f"{out}: is there already; choose another name with -o, or replace it with --force")
    if not out.absolute().parent.is_dir():
        raise UsageError(f"{out}: there is no folder {out.parent}; make it, or choose another file with -o")
    flags = {"workers": workers, "batch": batch, "speeds": speeds, "policy": policy, "comm": comm, "command": cmd}
    known = {key: value for key, value in flags.items() if value}
    if not known and (ask := _who_answers()) is not None:
        for key, question in QUESTIONS.items():
            known[key] = ask(key, question, question.default(known), partial(_checked, known, key))
    config = _config(known)
    try:
        out.write_text(annotated(config), encoding="utf-8")
    except OSError as error:
        raise EnvironmentNotReady(
            f"cannot write {out}: {error.strerror or error}; choose another file with -o"
        ) from error
    click.echo(f"written: {out}")
    launch = f"dynamix launch -c {shlex.quote(str(out))}"
    click.echo(f"next:    {launch if config.command else f'{launch} -- python train.py'}")
    return 0


def _who_answers() -> Ask | None:
    """Somebody at a terminal, or what is piped in; None: nobody."""
    if sys.stdin is None:
        return None
    if not sys.stdin.isatty():
        return _read
    return _prompt if sys.stdout.isatty() else None


def _prompt(key: str, question: Question, default: str, check: Callable[[str], Any]) -> Any:
    """Asks again, with the reason, until the answer is right."""
    kind = question.kind if isinstance(question.kind, click.ParamType) else None
    return click.prompt(question.text, default=default, type=kind, value_proc=check, show_default=bool(default))


def _read(key: str, question: Question, default: str, check: Callable[[str], Any]) -> Any:
    """The next line; an empty one and the end stand for the default. Raises UsageError."""
    try:
        return check(sys.stdin.readline().strip() or default)
    except click.UsageError as error:
        raise UsageError(f"answer for {key}: {error.message}") from None


def _checked(known: Mapping[str, Any], key: str, text: str) -> Any:
    """The answer in `text`, if it is one and fits those before. Raises BadParameter."""
    kind = QUESTIONS[key].kind
    answer = kind.convert(text, None, None) if isinstance(kind, click.ParamType) else kind(text)
    try:
        _config({**known, key: answer})
    except (UsageError, ConfigError) as error:
        raise click.BadParameter(str(error).replace(f"{ORIGIN}: ", "")) from None
    return answer


def _config(known: Mapping[str, Any]) -> Config:
    """The configuration of these answers; the rest has its defaults.

    Raises:
        UsageError: not one speed per worker.
        ConfigError: a rule between keys is broken.
    """
    speeds = known.get("speeds") or (1.0,) * known.get("workers", 2)
    n_workers = known.get("workers", len(speeds))
    if len(speeds) != n_workers:
        raise UsageError(f"got {len(speeds)} speeds for {n_workers} workers, expected one per worker")
    bounds, batch = BatchBounds(), known.get("batch", 64)
    choices: dict[str, Any] = {"policy": {"name": known.get("policy", "proportional")}}
    config = Config(
        cluster=Cluster(workers=tuple(WorkerSection(batch=batch, speed=speed) for speed in speeds)),
        batch=BatchBounds(min=min(bounds.min, max(1, batch // ROOM)), max=max(bounds.max, batch * ROOM)),
        comm=known.get("comm", "byteps"),
        command=known.get("command", ()),
        **choices,
    )
    return check_rules(config, ORIGIN)


def annotated(config: Config) -> str:
    """YAML text with the keys that matter first and their descriptions; `load_config` makes an equal Config of it."""
    describe_keys()
    return "\n".join(_lines(config)) + "\n"


def _lines(config: Config) -> Iterator[str]:
    before, behind = KEYS
    yield "# A cluster file: what `dynamix launch -c` starts. Keys that are left out have their defaults."
    for name in before:
        yield from _key(config, name)
    yield from _comment(Config, "cluster")
    yield "cluster:"
    for name in ("batch", "speed"):
        yield from _comment(WorkerSection, name, "  ", f"{name}: ")
    yield "  workers:"
    yield from (f"    - {{batch: {worker.batch}, speed: {_flow(worker.speed)}}}" for worker in config.cluster.workers)
    yield from _comment(Config, "batch")
    yield "batch:"
    for name in ("min", "max"):
        yield from _key(config.batch, name, "  ")
    for name in behind:
        yield from _key(config, name)
    yield from _comment(Config, "policy")
    yield "policy:"
    yield from _key(config.policy, "name", "  ")
    yield from _key(config, "command")


def _key(section: BaseModel, name: str, indent: str = "") -> Iterator[str]:
    """The comment and the line of a key; one without a value is commented out and shows an example."""
    yield from _comment(type(section), name, indent)
    value = section.model_dump(mode="json")[name]
    if value in (None, []):
        examples = type(section).model_fields[name].examples
        yield f"{indent}# {name}: {_flow(examples[0]) if examples else ''}".rstrip()
    else:
        yield f"{indent}{name}: {_flow(value)}"


def _flow(value: Any) -> str:
    """A value as YAML in one line."""
    return yaml.dump(value, Dumper=Dumper, default_flow_style=True, width=10**6).removesuffix("...\n").strip()


def _comment(model: type[BaseModel], name: str, indent: str = "", lead: str = "") -> Iterator[str]:
    """What the schema says about a field; an empty line stands before a key of the top level."""
    if not indent:
        yield ""
    for paragraph in (lead + (model.model_fields[name].description or "")).split("\n\n"):
        for line in textwrap.wrap(paragraph.strip(), WIDTH - len(indent) - 2, break_on_hyphens=False):
            yield f"{indent}# {line}"
