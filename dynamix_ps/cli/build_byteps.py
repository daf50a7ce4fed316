"""`dynamix build-byteps`: download, build and install BytePS."""

from __future__ import annotations

import shutil
import signal
import sys
import tempfile
from pathlib import Path

import click

from dynamix_ps.errors import BuildError, UsageError


@click.command("build-byteps")
@click.option("--cuda", is_flag=True, help="Build against a real CUDA toolkit and NCCL.")
@click.option(
    "--variant",
    type=click.Choice(["ours", "stock"]),
    default="ours",
    show_default=True,
    help="stock: only the changes that the build needs, for comparison.",
)
@click.option(
    "--target",
    type=click.Path(file_okay=False, path_type=Path),
    help="Install into this folder instead of the environment.",
)
@click.option(
    "--wheel",
    "wheel_folder",
    type=click.Path(file_okay=False, path_type=Path),
    help="Put a wheel for other hosts into this folder, and install nothing.",
)
@click.option("--rebuild", is_flag=True, help="Build even if the cache has the wheel.")
def command(cuda: bool, variant: str, target: Path | None, wheel_folder: Path | None, rebuild: bool) -> None:
    """Build BytePS from its source package for this machine and install it.

    It is built for torch, and for MXNet where that is installed (not with --cuda, which MXNet's package lacks).
    The wheel is kept outside the repository in $DYNAMIX_CACHE, so the next build takes seconds.

    With --wheel it is built not for the CPU of this machine, but for x86-64-v3 (Core and Xeon since 2013, AMD since
    2015). Hosts with the same versions of Python and torch, and a C library that is not older, install it with pip.
    """
    from typing import cast

    from rich.console import Console

    from dynamix_ps.byteps_build.build import build_byteps
    from dynamix_ps.byteps_build.cpu_level import LEVEL, missing_flags
    from dynamix_ps.byteps_build.cuda import find_cuda, find_nccl
    from dynamix_ps.byteps_build.edits import Variant
    from dynamix_ps.byteps_build.progress import Progress
    from dynamix_ps.byteps_build.recipe import Recipe, plugins_of
    from dynamix_ps.byteps_build.toolchain import check

    if wheel_folder is not None and target is not None:
        raise UsageError("--wheel installs nothing, and --target says where to install; give one of them")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that its folder goes
    console = Console()
    toolchain = check()
    if wheel_folder is not None and (missing := missing_flags()):
        raise BuildError(f"--wheel builds for {LEVEL} and loads what it has built; this CPU lacks {', '.join(missing)}")
    recipe = Recipe(
        variant=cast(Variant, variant),
        toolchain=toolchain,
        plugins=plugins_of(cast(Variant, variant), toolchain, cuda),
        cuda_home=str(find_cuda()) if cuda else "",
        nccl_home=str(find_nccl()) if cuda else "",
        for_other_hosts=wheel_folder is not None,
    )
    progress = Progress(console)
    if wheel_folder is not None:
        with tempfile.TemporaryDirectory(prefix="dynamix-byteps-") as trial:
            wheel = build_byteps(recipe, progress, Path(trial), rebuild).wheel
        assert wheel is not None
        wheel_folder.mkdir(parents=True, exist_ok=True)
        file = shutil.copyfile(wheel, wheel_folder / wheel.name)
        progress.note(f"There, with {LEVEL} and torch {toolchain.torch}: pip install --force-reinstall {file}")
        return
    built = build_byteps(recipe, progress, target, rebuild)
    if not built.installed:
        console.print("BytePS is already installed, built from exactly these parts.", highlight=False)
        return
    origin = "taken from the cache" if built.cached else "built"
    console.print(f"BytePS {origin} and installed into {target or 'this environment'}.", highlight=False)
