"""A worker leaves by vote, as one of the others and it itself see it. What the others put into sums is made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from dynamix_ps.errors import PeerLostError
from tests.unit.worker_hooks.test_slots import run_in
from worker_hooks.exchange.trailer import GlobalView
from worker_hooks.process.termination import TERMINATION
from worker_hooks.run import Run
from worker_hooks.session import Session

SIZES = (6, 6, 6, 6)
VOTE = 3  # iteration


class Seen:
    """What a training of one worker has done, iteration by iteration."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, ...]] = []  # of all workers
        self.told: list[list[int]] = []  # who has left
        self.leads: list[bool] = []  # after the sum
        self.saved: list[bool] = []  # before the iteration
        self.code: int | str | None = None
        self.unwound = False


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., tuple[Run, Seen]]:
    """Trains worker `slot`. `votes` to leave and `ends` by SIGTERM: of others, by iteration. `lost`: others, from an
    iteration on."""

    def run_to_end(
        slot: int,
        votes: dict[int, set[int]] = {},  # noqa: B006
        lost: tuple[int, set[int]] = (99, set()),
        ends: dict[int, set[int]] = {},  # noqa: B006
        leaves_at: int | None = None,
        least: int = 2,
        prefetch: int = 0,
        **changes: Any,
    ) -> tuple[Run, Seen]:
        run, seen = (
            run_in(slot, SIZES, tmp_path, prefetch=prefetch, min_workers=least, elastic=object(), **changes),
            Seen(),
        )
        monkeypatch.setattr(run.training.session.comm, "left", False)
        if ends:
            monkeypatch.setattr(run.training.session.comm, "size", len(SIZES))  # one process alone has nobody to tell
        monkeypatch.setattr(Session, "may_leave", True)
        monkeypatch.setattr(run.training.session.member, "others_left", seen.told.append)
        monkeypatch.setattr(TERMINATION, "leaving", False)
        receive = run.training.sums.exchange.receive

        def of_all(on_slow: Callable[[float], None], trailer_alone: bool) -> GlobalView:
            view, now = receive(on_slow, trailer_alone), run.training.now
            iteration = now.batch.iteration
            gone = {one for left in seen.told for one in left} | (lost[1] if iteration >= lost[0] else set())
            there = [rank for rank in range(len(SIZES)) if rank not in gone]
            view = view._replace(
                members=tuple(int(rank in there) for rank in range(len(SIZES))),
                worker_samples=tuple(size * (rank in there) for rank, size in enumerate(now.sizes_due)),
                samples=sum(now.sizes_due),
                doing=(view.doing[slot],) * len(SIZES),
                weights=tuple((part[slot],) * len(SIZES) for part in view.weights),  # type: ignore[arg-type]
                stream=(view.stream[slot],) * len(SIZES),
                ending_ranks=tuple(sorted(ends.get(iteration, ()))),
                leaving_ranks=tuple(sorted({*view.leaving_ranks, *votes.get(iteration, ())} & set(there))),
            )
            trailer = run.training.sums.exchange.trailer
            trailer.present, trailer.leader = there, there[0]
            return view

        monkeypatch.setattr(run.training.sums.exchange, "receive", of_all)
        try:
            for inputs, targets, _ in run.batches(iterations=10):
                seen.sizes.append(run.training.now.batch.step.sizes)
                seen.saved.append((tmp_path / "checkpoints" / "last.pt").exists())
                if run.iteration == leaves_at:
                    TERMINATION.leave()
                run.optimizers[0].zero_grad()
                run.backward(nn.functional.cross_entropy(run.models[0](inputs), targets))
                run.optimizers[0].step()
                seen.leads.append(run.training.sums.leads)
        except SystemExit as end:
            seen.code = end.code
        finally:
            seen.unwound = True
        run.close()
        return run, seen

    return run_to_end


def lines(folder: Path, kind: str) -> list[dict[str, Any]]:
    text = (folder / "workers" / "worker-0.jsonl").read_text()  # the only process
    return [line for line in map(json.loads, text.splitlines()) if line["kind"] == kind]


def test_a_vote_that_would_leave_too_few_is_refused_and_the_worker_goes_on(train, tmp_path, capsys):
    _, seen = train(2, leaves_at=VOTE, least=4)
    assert len(seen.sizes) == 10 and seen.code is None and not seen.told
    assert not TERMINATION.leaving
    why = "worker 2 cannot leave: 3 of 4 workers would stay, and elastic.min_workers is 4"
    assert why in capsys.readouterr().err
    assert [(line["iteration"], line["why"]) for line in lines(tmp_path, "leave_refused")] == [(VOTE, why)]


def test_where_those_that_were_to_stay_are_lost_it_ends_with_an_error(train):
    with pytest.raises(PeerLostError, match="worker 2 leave the job, and the workers that were to go on are lost"):
        train(2, lost=(VOTE + 1, {0, 1, 3}), leaves_at=VOTE, prefetch=2)


@pytest.mark.parametrize(("ending", "ends"), [({0, 1, 3}, True), ({0, 1}, False)])
def test_a_worker_that_leaves_ends_with_the_others_if_all_of_them_end(train, monkeypatch, ending, ends):
    class Ended(BaseException):
        pass

    def end(why: str) -> None:
        raise Ended

    monkeypatch.setattr(TERMINATION, "end", end)
    arguments: dict[str, Any] = {"ends": {VOTE + 1: ending}, "leaves_at": VOTE, "prefetch": 2}
    if ends:
        with pytest.raises(Ended):
            train(2, **arguments)
    else:
        _, seen = train(2, **arguments)
        assert seen.code == 0


def test_too_few_workers_save_after_the_same_iteration_and_end_with_an_error(train, tmp_path, monkeypatch):
    monkeypatch.setattr(TERMINATION, "requested", True)
    monkeypatch.setattr(TERMINATION, "cause", "2 workers are left")
    why = f"2 workers are left; iteration {VOTE + 1}, the last one, is in the newest checkpoint"
    with pytest.raises(PeerLostError, match=why):
        train(0, ends={VOTE: {0, 1, 2, 3}}, checkpoint_every=1000)
    assert (tmp_path / "checkpoints" / "last.pt").exists()
