"""What goes into a build: sources, edits, replacement headers, settings. Its digest is the cache key."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from dynamix_ps.byteps_build import cpu_level, source
from dynamix_ps.byteps_build.edits import Variant, apply_edits, for_variant
from dynamix_ps.byteps_build.edits.toolchain import FOR_OTHER_HOSTS
from dynamix_ps.byteps_build.toolchain import Toolchain

HERE = Path(__file__).parent
ADDED = (  # files added to the BytePS sources, and their paths there
    (HERE / "sources" / "pre_setup_local.py", "pre_setup_local.py"),
    (HERE.parent / "numpy_names.py", "numpy_names.py"),
    (HERE.parent / "numpy_names.py", "byteps/mxnet/numpy_names.py"),
)
MARKER = "dynamix_build.json"  # inside the installed package `byteps`


@dataclass(frozen=True, slots=True)
class Plugin:
    """The part of BytePS for one framework, and the variables that make its setup.py build only that part.

    Each plugin is a separate build, because C++ libraries with different ABIs cannot be linked: torch has the new ABI,
    MXNet the old one. One wheel contains the results of all builds; the server does not depend on a framework and comes
    from the first build.
    """

    name: str
    env: tuple[tuple[str, str], ...]
    compiler_flags: str = ""


TORCH = Plugin(
    "torch", (("BYTEPS_WITH_PYTORCH", "1"), ("BYTEPS_WITHOUT_MXNET", "1"), ("BYTEPS_WITHOUT_TENSORFLOW", "1"))
)
_OLD_ABI = "-D_GLIBCXX_USE_CXX11_ABI=0"
MXNET = Plugin(
    "mxnet",
    (
        ("BYTEPS_WITH_MXNET", "1"),
        ("BYTEPS_WITHOUT_PYTORCH", "1"),
        ("BYTEPS_WITHOUT_TENSORFLOW", "1"),
        ("DYNAMIX_WITHOUT_SERVER", "1"),
        ("ADD_CFLAGS", _OLD_ABI),  # for ps-lite
    ),
    f"{_OLD_ABI} -include memory -include thread",  # the sources do not include these headers
)


def plugins_of(variant: Variant, toolchain: Toolchain, cuda: bool) -> tuple[Plugin, ...]:
    """What is built here: for torch, and for MXNet where that is installed (not with CUDA, which its package lacks)."""
    return (TORCH, MXNET) if toolchain.mxnet and variant == "ours" and not cuda else (TORCH,)


def sources_digest(variant: Variant) -> str:
    """Digest of what this version of the package builds BytePS from, whatever builds it."""
    headers = sorted(HERE.glob("headers/**/*.h"))
    parts = {
        "source": source.SHA256,
        "edits": [asdict(edit) for edit in for_variant(variant)],
        "files": {
            name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path, name in [*((path, str(path.relative_to(HERE))) for path in headers), *ADDED]
        },
    }
    return _digest(parts)


def _digest(parts: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One kind of build. `cuda_home` and `nccl_home` are empty for a build without a GPU.

    `for_other_hosts`: for x86-64-v3, and checks the CPU when it is imported; else for the CPU of this machine.
    """

    variant: Variant
    toolchain: Toolchain
    plugins: tuple[Plugin, ...] = (TORCH,)
    cuda_home: str = ""
    nccl_home: str = ""
    for_other_hosts: bool = False

    @property
    def cuda(self) -> bool:
        return bool(self.cuda_home)

    @property
    def key(self) -> str:
        """Digest of everything that determines the content of the wheel."""
        parts: dict[str, object] = {
            "sources": sources_digest(self.variant),
            "plugins": [asdict(plugin) for plugin in self.plugins],
            "toolchain": self.toolchain.describe(),
            "variant": self.variant,
            "cuda": [self.cuda_home, self.nccl_home],
        }
        if self.for_other_hosts:
            parts["for other hosts"] = [asdict(FOR_OTHER_HOSTS), _cpu_check()]
        return _digest(parts)

    def marker(self) -> dict[str, object]:
        """Description of the build, stored in the installed package."""
        return {
            "key": self.key,
            "sources": sources_digest(self.variant),
            "version": source.VERSION,
            "variant": self.variant,
            "plugins": [plugin.name for plugin in self.plugins],
            "cuda": self.cuda,
            "toolchain": self.toolchain.describe(),
            "edits": sorted({edit.why for edit in for_variant(self.variant)}),
        }

    def prepare(self, tree: Path) -> None:
        """Edit the unpacked source package in `tree` and add files to it. Raises BuildError, see apply_edits."""
        apply_edits(tree, for_variant(self.variant))
        for path, name in ADDED:
            (tree / name).write_bytes(path.read_bytes())
        if self.for_other_hosts:
            apply_edits(tree, [FOR_OTHER_HOSTS])
            (tree / "byteps" / "__init__.py").write_text(_cpu_check(), encoding="utf-8")
        (tree / "byteps" / MARKER).write_text(json.dumps(self.marker(), indent=1), encoding="utf-8")

    def environment(self, plugin: Plugin, home: Path, jobs: int) -> dict[str, str]:
        """Environment for the build of one plugin. `home` is the folder that `make_home` fills."""
        own = {
            "DYNAMIX_BUILD_JOBS": str(jobs),
            "CI": "true",  # without it the build calls make -j without a limit
            "CXXFLAGS": f"-DNDEBUG -fwrapv {plugin.compiler_flags}",  # replaces Python's flags: no debug information
            # the variant with ZeroMQ uses the copy inside the package instead of a download
            "WGET": "cp -t .",
            "ZMQ_URL": "../../zeromq-4.1.4.tar.gz",
            "BYTEPS_CUDA_HOME": self.cuda_home or str(home),
            "BYTEPS_NCCL_HOME": str(home),
            "BYTEPS_NCCL_LINK": "SHARED" if self.cuda else "STATIC",
        }
        if self.cuda:
            own["CUDA_HOME"] = self.cuda_home
        return {**os.environ, **own, **dict(plugin.env)}

    def make_home(self, home: Path) -> None:
        """Put headers and libraries into one folder, where BytePS's setup.py looks for NCCL and CUDA."""
        (home / "lib").mkdir(parents=True)
        include = home / "include"
        include.mkdir()
        _link_all(HERE / "headers" / "torch", include)
        if self.cuda:
            _link_all(HERE / "headers" / "torch_cuda", include)
            _link_all(Path(self.cuda_home) / "include" / "cccl", include, "nv")  # since CUDA 13; only nvcc looks there
            nccl = Path(self.nccl_home)
            _link_all(nccl / "include", include, "nccl*")
            library = next(path for path in sorted(nccl.glob("lib*/libnccl.so*")))
            (home / "lib" / "libnccl.so").symlink_to(library)
            return
        _link_all(HERE / "headers" / "cuda_stand_in", include)
        for name in ("libcudart.a", "libnccl_static.a"):
            (home / "lib" / name).write_bytes(b"!<arch>\n")  # an archive without members


def _cpu_check() -> str:
    """Of a wheel for other hosts: what `import byteps` runs first."""
    return Path(cpu_level.__file__).read_text(encoding="utf-8") + cpu_level.CALL


def _link_all(source_folder: Path, folder: Path, pattern: str = "*") -> None:
    for path in source_folder.glob(pattern):
        (folder / path.name).symlink_to(path)
