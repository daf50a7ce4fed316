import re
from pathlib import Path

import pytest
import torch

from benchmarks.workloads import models, objective, train
from dynamix_ps.errors import UsageError

PARAMETERS = {  # with 10 classes, on the shape a model is made for
    "cnn": 215_370,
    "mlp": 17_418,
    "cifar-cnn": 188_810,
    "vgg11": 9_225_610,
    "vgg11-slim": 578_410,
    "vgg11-thin": 145_210,
    "resnet8": 308_650,
    "resnet8-thin": 78_042,
    "patch-transformer": 43_930,
    "gpt": 279_424,  # with 256 classes
    "gpt-small": 56_272,  # likewise
}
SHAPES = {name: (entry.shapes or ((1, 28, 28),))[0] for name, entry in models.MODELS.items()}


def classes_of(name: str) -> int:
    return 256 if name.startswith("gpt") else 10


def samples(shape: models.Shape, classes: int, number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets: images with their labels, or bytes with those that follow."""
    if len(shape) == 3:
        return torch.randn(number, *shape), torch.randint(classes, (number,))
    return torch.randint(classes, (number, *shape)), torch.randint(classes, (number, *shape))


@pytest.mark.parametrize("name", models.MODELS)
def test_sizes_are_those_of_the_description(name: str) -> None:
    assert models.count_parameters(models.make_model(name, SHAPES[name], classes_of(name))) == PARAMETERS[name]
    assert f"{PARAMETERS[name]:,}" in models.MODELS[name].about


@pytest.mark.parametrize(("name", "shape"), [*SHAPES.items(), ("mlp", (3, 32, 32))])
def test_gradients_reach_every_parameter_and_lie_flat(name: str, shape: models.Shape) -> None:
    model = models.make_model(name, shape, 7)
    inputs, targets = samples(shape, 7, 5)
    logits = model(inputs)
    assert logits.shape == (*targets.shape, 7)
    logits.square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
        assert parameter.grad.is_contiguous()


def gradients(model: torch.nn.Module, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    model.zero_grad()
    objective.mean_loss(model(inputs), targets).backward()
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


@pytest.mark.slow
@pytest.mark.parametrize("name", models.MODELS)
def test_split_of_a_batch_changes_no_gradient(name: str) -> None:
    torch.manual_seed(0)
    model = models.make_model(name, SHAPES[name], 10).double()
    inputs, targets = samples(SHAPES[name], 10, 8)
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    whole = gradients(model, inputs, targets)
    parts = [gradients(model, inputs[rows], targets[rows]) * n / 8 for rows, n in ((slice(3), 3), (slice(3, 8), 5))]
    torch.testing.assert_close(sum(parts), whole)


@pytest.mark.parametrize("name", models.MODELS)
def test_training_and_evaluation_compute_the_same(name: str) -> None:
    model = models.make_model(name, SHAPES[name], 10)
    inputs, _ = samples(SHAPES[name], 10, 3)
    training = model(inputs)
    torch.testing.assert_close(model.eval()(inputs), training)


@pytest.mark.parametrize("name", ["vgg11", "vgg11-slim"])
def test_depth_does_not_extinguish_the_signal(name: str) -> None:
    """With the usual initial weights logits would differ by 0.0001 from image to image."""
    torch.manual_seed(0)
    logits = models.make_model(name, SHAPES[name], 10)(torch.randn(16, *SHAPES[name]))
    assert logits.std(0).mean() > 0.05


def test_transformer_sees_where_a_patch_is() -> None:
    torch.manual_seed(0)
    model = models.make_model("patch-transformer", (3, 32, 32), 10)
    inputs = torch.randn(2, 3, 32, 32)
    assert not torch.allclose(model(inputs), model(inputs.roll(4, dims=-1)), atol=1e-4)


def test_gpt_sees_what_comes_before_a_byte_and_nothing_after_it() -> None:
    torch.manual_seed(0)
    model = models.make_model("gpt", SHAPES["gpt"], 256)
    codes, _ = samples(SHAPES["gpt"], 256, 2)
    changed = codes.clone()
    changed[:, 40] = (changed[:, 40] + 1) % 256
    before, after = model(codes), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-4)


def test_channels_last_changes_no_number() -> None:
    torch.manual_seed(0)
    model = models.make_model("cnn", (1, 28, 28), 10)
    inputs = torch.randn(3, 1, 28, 28)
    without = torch.nn.Sequential(*list(model.children())[1:])
    torch.testing.assert_close(model(inputs), without(inputs))


def test_unknown_and_unfitting_models_name_what_fits() -> None:
    with pytest.raises(UsageError, match=r"'cn'.*cifar-cnn, cnn, gpt, gpt-small, mlp, "):
        models.make_model("cn", (1, 28, 28), 10)
    with pytest.raises(
        UsageError, match=r"1x28x28, got 3x32x32.*: cifar-cnn, mlp, patch-transformer, resnet8, resnet8-thin, vgg11"
    ):
        models.make_model("cnn", (3, 32, 32), 10)
    with pytest.raises(UsageError, match=r"'mlp' takes inputs of images, got 64; models that fit: gpt, gpt-small$"):
        models.make_model("mlp", (64,), 256)


def test_example_script_needs_five_lines() -> None:
    script = Path(train.__file__).read_text()
    assert sorted(re.findall(r"# (\d)", script)) == ["1", "2", "3", "4", "5"]
