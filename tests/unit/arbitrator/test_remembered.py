"""A job that remembers: what it begins with, when it drops that, and what it keeps."""

from __future__ import annotations

import dataclasses
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from dynamix_ps.arbitrator import profile_file
from dynamix_ps.arbitrator.profile_file import KEPT, OLDEST_S, read_profile, write_profile
from dynamix_ps.config import variables
from dynamix_ps.config.schema import Config, PolicySection
from dynamix_ps.messages import Plan
from dynamix_ps.policy.model.profile import Profile
from tests.control_plane import config, registration, run_under
from tests.unit.arbitrator.service_bench import Bench, Scripted

FIRST = Plan(0, (64, 64, 64))
SLOW_LAST = Profile((0.0,) * 3, (1e-3, 1e-3, 4e-3), (0.0,) * 3, (None,) * 3, 0.0)
BY_PROFILE = (80, 80, 32)  # the last one is at its lower bound


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder of this test."""
    monkeypatch.setenv(variables.CACHE, str(tmp_path / "cache"))
    return tmp_path / "cache" / "speeds"


def remembering(**changes: Any) -> Config:
    return config(**changes).model_copy(update={"policy": PolicySection(name="proportional", remember=True)})


class Job(Bench):
    """An arbitrator of a job that remembers."""

    def __init__(self, folder: Path, *answers: Any, cluster: Config | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self.policy = Scripted(*answers)
        super().__init__(folder, self.policy, cluster or remembering())

    async def begin(self, work: str = "train.py", plan: Plan = FIRST, host: str = "a") -> None:
        for rank in range(3):
            told = dataclasses.replace(registration(rank, plan=plan), work=work, host=f"{host}{rank}")
            self.arbitrator.register(told)
        await self.arbitrator.step()

    async def trained(self, window: int, per_sample_s: tuple[float, ...] = SLOW_LAST.per_sample_s) -> None:
        """A window of 20 iterations under the newest plan, two seconds or more."""
        records = run_under(self.plan, window, duration_s=4.0)
        for rank, one in enumerate(records):
            assert one is not None
            self.report([dataclasses.replace(one, compute_s=one.samples * per_sample_s[rank])])
        await self.arbitrator.step()


async def kept(folder: Path, cache: Path, profile: Profile = SLOW_LAST) -> Path:
    """A job of which `profile` is in the cache."""
    job = Job(folder / "first", *[FIRST.batch_sizes] * 2)
    await job.begin()
    for window in range(2):
        await job.trained(window)
    job.arbitrator.close()
    (file,) = cache.iterdir()
    write_profile(file, profile)
    return file


async def test_a_second_run_begins_with_the_sizes_of_the_first(tmp_path: Path, cache: Path) -> None:
    first = Job(tmp_path / "1", *[FIRST.batch_sizes] * 3)
    await first.begin()
    assert first.plan == FIRST and not first.lines("adopted")
    for window in range(3):
        await first.trained(window)
    first.arbitrator.close()
    second = Job(tmp_path / "2", BY_PROFILE)
    await second.begin()
    assert second.plan == Plan(1, BY_PROFILE)
    assert second.lines("remembered")[0]["batch_sizes"] == list(BY_PROFILE)
    await second.trained(0)
    assert len(second.policy.views) == 1, "the profile is right, so the policy decides"
    assert second.plan == Plan(1, BY_PROFILE) and not second.lines("degraded")
    (file,) = cache.iterdir()
    assert not file.stat().st_mode & 0o077, "nobody else reads it"
    assert "train.py" not in file.read_text() + file.name and "a0" not in file.read_text()


async def test_a_profile_that_is_off_is_dropped_and_the_policy_begins_as_without_one(
    tmp_path: Path, cache: Path
) -> None:
    await kept(tmp_path, cache)
    job = Job(tmp_path / "2", FIRST.batch_sizes)
    await job.begin()
    await job.trained(0, per_sample_s=(1e-3, 1e-3, 6e-3))
    assert job.plan == Plan(2, FIRST.batch_sizes) and not job.policy.views
    (line,) = job.lines("degraded")
    assert line["detail"].startswith("dropped: worker 2 computes 1.50 times as long as in the earlier run")
    await job.trained(1, per_sample_s=(1e-3, 1e-3, 6e-3))
    assert len(job.policy.views) == 1 and job.policy.views[0].reference_batch == 192


async def test_it_is_judged_by_a_second_of_clean_windows(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    job = Job(tmp_path / "2", BY_PROFILE, BY_PROFILE)
    await job.begin()
    await job.window(0, FIRST)  # had begun before the plan came
    assert len(job.policy.views) == 1 and not job.lines("degraded"), "it is not clean"
    for window in (1, 2):
        await job.window(window, job.plan, duration_s=0.4, compute_s=0.3)
    assert len(job.policy.views) == 1 and job.plan == Plan(1, BY_PROFILE), "nobody decides meanwhile"
    await job.window(3, job.plan, duration_s=0.4, compute_s=0.3)
    assert job.plan == Plan(2, FIRST.batch_sizes), "the last worker is as fast as the others"


async def test_who_goes_ends_the_trial(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    job = Job(tmp_path / "2", (96, 96, 0))
    await job.begin()
    job.arbitrator.lose(2)
    assert job.plan == Plan(2, (96, 96, 0))
    await job.trained(0)
    assert len(job.policy.views) == 1 and job.plan.version == 2


@pytest.mark.parametrize("changes", [{"work": "other.py"}, {"host": "b"}, {"work": ""}])
async def test_another_job_remembers_nothing(tmp_path: Path, cache: Path, changes: dict[str, Any]) -> None:
    await kept(tmp_path, cache)
    job = Job(tmp_path / "2")
    await job.begin(**changes)
    assert job.plan == FIRST and not job.lines("degraded")


async def test_another_data_plane_is_another_job(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    job = Job(tmp_path / "2", cluster=remembering().model_copy(update={"comm": "gloo"}))
    await job.begin()
    assert job.plan == FIRST


async def test_a_checkpoint_goes_on_with_its_own_sizes(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    job, saved = Job(tmp_path / "2"), Plan(7, (60, 60, 72))
    await job.begin(plan=saved)
    assert job.plan == saved


async def test_a_restarted_arbitrator_begins_nothing(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    before = Job(tmp_path / "2", FIRST.batch_sizes)
    await before.begin()
    again = Job(tmp_path / "2", BY_PROFILE)
    await again.begin(plan=before.plan)
    assert again.plan == before.plan == Plan(1, BY_PROFILE)
    await again.trained(0, per_sample_s=(1e-3, 1e-3, 6e-3))
    assert len(again.policy.views) == 1, "who judges it is gone"


async def test_memory_that_was_measured_bounds_the_sizes(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache, dataclasses.replace(SLOW_LAST, at_once=(70, None, None)))
    job = Job(tmp_path / "2", cluster=remembering().model_copy(update={"memory": "auto"}))
    await job.begin()
    assert job.plan.batch_sizes == (70, 90, 32)


async def test_who_does_not_ask_for_it_remembers_and_keeps_nothing(tmp_path: Path, cache: Path) -> None:
    await kept(tmp_path, cache)
    for file in cache.iterdir():
        file.unlink()
    for number, cluster in enumerate((config(), remembering(mode="observe"))):
        job = Job(tmp_path / str(number), *[FIRST.batch_sizes] * 3, cluster=cluster)
        await job.begin()
        for window in range(3):
            await job.trained(window)
        job.arbitrator.close()
    assert not list(cache.iterdir())


async def test_another_model_on_the_way_is_measured_by_itself(tmp_path: Path, cache: Path) -> None:
    job = Job(tmp_path / "1", *[FIRST.batch_sizes] * 3)
    await job.begin()
    for window in range(2):
        await job.trained(window)
    await job.begin(work="second model")
    await job.trained(2)
    job.arbitrator.close()
    assert not cache.exists(), "one window says too little"


@pytest.mark.parametrize(
    "spoilt",
    [b"", b"{", b"[]", b'{"version": 2}', b'{"version": 1}', b'{"version": 1, "fixed_s": [1, 2, 3]}', b"\xff"],
)
async def test_a_damaged_file_is_told_once_and_replaced(tmp_path: Path, cache: Path, spoilt: bytes) -> None:
    file = await kept(tmp_path, cache)
    file.write_bytes(spoilt)
    job = Job(tmp_path / "2", *[FIRST.batch_sizes] * 3)
    await job.begin()
    assert job.plan == FIRST
    for window in range(3):
        await job.trained(window)
    (line,) = job.lines("degraded")
    assert str(file) in line["detail"] and "is not used" in line["detail"]
    job.arbitrator.close()
    assert read_profile(file, 3) is not None


async def test_what_another_user_may_have_written_is_not_used(tmp_path: Path, cache: Path) -> None:
    file = await kept(tmp_path, cache)
    file.chmod(0o666)
    with pytest.raises(PermissionError):
        read_profile(file, 3)
    file.rename(tmp_path / "elsewhere")
    (tmp_path / "elsewhere").chmod(0o600)
    file.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic"):
        read_profile(file, 3)


async def test_old_profiles_are_not_used_and_the_newest_files_stay(tmp_path: Path, cache: Path) -> None:
    file = await kept(tmp_path, cache)
    now_s = time.time()
    os.utime(file, (now_s, now_s - OLDEST_S - 60))
    assert read_profile(file, 3) is None
    for number in range(KEPT + 3):
        write_profile(cache / f"{number}.json", SLOW_LAST)
        os.utime(cache / f"{number}.json", (now_s, now_s - 100 + number))
    assert {one.name for one in cache.iterdir()} == {f"{number}.json" for number in range(3, KEPT + 3)}


async def test_a_cache_that_cannot_be_written_ends_no_run(tmp_path: Path, cache: Path) -> None:
    cache.parent.mkdir()
    cache.write_text("a file in the place of the folder")
    job = Job(tmp_path / "1", *[FIRST.batch_sizes] * 3)
    await job.begin()
    for window in range(3):
        await job.trained(window)
    job.arbitrator.close()
    assert job.lines("stopped")


def test_of_jobs_that_write_at_a_time_one_counts_and_none_is_torn(tmp_path: Path) -> None:
    file = tmp_path / "speeds" / "x.json"
    all_profiles = [dataclasses.replace(SLOW_LAST, fixed_s=(float(number),) * 3) for number in range(4)]
    with ThreadPoolExecutor(4) as jobs:
        writing = [jobs.submit(write_profile, file, one) for one in all_profiles * 50]
        while not all(one.done() for one in writing):
            assert read_profile(file, 3) in (None, *all_profiles)
    for one in writing:
        one.result()
    assert read_profile(file, 3) in all_profiles and [file] == list(file.parent.iterdir())


def test_a_file_is_as_large_as_the_largest_cluster_needs(tmp_path: Path) -> None:
    many = 1024
    value = (0.12345678901234567,) * many
    write_profile(tmp_path / "x.json", Profile(value, value, value, (None,) * many, 0.123456789))
    assert read_profile(tmp_path / "x.json", many) is not None
    assert (tmp_path / "x.json").stat().st_size < profile_file.LARGEST_BYTES / 4
