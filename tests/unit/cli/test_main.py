"""The command line: help without heavy imports, errors without tracebacks, examples that load."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from dynamix_ps.byteps_build.install import InstalledInfo
from dynamix_ps.byteps_build.recipe import sources_digest
from dynamix_ps.cli import doctor as doctor_command
from dynamix_ps.cli.launch import with_overrides
from dynamix_ps.cli.main import cli
from dynamix_ps.config.load import load_config
from dynamix_ps.config.schema import Config, Host, PolicySection, Ppo
from dynamix_ps.errors import (
    INTERRUPTED_EXIT_CODE,
    ConfigError,
    DynamixError,
    EnvironmentNotReady,
    StallError,
    UsageError,
)
from dynamix_ps.exit_codes import exit_code_of
from dynamix_ps.launch.emulation.cpu_quota import CpuController
from dynamix_ps.launch.preflight import doctor as checks
from dynamix_ps.launch.preflight.check import Check
from dynamix_ps.launch.preflight.inspection import HostReport
from tests.launching import ROOT, environment, run_to_end

SOURCES = sources_digest("ours")
EXAMPLES = sorted((ROOT / "configs").glob("*.yaml"))


def run_dynamix(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_to_end([sys.executable, "-m", "dynamix_ps.cli.main", *arguments])


def test_help_lists_every_command_and_imports_nothing_heavy() -> None:
    probe = (
        "import sys; sys.argv = ['dynamix', '--help']\nfrom dynamix_ps.cli.main import main\nassert main() == 0\n"
        "heavy = {'torch', 'numpy', 'grpc', 'pydantic', 'rich', 'psutil'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = run_to_end([sys.executable, "-c", probe])
    assert done.returncode == 0, done.stderr
    assert all(name in done.stdout for name in ("launch", "doctor", "build-byteps", "bench", "_DYNAMIX_COMPLETE"))
    assert max(map(len, done.stdout.splitlines())) <= 80


def errors(base: type[DynamixError] = DynamixError) -> Iterator[type[DynamixError]]:
    yield base
    for kind in base.__subclasses__():
        yield from errors(kind)


def test_help_names_every_exit_code() -> None:
    lines = CliRunner().invoke(cli, ["--help"]).output.partition("Exit codes:")[2].splitlines()
    named = {int(line.split()[0]) for line in lines if line.split()[:1] and line.split()[0].isdigit()}
    assert named == {0, INTERRUPTED_EXIT_CODE} | {kind.exit_code for kind in errors()}


def completed(words: str) -> list[str]:
    """What Tab offers behind these words."""
    asked = {"_DYNAMIX_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-X", "importtime", "-m", "dynamix_ps"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment() | asked, cwd=ROOT, check=True)
    if words.count(" ") == 1:
        assert "pydantic" not in done.stderr and "numpy" not in done.stderr  # Tab must not wait for them
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("dynamix re", {"report", "replay", "rehearse"}),
        ("dynamix bench r", {"report", "run"}),
        ("dynamix launch --dry", {"--dry-run"}),
        ("dynamix launch --policy pr", {"proportional"}),
        ("dynamix nonsense --x", set()),
    ],
)
def test_completion_of_the_shell(words: str, offered: set[str]) -> None:
    assert set(completed(words)) == offered


def test_the_line_for_the_shell_works_in_bash() -> None:
    (line,) = (text.split(maxsplit=1)[1] for text in run_dynamix("--help").stdout.splitlines() if ".bashrc" in text)
    script = f'dynamix() {{ "{sys.executable}" -m dynamix_ps "$@"; }}\n{line}\ncomplete -p dynamix'
    done = run_to_end(["bash", "--norc", "-c", script])
    assert "_dynamix_completion dynamix" in done.stdout, done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("lunch",), 2, "no command 'lunch'; did you mean 'launch'?"),
        (
            ("xyz",),
            2,
            "no command 'xyz'; there are: demo, examples, init, launch, leave, join, sbatch, k8s, agent, runs, ui",
        ),
        (("launch",), 2, "give one with -c, or the number of workers with -n"),
        (("launch", "-c", "none.yaml"), 2, "error: none.yaml: no such file"),
        (("launch", "--nonsense"), 2, "--nonsense"),
        (("doctor", "-c", "configs"), 2, "error: configs: is a directory"),
        (("join", "--server", "0", "--host", "a"), 2, "error: --host is for workers"),
        (("join", "2", "--slots", "2"), 2, "error: --slots is for a host that is new to the job; name it by --host"),
    ],
)
def test_wrong_usage_is_exit_code_2_with_a_hint(arguments: tuple[str, ...], code: int, message: str) -> None:
    done = run_dynamix(*arguments)
    assert done.returncode == code
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_errors_end_with_their_own_code(capsys: pytest.CaptureFixture[str]) -> None:
    def fail(error: BaseException) -> int:
        raise error

    assert exit_code_of(lambda: fail(StallError("one\ntwo"))) == 5
    assert capsys.readouterr().err == "error: one\nerror: two\n"
    assert exit_code_of(lambda: fail(EnvironmentNotReady("x"))) == 3
    assert exit_code_of(lambda: fail(KeyboardInterrupt())) == 130
    with pytest.raises(ZeroDivisionError):
        exit_code_of(lambda: fail(ZeroDivisionError()))


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.name)
def test_every_example_loads_and_can_be_printed(file: Path) -> None:
    assert load_config(file).command
    done = run_dynamix("launch", "-c", str(file), "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "DMLC_ROLE=worker" in done.stdout


def test_there_are_examples() -> None:
    assert {file.name for file in EXAMPLES} >= {"demo.yaml", "local-proportional.yaml", "one-process.yaml"}


def test_the_command_line_wins_over_the_file() -> None:
    config = Config.model_validate(
        {"cluster": {"workers": ({}, {})}, "policy": {"name": "static", "sizes": (64, 96)}, "command": ("a",)}
    )
    assert with_overrides(config, None, None, None, ()) == config
    changed = with_overrides(config, "/else", "ppo", "observe", ("python", "x.py"))
    assert (changed.run_dir, changed.mode, changed.command) == ("/else", "observe", ("python", "x.py"))
    assert (changed.policy.name, changed.policy.sizes) == ("ppo", None)
    assert with_overrides(config, None, "static", None, ()).policy.sizes == (64, 96)
    hosts = {"a": Host(address="10.0.0.1", slots=2)}
    placed = with_overrides(config, None, None, None, (), hosts, insecure=True).cluster
    assert (dict(placed.hosts), placed.insecure) == (hosts, True)
    assert with_overrides(config, None, None, None, (), insecure=True).cluster.insecure
    lonely = Config.model_validate(
        {"cluster": {"workers": ({},)}, "policy": {"name": "ppo", "ppo": {"minibatches": 4}}}
    )
    assert with_overrides(lonely, None, "pid", None, ()).policy.ppo.minibatches == Ppo().minibatches
    with pytest.raises(ConfigError, match=r"policy\.ppo\.minibatches"):
        with_overrides(
            lonely.model_copy(update={"policy": PolicySection(name="ppo", ppo=Ppo(minibatches=5))}),
            "/x",
            None,
            None,
            (),
        )


def checked(monkeypatch: pytest.MonkeyPatch, *found: Check, json_output: bool = False) -> tuple[int, str]:
    monkeypatch.setattr(doctor_command, "all_checks", lambda config: iter(found))
    result = CliRunner().invoke(cli, ["doctor", *(["--json"] if json_output else [])], standalone_mode=False)
    return result.return_value, result.output


def test_doctor_exits_3_for_blockers_only(monkeypatch: pytest.MonkeyPatch) -> None:
    fine, odd, bad = Check("a", "ok", "1"), Check("b", "warning", "2", "do y"), Check("c", "blocker", "3", "do z")
    code, output = checked(monkeypatch, fine, odd)
    assert code == 0
    assert "fix: do y" in output
    assert output.endswith("ready\n")
    code, output = checked(monkeypatch, fine, odd, bad)
    assert code == 3
    assert "c: 3\n    fix: do z\n" in output
    assert output.endswith("missing: c\n")


@pytest.mark.parametrize(
    ("command", "status", "told"),
    [
        ((), "ok", "no command: `dynamix launch` takes it behind `--`"),
        (("true",), "ok", "policy static"),
        (("no-such-program",), "blocker", "command not found"),
    ],
)
def test_doctor_needs_no_command_and_checks_one_that_is_there(command: tuple[str, ...], status: str, told: str) -> None:
    config = Config.model_validate({"comm": "local", "cluster": {"workers": ({},)}, "policy": {"name": "static"}})
    check = checks._cluster(config.model_copy(update={"command": command}))
    assert check.status == status
    assert told in check.detail


def test_doctor_speaks_json(monkeypatch: pytest.MonkeyPatch) -> None:
    code, output = checked(monkeypatch, Check("c", "blocker", "3", "do z"), json_output=True)
    assert code == 3
    assert json.loads(output) == {
        "ok": False,
        "checks": [{"name": "c", "status": "blocker", "detail": "3", "fix": "do z"}],
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("-H", "a:2"), "name hosts to check; add --hosts"),
        (("--hosts",), "no host is named; give -c FILE with cluster.hosts, -H, or --hostfile"),
        (("--hosts", "-c", "configs/demo.yaml"), "no host is named"),
    ],
)
def test_doctor_needs_hosts_to_check_hosts(
    options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(UsageError, match=message):
        CliRunner().invoke(cli, ["doctor", *options], standalone_mode=False, catch_exceptions=False)


def test_doctor_checks_the_hosts_that_a_launch_would_use(monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[Config] = []

    def inspected(config: Config, target: object) -> HostReport:
        checked.append(config)
        return HostReport({}, {"a": "gone"}, ())

    monkeypatch.setattr(doctor_command, "inspect_hosts", inspected)
    options = ["doctor", "--hosts", "-H", "a.invalid:2,b.invalid", "--exclude", "a.invalid:1", "--json"]
    result = CliRunner().invoke(cli, options, standalone_mode=False)
    assert [worker.host for worker in checked[0].cluster.workers] == ["a.invalid", "b.invalid"]
    assert result.return_value == 3
    told = json.loads(result.output)
    assert (told["ok"], told["hosts"], told["links"]) == (False, {}, [])
    assert told["checks"] == [{"name": "host a", "status": "blocker", "detail": "gone", "fix": ""}]


@pytest.mark.parametrize(
    ("workers", "options", "expected"),
    [
        (0, (), ["n1.invalid", "n2.invalid"]),
        (4, (), ["n1.invalid", "n1.invalid", "n2.invalid", "n2.invalid"]),
        (2, ("-H", "a.invalid:2"), ["a.invalid", "a.invalid"]),
    ],
)
def test_doctor_takes_the_hosts_of_the_batch_job_around_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, workers: int, options: tuple[str, ...], expected: list[str]
) -> None:
    job = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-2].invalid", "PATH": "/nowhere"}
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    checked: list[Config] = []

    def inspected(config: Config, target: object) -> HostReport:
        checked.append(config)
        return HostReport({}, {}, ())

    monkeypatch.setattr(doctor_command, "inspect_hosts", inspected)
    file = tmp_path / "c.yaml"
    file.write_text(f"comm: gloo\ncluster: {{workers: [{', '.join(['{}'] * workers)}]}}\n")
    words = ["doctor", "--hosts", *(["-c", str(file)] if workers else []), *options]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert [worker.host for worker in checked[0].cluster.workers] == expected, result.output


def test_every_check_that_is_not_fine_has_a_fix(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which everything is missing."""
    monkeypatch.setattr(checks, "installed_version", lambda name: None)
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    monkeypatch.setattr(checks, "installed_info", InstalledInfo)
    monkeypatch.setattr(checks, "find_controller", lambda: CpuController(0, Path(), "Permission denied"))
    monkeypatch.setenv("DYNAMIX_CACHE", str(tmp_path))
    monkeypatch.delenv("DYNAMIX_DATA", raising=False)
    found = list(checks.all_checks(Config.model_validate({"comm": "byteps", "cluster": {"workers": ({},)}})))
    assert {check.name for check in found if check.status == "blocker"} >= {"numpy", "torch", "build: g++", "byteps"}
    assert {check.name for check in found if check.status == "warning"} >= {"cpu quota", "data"}
    assert all(check.fix for check in found if check.status != "ok")


@pytest.mark.parametrize(
    ("machine", "lacks", "status", "told"),
    [
        ("x86_64", [], "ok", "x86-64-v3"),
        ("x86_64", ["avx2", "fma"], "warning", "it lacks avx2, fma"),
        ("aarch64", [], "warning", "aarch64: a ring alone"),
    ],
)
def test_the_doctor_says_for_which_cpu_there_is_byteps(
    machine: str, lacks: list[str], status: str, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr(checks, "missing_flags", lambda: lacks)
    found = checks._cpu()
    assert found.status == status and told in found.detail
    assert (machine == "x86_64") == all(one.status == "ok" for one in checks._tools(wanted=True) if "x86" in one.name)


def test_a_byteps_that_could_be_had_is_told_and_blocks_only_jobs_that_need_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DYNAMIX_CACHE", str(tmp_path))
    (found,) = checks._byteps(InstalledInfo(), needed=False)
    assert (found.status, found.fix) == ("warning", "dynamix build-byteps")
    assert "comm: gloo works" in found.detail and "it can be built" in found.detail
    monkeypatch.setattr(checks.WheelCache, "find", lambda *_: tmp_path)
    assert "in the cache" in next(checks._byteps(InstalledInfo(), needed=True)).detail
    monkeypatch.setattr(checks.shutil, "which", lambda name: None)
    assert "cannot be built before" in next(checks._byteps(InstalledInfo(), needed=True)).detail


@pytest.mark.parametrize(
    ("info", "detail"),
    [
        (InstalledInfo("0.2.5", ("torch",)), "not built by this project"),
        (InstalledInfo("0.2.5", ("torch",), "k", "ours", sources="of before"), "another version of this package"),
        (InstalledInfo("0.2.5", ("mxnet",), "k", "ours", sources=SOURCES), "without the torch plugin"),
    ],
)
def test_a_byteps_that_will_not_do_is_a_blocker(info: InstalledInfo, detail: str) -> None:
    found = [one for one in checks._byteps(info, needed=True) if one.name != "byteps mxnet"]
    assert found[-1].status == "blocker"
    assert detail in found[-1].detail
    assert {one.status for one in checks._byteps(info, needed=False)} <= {"warning", "ok"}


def test_without_the_plugin_of_an_installed_mxnet_torch_still_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "installed_version", lambda name: "1.9.1")
    monkeypatch.setattr(checks, "_import_problem", lambda module: "")
    info = InstalledInfo("0.2.5", ("torch",), "k", "ours", sources=SOURCES)
    found = {one.name: one for one in checks._byteps(info, needed=True)}
    assert found["byteps torch"].status == "ok"
    assert found["byteps mxnet"].status == "warning" and found["byteps mxnet"].fix == "dynamix build-byteps"


def test_a_package_that_cannot_be_imported_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checks._import_problem("json") == ""
    assert "No module named 'no_such_module'" in checks._import_problem("no_such_module")
    assert "ended with code -6" in checks._import_problem("os; os.abort()")


def test_shared_memory_that_cannot_be_written_is_a_blocker() -> None:
    assert checks._shared_memory(Path("/proc/none")).status == "blocker"
    assert checks._shared_memory(Path("/dev/shm")).status in ("ok", "warning")


def test_openssl_is_needed_where_calls_go_from_host_to_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = {"a": {"address": "10.0.0.1"}, "b": {"address": "10.0.0.2"}}
    several = Config.model_validate({"cluster": {"hosts": hosts, "workers": ({}, {})}})
    monkeypatch.setenv("PATH", str(tmp_path))
    assert [checks._openssl(config).status for config in (several, None)] == ["blocker", "warning"]
    (tmp_path / "openssl").write_text("")
    (tmp_path / "openssl").chmod(0o755)
    assert checks._openssl(several).status == "ok"
