import csv
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tensorboardX.proto.event_pb2 import Event

from dynamix_ps.config.schema import Metrics
from dynamix_ps.report.recorder import Recorder
from dynamix_ps.report.tensorboard import TensorBoard
from dynamix_ps.run_record.run_folder import RunFolder
from tests.unit.synthetic_run import (
    START_S,
    append,
    config,
    evaluation,
    link,
    links,
    measured,
    plan,
    server,
    started,
    whole_run,
    window,
)

UPDATE = {"kind": "update", "time_s": START_S + 9, "accepted": 1.0, "updates": 1.0, "entropy": 1.6, "approx_kl": 0.01}


def events(directory: Path) -> list[Event]:
    """All events of a folder, read as TensorBoard reads them: length, checksum, message, checksum."""
    found = []
    for file in directory.glob("events.out.tfevents.*"):
        data, offset = file.read_bytes(), 0
        while offset < len(data):
            (length,) = struct.unpack_from("<Q", data, offset)
            found.append(Event.FromString(data[offset + 12 : offset + 12 + length]))
            offset += 16 + length
    return found


def series(directory: Path, tag: str) -> list[tuple[int, float, float]]:
    """(step, wall time, value) of one curve."""
    return [
        (event.step, event.wall_time, value.simple_value)
        for event in events(directory)
        for value in event.summary.value
        if value.tag == tag
    ]


def tags(directory: Path) -> set[str]:
    return {value.tag for event in events(directory) for value in event.summary.value}


def degradations(folder: RunFolder) -> list[str]:
    return [line for line in folder.events_file.read_text().splitlines() if '"degraded"' in line]


def test_curves_are_the_columns_of_windows_csv(folder: RunFolder) -> None:
    whole_run(folder, windows=7)
    Recorder(folder, config()).close()
    with folder.windows_csv.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 21
    for rank in (0, 1, 2):
        of_rank = [row for row in rows if row["rank"] == str(rank)]
        for column in ("loss", "push_bytes_per_s", "rtt_s", "throttled", "batch_size", "grad_norm_std", "wait_s"):
            curve = series(folder.tensorboard_dir / f"worker-{rank}", f"worker/{column}")
            assert [step for step, _, _ in curve] == [
                int(row["first_iteration"]) + int(row["iterations"]) for row in of_rank
            ]
            assert [time_s for _, time_s, _ in curve] == [float(row["time_s"]) for row in of_rank]
            assert [value for _, _, value in curve] == pytest.approx([float(row[column]) for row in of_rank], rel=1e-6)
    epochs = [value for _, _, value in series(folder.tensorboard_dir / "global", "global/epoch")]
    assert epochs == pytest.approx([float(row["epoch"]) for row in rows if row["rank"] == "0"], rel=1e-6)


def test_unknown_values_are_left_out(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0), window(0, 1, rtt_s=0.001))
    Recorder(folder, config(1)).close()
    assert series(folder.tensorboard_dir / "worker-0", "worker/rtt_s") == [(40, START_S + 2, pytest.approx(0.001))]
    assert not any("gpu" in tag for tag in tags(folder.tensorboard_dir / "worker-0"))


def test_groups_and_folders(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0) | measured(0, 0), evaluation(3, 0.8))
    Recorder(folder, config(1)).close()
    append(folder.journal_file, plan(1, [80], reward=0.25), links(0, [link(0)], [server()]), UPDATE)
    recorder = Recorder(folder, config(1))
    recorder.close()
    shared = tags(folder.tensorboard_dir / "global")
    assert shared >= {"global/batch_size", "global/decision_ms", "global/test/accuracy", "global/noise_scale"}
    assert shared >= {"ppo/reward", "ppo/entropy", "ppo/approx_kl"}
    assert {tag.split("/")[0] for tag in tags(folder.tensorboard_dir / "worker-0")} == {"worker", "link"}
    assert {tag.split("/")[0] for tag in tags(folder.tensorboard_dir / "server-0")} == {"server"}
    assert {value for _, _, value in series(folder.tensorboard_dir / "global", "global/noise_scale")} == {200.0}
    assert series(folder.tensorboard_dir / "server-0", "server/push_bytes_per_s")[0][2] == 36e6


def test_events_can_be_read_while_the_run_goes_on(folder: RunFolder) -> None:
    recorder = Recorder(folder, config(1))
    append(folder.worker_file(0), started(0), window(0, 0))
    recorder.poll()
    assert len(series(folder.tensorboard_dir / "worker-0", "worker/loss")) == 1
    recorder.close()


def test_switched_off(folder: RunFolder) -> None:
    append(folder.worker_file(0), started(0), window(0, 0))
    Recorder(folder, config(1, metrics=Metrics(tensorboard=False))).close()
    assert not folder.tensorboard_dir.exists()
    assert not degradations(folder)


def test_torch_is_not_imported(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom dynamix_ps.report.tensorboard import TensorBoard\n"
        "TensorBoard(Path(sys.argv[1]), sys.exit).close()\n"
        "print('tensorboardX' in sys.modules, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "True False\n", done.stderr


def test_missing_package_is_told_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorboardX.event_file_writer", None)
    append(folder.worker_file(0), started(0), window(0, 0), window(0, 1))
    recorder = Recorder(folder, config(1))
    recorder.poll()
    recorder.close()
    (line,) = degradations(folder)
    assert '"what": "plots"' in line and "pip install 'dynamix-ps[plots]'" in line
    assert len(folder.windows_csv.read_text().splitlines()) == 3  # all else is recorded


def test_a_disk_that_fails_is_told_once(folder: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Any, event: Event) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tensorboardX.event_file_writer.EventsWriter.write_event", full)
    append(folder.worker_file(0), started(0), window(0, 0), window(0, 1))
    recorder = Recorder(folder, config(1))
    recorder.poll()
    recorder.close()
    (line,) = degradations(folder)
    assert "No space left" in line
    assert len(folder.windows_csv.read_text().splitlines()) == 3


def test_lines_of_another_form_are_left_out(folder: RunFolder) -> None:
    append(folder.journal_file, {"kind": "kept", "time_s": START_S}, plan(1, [80]) | {"time_s": None})
    append(folder.worker_file(0), started(0), window(0, 0))
    Recorder(folder, config(1)).close()
    assert not degradations(folder)
    assert len(series(folder.tensorboard_dir / "worker-0", "worker/loss")) == 1


def test_nothing_is_written_after_close(folder: RunFolder) -> None:
    recorder = Recorder(folder, config(1))
    board = TensorBoard(folder.tensorboard_dir, pytest.fail)
    board.close()
    board.add(window(0, 0), recorder.state)
    assert not folder.tensorboard_dir.exists()
    recorder.close()
