"""`dynamix build-byteps`: download, build and install BytePS."""

from __future__ import annotations

from pathlib import Path

import click


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
@click.option("--rebuild", is_flag=True, help="Build even if the cache has the wheel.")
def command(cuda: bool, variant: str, target: Path | None, rebuild: bool) -> None:
    """Build BytePS from its source package for this machine and install it.

    It is built for torch, and for MXNet where that is installed (not with --cuda, which MXNet's package lacks).
    The wheel is kept outside the repository in $DYNAMIX_CACHE, so the next build takes seconds.
    """
    from typing import cast

    from rich.console import Console

    from dynamix_ps.byteps_build.build import build_byteps
    from dynamix_ps.byteps_build.cuda import find_cuda, find_nccl
    from dynamix_ps.byteps_build.edits import Variant
    from dynamix_ps.byteps_build.progress import Progress
    from dynamix_ps.byteps_build.recipe import MXNET, TORCH, Recipe
    from dynamix_ps.byteps_build.toolchain import check

    console = Console()
    toolchain = check()
    recipe = Recipe(
        variant=cast(Variant, variant),
        toolchain=toolchain,
        plugins=(TORCH, MXNET) if toolchain.mxnet and variant == "ours" and not cuda else (TORCH,),
        cuda_home=str(find_cuda()) if cuda else "",
        nccl_home=str(find_nccl()) if cuda else "",
    )
    built = build_byteps(recipe, Progress(console), target, rebuild)
    if not built.installed:
        console.print("BytePS is already installed, built from exactly these parts.", highlight=False)
        return
    origin = "taken from the cache" if built.cached else "built"
    console.print(f"BytePS {origin} and installed into {target or 'this environment'}.", highlight=False)
