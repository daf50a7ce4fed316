import re
from pathlib import Path

import pytest
import torch

from benchmarks.workloads import models, train
from dynamix_ps.errors import UsageError


@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [("cnn", (1, 28, 28), 215_370), ("mlp", (1, 28, 28), 17_418), ("cifar-cnn", (3, 32, 32), 188_810)],
)
def test_sizes_are_those_of_the_description(name: str, shape: models.Shape, parameters: int) -> None:
    model = models.make_model(name, shape, 10)
    assert models.count_parameters(model) == parameters
    assert f"{parameters:,}" in models.MODELS[name].about


@pytest.mark.parametrize(("name", "shape"), [("cnn", (1, 28, 28)), ("mlp", (3, 32, 32)), ("cifar-cnn", (3, 32, 32))])
def test_gradients_reach_every_parameter_and_lie_flat(name: str, shape: models.Shape) -> None:
    model = models.make_model(name, shape, 7)
    logits = model(torch.randn(5, *shape))
    assert logits.shape == (5, 7)
    logits.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert parameter.grad.is_contiguous()


def test_channels_last_changes_no_number() -> None:
    torch.manual_seed(0)
    model = models.make_model("cnn", (1, 28, 28), 10)
    inputs = torch.randn(3, 1, 28, 28)
    without = torch.nn.Sequential(*list(model.children())[1:])
    torch.testing.assert_close(model(inputs), without(inputs))


def test_unknown_and_unfitting_models_name_what_fits() -> None:
    with pytest.raises(UsageError, match=r"'cn'.*cifar-cnn, cnn, mlp"):
        models.make_model("cn", (1, 28, 28), 10)
    with pytest.raises(UsageError, match=r"1x28x28, got 3x32x32.*: cifar-cnn, mlp"):
        models.make_model("cnn", (3, 32, 32), 10)


def test_example_script_needs_five_lines() -> None:
    script = Path(train.__file__).read_text()
    assert re.findall(r"# (\d)", script) == ["1", "2", "3", "4", "5"]
