import re
from pathlib import Path

import pytest
import torch

from benchmarks.suite import workloads
from benchmarks.suite.workloads import Workload, load_workload, load_workloads
from benchmarks.workloads import models, train
from benchmarks.workloads.arguments import parse_arguments
from dynamix_ps.errors import ConfigError

SHAPES = {"fashion-mnist": (1, 28, 28), "cifar-10": (3, 32, 32), "digits": (1, 28, 28), "text": (64,)}
SHIPPED = load_workloads()
KINDS = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}


def test_every_kind_of_model_and_all_optimizers_take_part() -> None:
    expected = {"fashion-cnn", "fashion-cnn-quick", "fashion-cnn-short", "fashion-cnn-ring", "fashion-cnn-mxnet"}
    expected |= {"fashion-cnn-adam", "cifar-vgg11", "cifar-resnet", "cifar-transformer", "digits-mlp", "text-gpt"}
    expected |= {"fashion-cnn-averaged", "fashion-cnn-demo"}
    assert expected == set(SHIPPED)
    assert {one.optimizer for one in SHIPPED.values()} == {"sgd", "adam", "adamw"}


@pytest.mark.parametrize("name", SHIPPED)
def test_model_fits_data(name: str) -> None:
    workload = load_workload(name)
    model = models.make_model(workload.model, SHAPES[workload.data], 10)
    assert models.count_parameters(model) > 0


@pytest.mark.parametrize("name", SHIPPED)
def test_script_understands_the_command(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load_workload(name)
    python, module, script, *options = workload.command
    wanted = train.__name__ + ("_mxnet" if workload.framework == "mxnet" else "")
    assert (python, module, script) == ("python", "-m", wanted)
    monkeypatch.setattr("sys.argv", ["train", *options, "--seed", "7"])
    known = models.MODELS if workload.framework == "torch" else workloads.MXNET_MODELS
    args = parse_arguments("", workload.framework, known)
    assert (args.data, args.model, args.epochs, args.seed) == (workload.data, workload.model, workload.epochs, 7)
    assert (args.most_epochs, args.target) == (workload.most_epochs or workload.epochs, workload.thresholds[-1])
    assert (args.lr, args.eval_samples) == (workload.lr[workload.optimizer], workload.eval_samples)
    assert (args.metric, args.schedule) == (workload.metric, workload.schedule)
    assert getattr(args, "ema_decay", None) == workload.ema_decay
    assert type(train.make_optimizer(torch.nn.Linear(1, 1), args)) is KINDS[workload.optimizer]


def test_mixed_precision_is_asked_for_by_the_command_alone_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = load_workload("text-gpt")
    assert "--autocast" not in workload.command
    options = workload.model_copy(update={"autocast": "bf16"}).command[3:]
    monkeypatch.setattr("sys.argv", ["train", *options])
    assert parse_arguments("", "torch", models.MODELS).autocast == "bf16"


@pytest.mark.parametrize("name", SHIPPED)
def test_there_is_enough_to_see_and_to_decide(name: str) -> None:
    workload = load_workload(name)
    samples = workload.epochs * workload.train_samples
    assert samples / workload.eval_samples >= 15  # points of a curve
    assert samples / (3 * workload.batch * workload.window) >= 30  # decisions of three workers
    assert workload.min <= 32 and workload.max >= 256  # a grid tunes static within


def test_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match=r"no workload 'fashion'; there are fashion-cnn, "):
        load_workload("fashion")


def changed(tmp_path: Path, old: str, new: str) -> Path:
    text = workloads.FILE.read_text()
    assert re.search(old, text)
    file = tmp_path / "workloads.yaml"
    file.write_text(re.sub(old, new, text, count=1))
    return file


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("    model: cnn", "    model: cmm", r"\.model: must be one of cifar-cnn, cnn, .* \(got cmm\)"),
        ("    framework: mxnet", "    comm: gloo\n    framework: mxnet", r"comm: must be byteps for mxnet"),
        ("    framework: mxnet", "    ema_decay: 0.9\n    framework: mxnet", r"ema_decay: must be left out: averaged"),
        ("    framework: mxnet", "    autocast: bf16\n    framework: mxnet", r"autocast: must be left out: mixed"),
        ("    batch: 64", "    batch: 8", r"\.batch: must lie within 16\.\.512 \(got 8\)"),
        ("    batch: 64", "    unit: tokens\n    batch: 64", r"\.unit: must be samples for fashion-mnist"),
        (r"thresholds: \[0\.\d+", "thresholds: [0.99", r"\.thresholds: must grow"),
        (r"thresholds: \[0\.80, 0\.85, 0\.88", "thresholds: [0.8, 85", r"\.thresholds: must be accuracies below 1"),
        (
            r"    thresholds: \[0\.8",
            "    metric: bpb\n    thresholds: [0.8",
            r"\.metric: must be accuracy or loss for",
        ),
        (r"    thresholds: ", "    metric: loss\n    thresholds: ", r"\.thresholds: must fall"),
        (
            "    epochs: 3",
            "    epochs: 3\n    most_epochs: 4\n    schedule: cosine",
            r"\.schedule: must be constant",
        ),
        ("    optimizer: sgd", "    optimizer: adamw", r"\.lr: must have a rate of adamw"),
        (
            "    optimizer: sgd",
            "    framework: mxnet\n    optimizer: adamw",
            r"\.optimizer: must be one of sgd, adam for mxnet",
        ),
        (r"eval_samples: \d+", "eval_samples: 1000000", r"\.eval_samples: must not exceed the 180000 samples"),
        ("    epochs: 3", "    epochs: 3\n    most_epochs: 2", r"\.most_epochs: must be 3, .*, or more \(got 2"),
        ("    model: cnn", "    modle: cnn", r"workloads\.fashion-cnn\.modle: .*did you mean 'model'"),
        ("    data: fashion-mnist", "    data: mnist", r"workloads\.fashion-cnn\.data: "),
        ("sgd: ", "sgd: -", r"workloads\.fashion-cnn\.lr\.sgd: "),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path: Path, old: str, new: str, message: str) -> None:
    file = changed(tmp_path, old, new)
    with pytest.raises(ConfigError, match=message) as caught:
        load_workloads(file)
    assert re.match(rf"{re.escape(str(file))}:\d+: workloads\.fashion-cnn", str(caught.value))


def test_another_optimizer_comes_with_its_rate() -> None:
    gpt = load_workload("text-gpt")
    other = gpt.model_copy(update={"lr": {**gpt.lr, "sgd": 0.25}}).with_optimizer("sgd")
    words = dict(zip(other.command[3::2], other.command[4::2], strict=True))
    assert (words["--optimizer"], words["--lr"]) == ("sgd", "0.25")
    with pytest.raises(ConfigError, match=r"no learning rate of adam is known for byte-level GPT"):
        gpt.with_optimizer("adam")


def test_command_holds_no_seed() -> None:
    assert all("--seed" not in one.command for one in SHIPPED.values() if isinstance(one, Workload))


def test_models_of_both_frameworks_are_known() -> None:
    pytest.importorskip("dynamix_ps.numpy_names")
    pytest.importorskip("mxnet", reason="MXNet was left out of this environment")
    from benchmarks.workloads import mxnet_models

    assert tuple(sorted(mxnet_models.MODELS)) == workloads.MXNET_MODELS
    for name in mxnet_models.MODELS:
        net = mxnet_models.make_model(name, (1, 28, 28), 10)
        net(__import__("mxnet").nd.zeros((2, 1, 28, 28)))
        parameters = sum(one.data().size for one in net.collect_params().values())
        assert parameters == models.count_parameters(models.make_model(name, (1, 28, 28), 10))
