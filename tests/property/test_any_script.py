"""Any small script on two and three workers is one process in plain torch, or ends with our error on all workers.

`pytest --hypothesis-profile=search tests/property` looks through 5,000 other scripts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, example, given, note, settings

from dynamix_ps.errors import PeerLostError, TrainingError
from tests.cases.harness import flat, in_double
from tests.cases.plain import plain_attach, put_together
from tests.forked import Worker
from tests.property.pool import Pool
from tests.property.script import Phase, Script, scripts, train

# For each number of workers.
EXAMPLES = {"search": 2500, "check": 20}.get(settings.get_current_profile_name() or "", 100)
any_script = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module", params=[2, 3])
def pool(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with Pool(request.param, tmp_path_factory.mktemp("pool")) as running:
        yield running


@pytest.mark.timeout(3600)
def test_any_script_is_one_process_or_an_error_on_all_workers(pool: Pool) -> None:
    @any_script
    @given(scripts(pool.size))
    @example(overflow_beside_a_frozen_layer(pool.size))
    @example(hook_on_a_layer_of_some_samples(pool.size))
    @example(ahead_beside_gradients_of_the_loop_before(pool.size))
    @example(ahead_with_losses_that_show_no_batch(pool.size))
    def check(script: Script) -> None:
        told = pool.run(script.as_dict())
        if isinstance(told[0], Worker):
            check_error(told)  # type: ignore[arg-type]
        else:
            check_equal(script, told)  # type: ignore[arg-type]

    check()


def check_error(ended: list[Worker]) -> None:
    """All ended with the same error of ours.

    Where a worker finds it by itself it may be gone while another one is still in the sum before: that one says so.
    And it names a parameter of its own then: another worker may have no gradient of this one.
    """
    errors = {line for worker in ended for line in worker.output.splitlines() if line.startswith("error: ")}
    own = r"(gradient of|hook of parameter|error: parameter) \S+"
    causes = {re.sub(own, r"\1", e) for e in errors if "another worker is gone" not in e}
    for worker in ended:
        note(worker.output)
    assert {worker.code for worker in ended} <= {TrainingError.exit_code, PeerLostError.exit_code}
    assert len(causes) == 1, errors
    note(f"refused: {causes}")


def check_equal(script: Script, told: list[dict[str, object]]) -> None:
    """All have the weights of one process that trained on their batches put together, NaN in the same places."""
    values = [one["values"] for one in told]
    assert all(one == values[0] for one in values), "the weights of the workers differ"
    recorded = put_together([one["recorded"] for one in told])  # type: ignore[misc]
    alone = in_double(lambda attach: train(script, attach), plain_attach(recorded))
    assert list(flat(values[0])) == pytest.approx(list(flat(alone)), rel=1e-5, abs=1e-5, nan_ok=True)


def overflow_beside_a_frozen_layer(workers: int) -> Script:
    """Clipping by a norm that is NaN breaks the frozen layer, whose optimizer no GradScaler stops: in torch too."""
    phase = Phase(
        iterations=3,
        two_optimizers=True,
        clip="norm",
        accumulation="batches_run",
        every=3,
        scaler=True,
        overflow=2,
        toggles=((1, 0),),
    )
    return Script(sizes=(12,) * workers, model="deep", phases=(phase,))


def hook_on_a_layer_of_some_samples(workers: int) -> Script:
    """Gradients of several batches add up, and backward reaches the layer on some of the workers alone."""
    usual = Phase(iterations=1, optimizer="adam")
    phases = usual, Phase(iterations=4, optimizer="adam", accumulation="batches_run", hook="halves_after")
    return Script(sizes=(1, 11, 1)[:workers], model="sometimes", phases=phases)


def ahead_beside_gradients_of_the_loop_before(workers: int) -> Script:
    """Loops end within an accumulation; the next one drops its gradients, and takes batches ahead until a pass ends."""
    usual, ahead = Phase(iterations=1, accumulation="batches"), Phase(iterations=3, accumulation="batches", ahead=True)
    return Script(sizes=(1,) * workers, model="deep", phases=(usual, usual, ahead))


def ahead_with_losses_that_show_no_batch(workers: int) -> Script:
    """Under a frozen layer the graph keeps no inputs. Sizes change where only the second of two losses is summed."""
    phase = Phase(iterations=5, accumulation="batches", toggles=((0, 0),), ahead=True)
    return Script(sizes=(1, 2, 1)[:workers], model="deep", phases=(phase,))
