"""What scripts import: `dynamix_ps.torch` and `dynamix_ps.mxnet`, or `worker_hooks.torch` and `worker_hooks.mxnet`."""

from __future__ import annotations

import importlib
import importlib.util

import pytest


@pytest.mark.parametrize(
    ("framework", "names"),
    [("torch", ["Run", "attach", "before_all", "shards"]), ("mxnet", ["Run", "attach", "before_all"])],
)
def test_both_names_are_the_same_hook(framework: str, names: list[str]) -> None:
    if importlib.util.find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")
    face = importlib.import_module(f"dynamix_ps.{framework}")
    hook = importlib.import_module(f"worker_hooks.{framework}")
    assert sorted(face.__all__) == sorted(hook.__all__) == names
    assert all(getattr(face, name) is getattr(hook, name) for name in names)
