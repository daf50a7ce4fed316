"""What goes into a build: sources, edits, stand-in headers, settings. Its digest is the cache key."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamix_ps.byteps_build import source
from dynamix_ps.byteps_build.edits import Variant, apply_edits, for_variant
from dynamix_ps.byteps_build.toolchain import Toolchain

HERE = Path(__file__).parent
MARKER = "dynamix_build.json"  # inside the installed package `byteps`


@dataclass(frozen=True, slots=True)
class Plugin:
    """A framework BytePS is built for, and the variables by which its setup.py builds that one and no other.

    This is the place of the MXNet plugin. Its wheel uses the old C++ ABI, torch the new one, so it takes a
    second build of everything with `-D_GLIBCXX_USE_CXX11_ABI=0`, whose `byteps/mxnet/c_lib` then joins the
    same wheel.
    """

    name: str
    env: tuple[tuple[str, str], ...]


TORCH = Plugin(
    "torch", (("BYTEPS_WITH_PYTORCH", "1"), ("BYTEPS_WITHOUT_MXNET", "1"), ("BYTEPS_WITHOUT_TENSORFLOW", "1"))
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of build. `cuda_home` and `nccl_home` are empty for a build without a GPU."""

    variant: Variant
    toolchain: Toolchain
    plugin: Plugin = TORCH
    cuda_home: str = ""
    nccl_home: str = ""

    @property
    def cuda(self) -> bool:
        return bool(self.cuda_home)

    @property
    def key(self) -> str:
        """Digest of everything that decides what the wheel contains."""
        parts = {
            "source": source.SHA256,
            "edits": [asdict(edit) for edit in for_variant(self.variant)],
            "files": {
                str(path.relative_to(HERE)): hashlib.sha256(path.read_bytes()).hexdigest()
                for path in sorted([*HERE.glob("headers/**/*.h"), HERE / "sources" / "pre_setup_local.py"])
            },
            "plugin": asdict(self.plugin),
            "toolchain": self.toolchain.describe(),
            "variant": self.variant,
            "cuda": [self.cuda_home, self.nccl_home],
        }
        return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]

    def marker(self) -> dict[str, object]:
        """What the installed package says about itself."""
        return {
            "key": self.key,
            "version": source.VERSION,
            "variant": self.variant,
            "plugins": [self.plugin.name],
            "cuda": self.cuda,
            "toolchain": self.toolchain.describe(),
            "edits": sorted({edit.why for edit in for_variant(self.variant)}),
        }

    def prepare(self, tree: Path) -> None:
        """Turn the unpacked source package in `tree` into the one to build. Raises BuildError (see apply_edits)."""
        apply_edits(tree, for_variant(self.variant))
        (tree / "pre_setup_local.py").write_bytes((HERE / "sources" / "pre_setup_local.py").read_bytes())
        (tree / "byteps" / MARKER).write_text(json.dumps(self.marker(), indent=1), encoding="utf-8")

    def environment(self, home: Path, jobs: int) -> dict[str, str]:
        """Variables of the build. `home` is a folder for the stand-ins (`make_home`)."""
        own = {
            "DYNAMIX_BUILD_JOBS": str(jobs),
            "CI": "true",  # or it calls make with -j and no limit
            "CXXFLAGS": "-DNDEBUG -fwrapv",  # in place of Python's own: no debug information
            # the variant with ZeroMQ: use the copy inside the package in place of a download
            "WGET": "cp -t .",
            "ZMQ_URL": "../../zeromq-4.1.4.tar.gz",
            "BYTEPS_CUDA_HOME": self.cuda_home or str(home),
            "BYTEPS_NCCL_HOME": str(home),
            "BYTEPS_NCCL_LINK": "SHARED" if self.cuda else "STATIC",
        }
        if self.cuda:
            own["CUDA_HOME"] = self.cuda_home
        return {**os.environ, **own, **dict(self.plugin.env)}

    def make_home(self, home: Path) -> None:
        """Headers and libraries under one folder, where BytePS's setup.py looks for NCCL (and CUDA)."""
        (home / "lib").mkdir(parents=True)
        include = home / "include"
        include.mkdir()
        _link_all(HERE / "headers" / "torch", include)
        if self.cuda:
            _link_all(HERE / "headers" / "torch_cuda", include)
            nccl = Path(self.nccl_home)
            _link_all(nccl / "include", include, "nccl*")
            library = next(path for path in sorted(nccl.glob("lib*/libnccl.so*")))
            (home / "lib" / "libnccl.so").symlink_to(library)
            return
        _link_all(HERE / "headers" / "cuda_stand_in", include)
        for name in ("libcudart.a", "libnccl_static.a"):
            (home / "lib" / name).write_bytes(b"!<arch>\n")  # an archive without members


def _link_all(source_folder: Path, folder: Path, pattern: str = "*") -> None:
    for path in source_folder.glob(pattern):
        (folder / path.name).symlink_to(path)
