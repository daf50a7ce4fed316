"""Packaging. Tool settings are in pyproject.toml."""

import re
import shutil
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
SHIPPED = ("examples/*.py", "examples/cluster.yaml", "docs/grafana/*.json")  # dynamix_ps/shipped.py finds them


def description() -> str:
    """The README without pictures and links, which lead nowhere outside of the checkout."""
    text = (here / "README.md").read_text(encoding="utf-8")
    return re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", re.sub(r"!\[[^\]]*\]\([^)]+\)\n+", "", text))


class BuildWithFiles(build_py):
    """Also copies the examples and the board into the package."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        for file in (file for pattern in SHIPPED for file in here.glob(pattern)):
            copy = Path(self.build_lib, "dynamix_ps", "shipped_files", file.relative_to(here))
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, copy)


setup(
    name="dynamix-ps",
    version=re.findall(r'^__version__ = "(.+)"$', (here / "dynamix_ps" / "__init__.py").read_text(), re.MULTILINE)[0],
    description="Every worker its own batch size, adapted while training runs, on BytePS",
    long_description=description(),
    long_description_content_type="text/markdown",
    author="The DYNAMIX on BytePS authors",
    license="Apache-2.0",
    license_files=["LICENSE"],
    keywords=["distributed training", "batch size", "data parallel", "parameter server", "BytePS", "PyTorch", "MXNet"],
    classifiers=[
        "Development Status :: 4 - Beta",
        "Environment :: Console",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (10, 11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: System :: Distributed Computing",
        "Typing :: Typed",
    ],
    platforms=["Linux"],
    python_requires=">=3.10",
    cmdclass={"build_py": BuildWithFiles},
    packages=find_packages(include=["dynamix_ps*", "server_hooks*", "worker_hooks*"]),
    package_dir={"": "."},  # so that an editable install of a checkout finds benchmarks/ too
    package_data={
        "": ["py.typed"],  # the types of all packages are for users too
        "dynamix_ps": [
            "byteps_build/headers/**/*",
            "byteps_build/sources/*",
            "rpc/*.proto",
            "rpc/*.pyi",
            "metrics/network/ebpf/headers/**/*",
            "metrics/network/ebpf/*.c",
            "policy/pretrained/*",
            "report/page/page.*",
            "sim/scenarios/*.yaml",
        ],
    },
    install_requires=[
        "click>=8.1",
        "grpcio>=1.80",
        "grpcio-health-checking>=1.80",
        "numpy>=1.25",
        "prometheus-client>=0.20",
        "protobuf>=6.31.1",
        "psutil>=5.9",
        "pydantic>=2.6",
        "pyroute2>=0.9.4",
        "pyyaml>=6.0",
        "rich>=13.7",
    ],
    extras_require={
        "torch": ["torch>=2.3", "setuptools>=68", "wheel"],  # the last two build BytePS's plugin
        "lightning": ["lightning>=2.6,<2.7"],  # each with torch
        "accelerate": ["accelerate>=1.15,<1.16"],
        "transformers": ["transformers>=5.24,<5.25", "accelerate>=1.15,<1.16"],
        "mxnet": ["mxnet>=1.9,<2", "numpy<2", "setuptools>=68", "wheel"],
        "plots": ["matplotlib>=3.8", "tensorboardX>=2.6"],
        "gpu": ["nvidia-ml-py>=12"],
        "ray": ["ray>=2.40"],  # launches on its clusters
        "sim": ["gymnasium>=1.0", "scipy>=1.11"],  # environments for other libraries; calibration
        "bench": ["markdown-it-py>=3.0", "matplotlib>=3.8", "scipy>=1.11"],  # report of `dynamix bench`
        "workloads": ["torch>=2.3", "scikit-learn>=1.4"],
        "docs": ["mkdocs-material>=9.5", "mkdocstrings[python]>=0.26"],
        "dev": [
            "grpcio-tools>=1.80",
            "hypothesis>=6.100",
            "import-linter>=2.1",
            "kubeflow-trainer-api>=2.3,<3",  # what Kubeflow Trainer and JobSet take, to validate manifests
            "kubernetes-validate>=1.37",  # the same of Kubernetes
            "mypy>=1.11",
            "pytest>=8.0",
            "pytest-timeout>=2.3",
            "pytest-xdist>=3.6",
            "ruff>=0.6",
            "stable-baselines3>=2.3",  # beside which benchmarks.parts.ppo_reference runs
            "types-PyYAML",
            "types-grpcio",
            "types-grpcio-health-checking",
            "types-protobuf",
            "types-psutil",
        ],
    },
    entry_points={
        "console_scripts": [
            "dynamix = dynamix_ps.cli.main:main",
            "dynamix-bpslaunch = dynamix_ps.cli.bpslaunch:main",
        ],
        "dynamix.commands": ["bench = benchmarks.cli:command"],  # found where benchmarks/ is: in a checkout
    },
)
