"""What other users of the machine can see of a whole run: no token, no password, no name of shared memory."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest

from tests.launching import assert_nothing_left, cluster_file, dynamix, ends, run_id_in, script

pytestmark = pytest.mark.timeout(90)

# The worker sees the arguments of all processes of its run, and tells the test its secrets in a file of its own.
LOOK_AROUND = """
import glob, pathlib
started()
secrets = {name: os.environ[name] for name in ("DYNAMIX_TOKEN", "BYTEPS_SHM_PREFIX", "PASSWORD")}
arguments = []
for file in glob.glob("/proc/[0-9]*/cmdline"):
    try:
        arguments.append(pathlib.Path(file).read_text())
    except OSError:
        pass
scratch = str(pathlib.Path(os.environ["BYTEPS_SOCKET_PATH"]).parent)
seen = {"secrets": secrets, "arguments": arguments, "modes": {
    path: os.stat(path).st_mode for path in (scratch, *map(str, pathlib.Path(scratch).rglob("*")))
}}
pathlib.Path(sys.argv[1]).write_text(json.dumps(seen))
finished()
"""


def test_secrets_of_a_run_stand_in_no_argument_no_log_and_no_file_that_others_read(tmp_path: Path) -> None:
    file = cluster_file(tmp_path, mode="adapt", extra="env: {PASSWORD: hunter2-0badcafe}\n")
    told = tmp_path / "told.json"
    command = ("launch", "-c", str(file), "--", "python", str(script(tmp_path, LOOK_AROUND)), str(told))
    process = dynamix(*command, cwd=tmp_path)
    output = ends(process, 0, limit_s=100)
    seen = json.loads(told.read_text())
    assert any("server_hooks" in line or "bpslaunch" in line for line in seen["arguments"])
    for name, secret in seen["secrets"].items():
        assert secret not in output, name
        assert not any(secret in line for line in seen["arguments"]), name
        for path in (tmp_path / "runs").rglob("*"):
            if path.is_file() and secret.encode() in path.read_bytes():
                assert stat.S_IMODE(path.stat().st_mode) == 0o600, f"{name} in {path}"
                assert name == "PASSWORD", path
    private = [path for path, mode in seen["modes"].items() if stat.S_ISDIR(mode) or path.endswith("holdings.json")]
    assert len(private) == 3  # the folder, the folder of the worker's sockets, the record
    assert all(stat.S_IMODE(seen["modes"][path]) & 0o077 == 0 for path in private)
    assert_nothing_left(run_id_in(output))
