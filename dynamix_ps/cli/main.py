"""`dynamix`: one sub-command per module of this package, imported only when it is used; plugins may add more."""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from dynamix_ps.exit_codes import MEANINGS, exit_code_of
from dynamix_ps.packages import installed_version
from dynamix_ps.parts import load

# name: (module with `command`, which may be missing; one line for --help)
_OURS = {
    "demo": ("dynamix_ps.cli.demo", "Train a small network on three uneven workers of this machine."),
    "examples": ("dynamix_ps.cli.examples", "List the scripts of one page that come with this package, or copy one."),
    "init": ("dynamix_ps.cli.init", "Write a cluster file with a comment at every key."),
    "launch": ("dynamix_ps.cli.launch", "Run all roles of a cluster file on its hosts."),
    "leave": ("dynamix_ps.cli.leave", "Let a worker leave a run that goes on."),
    "join": ("dynamix_ps.cli.join", "Let a worker that is gone come back to a run that goes on."),
    "sbatch": ("dynamix_ps.cli.sbatch", "Submit a launch as a batch job of Slurm."),
    "k8s": ("dynamix_ps.cli.k8s", "Write the manifests that run a job in Kubernetes."),
    "agent": ("dynamix_ps.cli.agent", "Wait for the launcher of a job, in a pod."),
    "runs": ("dynamix_ps.cli.records.runs", "List the runs of a folder."),
    "ui": ("dynamix_ps.cli.records.ui", "Show the runs of a folder in a browser, live."),
    "report": ("dynamix_ps.cli.records.report", "Write summary, tables, plots and page of a run, or compare two."),
    "doctor": ("dynamix_ps.cli.doctor", "Check what this machine has, and say how to get what is missing."),
    "policy": ("dynamix_ps.cli.policy", "Train a policy in the simulator, compare policies, inspect their files."),
    "sim": ("dynamix_ps.cli.sim", "Make the simulator resemble a recorded run."),
    "rehearse": ("dynamix_ps.cli.rehearse", "Compare policies with your own script, in simulated time."),
    "replay": ("dynamix_ps.cli.replay", "Show what another policy would have decided in a recorded run."),
    "probe": ("dynamix_ps.cli.probe", "Show who talks to whom on this host, as the kernel counts it."),
    "certificates": ("dynamix_ps.cli.certificates", "Make certificates for hosts on which you start the roles."),
    "build-byteps": ("dynamix_ps.cli.build_byteps", "Build BytePS from its source package and install it."),
}

PLUGINS = "dynamix.commands"  # group of entry points: click commands that other packages add


# Start-up file of each shell, and the line to add to it; click writes the script.
_COMPLETION = {
    "~/.bashrc": 'eval "$(_DYNAMIX_COMPLETE=bash_source dynamix)"',
    "~/.zshrc": 'eval "$(_DYNAMIX_COMPLETE=zsh_source dynamix)"',
    "~/.config/fish/config.fish": "_DYNAMIX_COMPLETE=fish_source dynamix | source",
}


def _plugins() -> dict[str, importlib.metadata.EntryPoint]:
    """Commands that other packages add, by name; only of packages that are there (`bench` lives in a checkout)."""
    points = importlib.metadata.entry_points(group=PLUGINS)
    return {point.name: point for point in points if importlib.util.find_spec(point.module.partition(".")[0])}


def _lines() -> list[tuple[str, str]]:
    """(command, one line about it) of all commands; imports none of them."""
    ours = [(name, line) for name, (_, line) in _OURS.items()]
    return ours + [(name, f"Of the package {point.module.partition('.')[0]}.") for name, point in _plugins().items()]


class _LazyGroup(click.Group):
    """Knows its commands by name; `dynamix --help` imports none of them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [*_OURS, *_plugins()]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in _OURS:
            command: click.Command = load(f"{_OURS[cmd_name][0]}:command")
            return command
        plugin = _plugins().get(cmd_name)
        return plugin.load() if plugin else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(_lines())

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), meaning) for code, meaning in MEANINGS.items()])
        with formatter.section("Completion with Tab: add this line to the file of your shell"):
            formatter.write_dl(list(_COMPLETION.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands from the table, not by importing each one as click does: the user waits for Tab."""
        commands = [CompletionItem(name, help=line) for name, line in _lines() if name.startswith(incomplete)]
        return commands + click.Command.shell_complete(self, ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        names = self.list_commands(ctx)
        if args and not ctx.resilient_parsing and args[0] not in names and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], names, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(names)}"
            ctx.fail(f"no command {args[0]!r}; {hint}")
        return super().resolve_command(ctx, args)


@click.group(cls=_LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(installed_version("dynamix-ps") or "from a checkout that is not installed", prog_name="dynamix")
def cli() -> None:
    """Distributed training on BytePS in which every worker has its own batch size, adapted while training runs."""


def main() -> int:
    """Entry point of the console script."""
    return exit_code_of(_run)


def _run() -> int:
    try:
        result: Any = cli.main(prog_name="dynamix", standalone_mode=False)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.Abort as error:
        raise KeyboardInterrupt from error
    except click.ClickException as error:
        error.show()
        return error.exit_code
    return result if isinstance(result, int) else 0


if __name__ == "__main__":
    sys.exit(main())
