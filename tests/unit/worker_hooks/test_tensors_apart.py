"""A state of torch goes to another worker bit for bit, from memory to memory."""

from __future__ import annotations

import io
import subprocess
import sys
from collections import OrderedDict
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from dynamix_ps.errors import CheckpointError, PeerLostError  # noqa: E402
from dynamix_ps.messages import Plan  # noqa: E402
from worker_hooks.sampling.sampler import Cursor  # noqa: E402
from worker_hooks.saved.checkpoint import Position  # noqa: E402
from worker_hooks.torch.state import tensors_apart  # noqa: E402
from worker_hooks.torch.state.whole import TorchState  # noqa: E402

PLACE = Position(7, Cursor(1, 3), Plan(2, (4, 4)), 0, 20, registered={"scheduler": {"last_epoch": 7}})


class Pieces(io.RawIOBase):
    """What was written: all of it, and where each piece was."""

    def __init__(self) -> None:
        self.whole = io.BytesIO()
        self.addresses: list[int] = []

    def writable(self) -> bool:
        return True

    def write(self, piece: Any) -> int:
        view = memoryview(piece)
        if view.nbytes and not view.readonly:
            self.addresses.append(torch.frombuffer(view, dtype=torch.uint8).data_ptr())
        return self.whole.write(view)


def travelled(state: Any) -> Any:
    out = io.BytesIO()
    tensors_apart.write(state, out)
    out.seek(0)
    found = tensors_apart.read(out)
    assert out.read() == b"", "read to its end"
    return found


TENSORS = {
    "float32": torch.randn(3, 5),
    "float64": torch.randn(7, dtype=torch.float64),
    "bfloat16": torch.randn(3, 3).bfloat16(),
    "float16": torch.randn(3).half(),
    "int64": torch.arange(9),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.randn(2, 2, dtype=torch.complex64),
    "conjugate": torch.randn(2, 2, dtype=torch.complex64).conj(),
    "number": torch.tensor(3.5),
    "empty": torch.empty(0, 4),
    "empty of whole numbers": torch.empty(0, dtype=torch.int8),
    "uint8": torch.arange(9, dtype=torch.uint8),
    "channels last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "transposed": torch.randn(3, 5).t(),
    "expanded": torch.randn(3, 1).expand(3, 4),
    "every other": torch.arange(10.0)[::2],
    "of parameter": torch.nn.Parameter(torch.randn(4)),
    "sparse": torch.eye(3).to_sparse(),
    "not a number": torch.tensor([float("nan"), -0.0, float("inf")]),
}


@pytest.mark.parametrize("name", TENSORS)
def test_every_tensor_arrives_bit_for_bit(name: str) -> None:
    tensor = TENSORS[name]
    found = travelled({"it": tensor})["it"]
    assert (type(found), found.dtype, found.shape) == (type(tensor), tensor.dtype, tensor.shape)
    if name == "sparse":
        found, tensor = found.to_dense(), tensor.to_dense()
    one, other = (t.detach().contiguous().resolve_conj().reshape(-1).view(torch.uint8) for t in (found, tensor))
    assert torch.equal(one, other)
    if name in ("channels last", "transposed"):
        assert found.stride() == tensor.stride(), "in the same order in memory, so that computing is as fast"


def test_only_what_a_tensor_shows_of_its_memory_is_sent() -> None:
    out = io.BytesIO()
    tensors_apart.write([torch.zeros(1 << 20)[:4]], out)
    assert out.tell() < 10_000


def test_bytes_are_sent_from_where_they_are() -> None:
    tensors = [torch.randn(1000), torch.randn(10, 10)]
    out = Pieces()
    tensors_apart.write({"all": tensors}, out)  # type: ignore[arg-type]
    assert out.addresses[-2:] == [tensor.data_ptr() for tensor in tensors]


def test_what_shares_its_memory_is_sent_once_and_shares_it_again() -> None:
    tied = torch.randn(100_000)
    out = io.BytesIO()
    tensors_apart.write([tied, tied.detach(), tied[1:]], out)
    assert out.tell() < 2.1 * tied.nbytes
    out.seek(0)
    first, second, third = tensors_apart.read(out)
    assert first is second and torch.equal(first[1:], third)


def test_reading_imports_next_to_nothing() -> None:
    """The others wait meanwhile, or keep their sums. For a tensor like one without data, torch imports 500 modules."""
    out = io.BytesIO()
    tensors_apart.write({"all": TENSORS}, out)
    code = (
        "import io, sys\n"
        "from worker_hooks.torch.state import tensors_apart\n"
        "before = set(sys.modules)\n"
        "tensors_apart.read(io.BytesIO(sys.stdin.buffer.read()))\n"
        "print(sys.modules.keys() - before)\n"
        "assert len(sys.modules.keys() - before) < 10"
    )
    call = [sys.executable, "-c", code]
    done = subprocess.run(call, input=out.getvalue(), capture_output=True, timeout=100, check=False)
    assert done.returncode == 0, f"{done.stdout.decode()[:1000]}{done.stderr.decode()}"


def test_what_is_no_tensor_stays_as_it_is() -> None:
    state = OrderedDict(a=[1, ("x", None, 2.5)], b={3: True})
    state._metadata = {"": {"version": 2}}  # type: ignore[attr-defined]  # as models have it
    found = travelled(state)
    assert found == state and type(found) is OrderedDict
    assert found._metadata == {"": {"version": 2}}
    assert isinstance(found["a"][1], tuple)


def trained(steps: int) -> tuple[Any, Any]:
    """A model with batch norm and tied weights, after so many steps of Adam."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6))
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        step(model, optimizer)
    return model, optimizer


def step(model: Any, optimizer: Any) -> None:
    optimizer.zero_grad()
    model(torch.linspace(-1, 1, 24).reshape(4, 6)).square().mean().backward()
    optimizer.step()


def test_a_training_goes_on_bit_for_bit_where_it_arrives() -> None:
    model, optimizer = trained(5)
    before = [p.clone() for p in model.state_dict().values()]
    out = io.BytesIO()
    TorchState([model], [optimizer]).send(PLACE, out)
    assert all(map(torch.equal, before, model.state_dict().values())), "it stays as it is where it comes from"
    out.seek(0)
    other, others_optimizer = trained(0)
    assert TorchState([other], [others_optimizer]).receive(out) == PLACE
    for _ in range(3):
        step(model, optimizer)
        step(other, others_optimizer)
    assert all(map(torch.equal, model.state_dict().values(), other.state_dict().values()))


def test_what_breaks_off_changes_nothing() -> None:
    model, optimizer = trained(5)
    out = io.BytesIO()
    TorchState([model], [optimizer]).send(PLACE, out)
    other, others_optimizer = trained(0)
    before = [p.clone() for p in other.state_dict().values()]
    for length in (4, 100, out.tell() - 1):
        with pytest.raises(PeerLostError, match="too early"):
            TorchState([other], [others_optimizer]).receive(io.BytesIO(out.getvalue()[:length]))
    assert all(map(torch.equal, before, other.state_dict().values())) and not others_optimizer.state


def test_the_state_of_another_model_is_refused() -> None:
    model, optimizer = trained(1)
    out = io.BytesIO()
    TorchState([model], [optimizer]).send(PLACE, out)
    out.seek(0)
    other = torch.nn.Linear(6, 6)
    with pytest.raises(CheckpointError, match="not of this model"):
        TorchState([other], [torch.optim.Adam(other.parameters())]).receive(out)
