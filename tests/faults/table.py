"""What can go wrong, and what comes of it: one row per kind of fault, and every row is a test.

A test module runs the rows of its part, by their keys. Where a test elsewhere holds exactly the outcome of a row, the
row names it. Attacks by others are in attacks.py.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass, field

LIMIT_S = 45.0  # for the end of a job after its fault; far more than it takes, as machines of tests are busy


@dataclass(frozen=True, slots=True)
class Outcome:
    """The exit code of `dynamix launch`, and what its output says (a regular expression). Nothing else is left."""

    exit_code: int
    says: str


@dataclass(frozen=True, slots=True)
class WorkerFault:
    """Worker 1 of two runs `body` in the middle of its training; worker 0 goes on for ever, or ends if all is well."""

    key: str
    body: str
    outcome: Outcome
    trained: bool = True  # whether training has begun when `body` runs
    settings: str = ""  # further lines of the cluster file


@dataclass(frozen=True, slots=True)
class SignalFault:
    """A process of the run gets signals from outside: a role, the launcher, the reaper, or the arbitrator."""

    key: str
    target: str
    signals: tuple[signal.Signals, ...]
    outcome: Outcome
    comm: str = "gloo"
    trained: bool = True
    mode: str = "'off'"
    settings: str = ""
    goes_on: bool = False  # whether workers then end their training well


@dataclass(frozen=True, slots=True)
class Refusal:
    """A launch that cannot work is refused before anything is started. `FILE` in the outcome is the cluster file."""

    key: str
    content: bytes
    outcome: Outcome
    arguments: tuple[str, ...] = ("--", "python", "-c", "pass")


@dataclass(frozen=True, slots=True)
class SurroundingsFault:
    """Disk, terminal, clock or limits of the machine; the test with this key says how they are made."""

    key: str
    does: str
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class TrainingFault:
    """In a real training, worker 1 of two runs `before` before it attaches, or `within` in iteration 6."""

    key: str
    outcome: Outcome
    before: str = ""
    within: str = ""
    comm: str = "gloo"


@dataclass(frozen=True, slots=True)
class HeldElsewhere:
    """A fault whose outcome a test of another folder holds."""

    key: str
    outcome: str
    test: str = field(default="")


DONE = Outcome(0, "all workers finished")
SIX_ITERATIONS = "for _ in range(6): step()\n"

WORKER_FAULTS = (
    WorkerFault(
        "worker-raises-at-start",
        "raise ValueError('no data')",
        Outcome(4, "error: worker-1 ended with exit code 1 before it started training"),
        trained=False,
    ),
    WorkerFault(
        "worker-raises",
        SIX_ITERATIONS + "raise ValueError('in the loop')",
        Outcome(4, r"ValueError: in the loop\nerror: worker-1 ended with exit code 1 at iteration 6\b"),
    ),
    WorkerFault(
        "worker-exits-with-a-message",
        "sys.exit('the data ends here')",
        Outcome(4, r"the data ends here\nerror: worker-1 ended with exit code 1 at iteration 0\b"),
    ),
    WorkerFault(
        "worker-exits-0-early",
        SIX_ITERATIONS + "sys.exit(0)",
        Outcome(4, r"worker-1 ended too early \(exit code 0\) at iteration 6, worker-0 still running"),
    ),
    WorkerFault(
        "worker-os-exit",
        SIX_ITERATIONS + "os._exit(7)",
        Outcome(4, r"worker-1 ended with exit code 7 at iteration 6\b"),
    ),
    WorkerFault(
        "worker-segfaults",
        "import ctypes, faulthandler; faulthandler.enable(); ctypes.string_at(0)",
        Outcome(
            4, r"Fatal Python error: Segmentation fault(.|\n)*error: worker-1 was killed by SIGSEGV at iteration 0"
        ),
    ),
    WorkerFault("worker-aborts", "os.abort()", Outcome(4, "error: worker-1 was killed by SIGABRT at iteration 0")),
    WorkerFault(
        "worker-bus-error", "os.kill(os.getpid(), 7)", Outcome(4, "error: worker-1 was killed by SIGBUS at iteration 0")
    ),
    WorkerFault(
        "worker-killed-in-iteration-6",
        SIX_ITERATIONS + "os.kill(os.getpid(), 9)",
        Outcome(4, r"error: worker-1 was killed by SIGKILL at iteration 6\b"),
    ),
    WorkerFault(
        "worker-interrupts-itself",
        "os.kill(os.getpid(), 2); time.sleep(60)",
        Outcome(4, "KeyboardInterrupt(.|\n)*error: worker-1 was killed by SIGINT at iteration 0"),
    ),
    WorkerFault(
        "worker-hangs-at-start",
        "time.sleep(600)",
        Outcome(5, r"error: worker-1 did not start training within 2 s \(timeouts.launch_s\); started: worker-0"),
        trained=False,
        settings="timeouts: {launch_s: 2.0}\n",
    ),
    WorkerFault(
        "job-takes-too-long",
        "time.sleep(600)",
        Outcome(5, r"error: the job took longer than 2 s \(timeouts.job_s\)"),
        settings="timeouts: {launch_s: 1.9, job_s: 2.0}\n",
    ),
    WorkerFault(
        "worker-never-attaches",
        "sys.exit(0)",
        Outcome(4, r"error: worker-1 ended too early \(exit code 0\) before it started training"),
        trained=False,
    ),
    WorkerFault(
        "worker-reports-its-error",
        "say('failed', error='the loss of worker 1 is not finite in iteration 7', iteration=7); os._exit(4)",
        Outcome(4, "error: worker-1 ended with exit code 4 .*the loss of worker 1 is not finite in iteration 7"),
    ),
    WorkerFault(
        "worker-out-of-memory",
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 28, 1 << 28)); bytearray(1 << 29)",
        Outcome(4, r"MemoryError\nerror: worker-1 ended with exit code 1"),
    ),
    WorkerFault(
        "worker-out-of-files",
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16)); [open('/dev/null') for _ in range(99)]",
        Outcome(4, r"Too many open files: '/dev/null'\nerror: worker-1 ended with exit code 1"),
    ),
    WorkerFault(
        "worker-recurses",
        "f = lambda: f()\nf()",
        Outcome(4, r"RecursionError: .*\nerror: worker-1 ended with exit code 1"),
    ),
    WorkerFault("worker-prints-without-end-of-line", "print('x' * 5_000_000, end=''); finished()", DONE),
    WorkerFault("worker-prints-control-characters", "print('\\x1b[2J\\x1b]0;title\\x07\\x00'); finished()", DONE),
    WorkerFault("worker-closes-its-output", "os.close(1); os.close(2); finished(); os._exit(0)", DONE),
    WorkerFault(
        "worker-leaves-processes",
        "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True); finished()",
        DONE,
    ),
    WorkerFault(
        "worker-ignores-sigterm-of-the-end",
        "signal.signal(signal.SIGTERM, signal.SIG_IGN); (folder / 'go').touch()\nwhile True: time.sleep(1)",
        Outcome(4, "error: worker-0 ended with exit code 9 at iteration 0"),
    ),
    WorkerFault(
        "worker-writes-damaged-lines",
        "(folder / 'workers' / 'worker-1.jsonl').open('ab').write(b'{\"kind\"\\xff}\\n{}\\n'); finished()",
        DONE,
    ),
    WorkerFault("worker-clock-jumps", "time.time = lambda: 3e9\nfor _ in range(9): step()\nfinished()", DONE),
    WorkerFault("worker-clock-is-behind", "time.time = lambda: -3e9\nfor _ in range(9): step()\nfinished()", DONE),
)

_KILLS = (signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSEGV)
_SHORT = "timeouts: {launch_s: 3.9, job_s: 4.0}\n"
_STOPPED = "does not answer: stopped by SIGSTOP or a debugger; "


def _killed(target: str, number: signal.Signals, comm: str) -> SignalFault:
    # A scheduler or server gets SIGINT while it is in C++, where Python cannot turn it into a KeyboardInterrupt.
    return SignalFault(
        f"{target}-{number.name}", target, (number,), Outcome(4, f"error: {target} was killed by {number.name}"), comm
    )


SIGNAL_FAULTS = (
    *(_killed("worker-1", number, "gloo") for number in _KILLS),
    *(_killed(target, number, "byteps") for target in ("server-0", "scheduler") for number in _KILLS if number != 2),
    *(
        SignalFault(
            f"{target}-SIGKILL-at-start",
            target,
            (signal.SIGKILL,),
            Outcome(4, f"error: {target} was killed by SIGKILL"),
            "byteps",
            trained=False,
        )
        for target in ("worker-1", "server-0", "scheduler")
    ),
    *(
        SignalFault(
            f"{target}-SIGSTOP",
            target,
            (signal.SIGSTOP,),
            Outcome(5, f"error: {target} {_STOPPED}the job took longer than 4 s"),
            "byteps",
            settings=_SHORT,
        )
        for target in ("worker-1", "server-0", "scheduler")
    ),
    SignalFault(
        "server-0-SIGSTOP-at-start",
        "server-0",
        (signal.SIGSTOP,),
        Outcome(5, f"error: server-0 {_STOPPED}worker-0, worker-1 did not start training within 4 s"),
        "byteps",
        trained=False,
        settings="timeouts: {launch_s: 4.0}\n",
    ),
    SignalFault("worker-1-SIGSTOP-SIGCONT", "worker-1", (signal.SIGSTOP, signal.SIGCONT), DONE, goes_on=True),
    SignalFault("launcher-SIGSTOP-SIGCONT", "launcher", (signal.SIGSTOP, signal.SIGCONT), DONE, goes_on=True),
    *(
        SignalFault(
            f"launcher-{number.name}", "launcher", (number,), Outcome(130, f"error: interrupted by {number.name}")
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    ),
    *(
        SignalFault(f"launcher-{number.name}", "launcher", (number,), Outcome(-number, "run folder: "))
        for number in (signal.SIGKILL, signal.SIGQUIT, signal.SIGSEGV)
    ),
    SignalFault(
        "reaper-SIGKILL",
        "reaper",
        (signal.SIGKILL,),
        Outcome(0, r"the reaper was killed; it was started again(.|\n)*all workers finished"),
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-SIGKILL",
        "arbitrator",
        (signal.SIGKILL,),
        Outcome(0, "all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-SIGSTOP",
        "arbitrator",
        (signal.SIGSTOP,),
        Outcome(0, "all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
    SignalFault(
        "arbitrator-watch-SIGKILL",
        "arbitrator-watch",
        (signal.SIGKILL,),
        Outcome(0, "warning: arbitrator was killed by SIGKILL during the run(.|\n)*all workers finished"),
        mode="adapt",
        goes_on=True,
    ),
)

_FILE = b"name: t\ncomm: gloo\nmode: off\ncluster: {workers: [{}, {}]}\n"


def _wrong(key: str, line: str, says: str) -> Refusal:
    return Refusal(f"config-{key}", _FILE + line.encode(), Outcome(2, f"error: FILE:5: {says}"))


REFUSALS = (
    _wrong("unknown-key", "widow: 3\n", "widow: unknown key; did you mean 'window'"),
    _wrong("wrong-type", "window: many\n", "window: must be an integer"),
    _wrong("out-of-range", "window: 0\n", "window: "),
    _wrong("endless-timeout", "timeouts: {stall_fail_s: 1.0e+12}\n", "timeouts.stall_fail_s: must be at most"),
    _wrong("not-a-number", "timeouts: {rpc_s: .nan}\n", "timeouts.rpc_s: "),
    _wrong("huge-network", "policy: {name: ppo, ppo: {hidden: 1000000000}}\n", "policy.ppo.hidden: "),
    _wrong("unknown-policy", "policy: {name: magic}\n", "policy.name: "),
    _wrong("bounds-crossed", "batch: {min: 64, max: 32}\n", "batch"),
    _wrong("key-twice", "mode: adapt\n", "mode: "),
    Refusal("config-broken-yaml", _FILE + b"window: [3\n", Outcome(2, "error: FILE:6: not valid YAML")),
    _wrong("tab", "\twindow: 3\n", ""),
    Refusal("config-empty", b"", Outcome(2, "error: FILE")),
    Refusal("config-a-list", b"- 1\n", Outcome(2, "error: FILE:1")),
    Refusal("config-binary", bytes(range(256)), Outcome(2, "error: FILE")),
    Refusal("config-too-deep", b"[" * 100_000, Outcome(2, "error: FILE")),
    Refusal(
        "host-that-does-not-resolve",
        b"name: t\ncomm: gloo\ncluster: {host: no-such-host.invalid, workers: [{}]}\n",
        Outcome(3, "error: cluster.host: .*no-such-host.invalid"),
    ),
    Refusal("no-script", _FILE, Outcome(2, "error: script not found: absent.py"), ("--", "python", "absent.py")),
    Refusal("no-program", _FILE, Outcome(2, "error: command not found"), ("--", "absent-program")),
    Refusal("no-checkpoint", _FILE, Outcome(2, "error: --resume: no checkpoint"), ("--resume", "absent", "--", "true")),
    Refusal(
        "run-folder-not-allowed",
        _FILE,
        Outcome(3, "error: cannot create the run folder"),
        ("--run-dir", "/proc/x", "--", "true"),
    ),
)

SURROUNDINGS = (
    SurroundingsFault("terminal-ascii", "the terminal's encoding is ascii, a worker prints letters of all kinds", DONE),
    SurroundingsFault("terminal-latin-1", "the same with latin-1", DONE),
    SurroundingsFault("stdout-closed", "standard output is closed (>&-)", DONE),
    SurroundingsFault("all-streams-closed", "standard input, output and error are closed", DONE),
    SurroundingsFault("stdout-full", "standard output is /dev/full", DONE),
    SurroundingsFault("stdout-reader-gone", "who reads the output ends after a line (| head -1)", DONE),
    SurroundingsFault("disk-full-in-training", "the disk with the run folder is full while workers train", DONE),
    SurroundingsFault(
        "disk-full-at-a-checkpoint",
        "the disk for checkpoints has no room for one",
        Outcome(0, "warning: .*checkpoint.* was not saved: No space left on device; training goes on"),
    ),
    SurroundingsFault(
        "disk-full-at-start",
        "the disk for the run folder is full",
        Outcome(3, "error: cannot .*No space left on device"),
    ),
    SurroundingsFault(
        "run-folder-removed", "somebody removes the run folder while workers train", Outcome(0, "warning: ")
    ),
    SurroundingsFault(
        "launcher-out-of-files",
        "the launcher may open 12 files",
        Outcome(3, "error: .*Too many open files"),
    ),
    SurroundingsFault("shared-memory-small", "/dev/shm has 4 KiB under a training on BytePS", DONE),
    SurroundingsFault(
        "roles-by-hand-workers-killed",
        "both workers of roles started by hand are killed",
        Outcome(6, "error: server: all workers have been gone"),
    ),
)

TRAINING_FAULTS = (
    TrainingFault(
        "evaluate-on-one-rank",
        Outcome(4, r"error: .*worker 0 sends the gradients of iteration 6; worker 1 calls run.evaluate\(\)"),
        within="run.evaluate(data, lambda batch: {'mse': 0.0})",
    ),
    TrainingFault(
        "loop-shorter-on-one-rank",
        Outcome(4, "error: .*worker 0 sends the gradients of iteration 20; worker 1 .*after 20 iterations"),
        before="iterations = 20",
    ),
    TrainingFault(
        "data-sets-differ",
        Outcome(4, "error: .*the data sets of the workers differ: 400 samples on worker 0, 300 samples on worker 1"),
        before="data = torch.utils.data.TensorDataset(inputs[:300], inputs[:300])",
    ),
    TrainingFault(
        "weights-changed-on-one-rank",
        Outcome(4, "error: .*the weights differ between workers before the step of iteration 6"),
        within="with torch.no_grad(): model.weight += 1.0",
    ),
    TrainingFault(
        "training-killed",
        Outcome(4, r"error: worker-1 was killed by SIGKILL at iteration 6\b"),
        within="os.kill(os.getpid(), signal.SIGKILL)",
    ),
    TrainingFault(
        "training-hangs",
        Outcome(4, r"error: worker-0 ended with exit code 5 at iteration 6: .*missing: worker 1 \(at iteration 6,"),
        within="time.sleep(600)",
    ),
    TrainingFault(
        "training-stopped",
        Outcome(4, f"error: worker-1 {_STOPPED}worker-0 ended with exit code 5 at iteration 6: .*missing: worker 1"),
        within="os.kill(os.getpid(), signal.SIGSTOP)",
    ),
    TrainingFault(
        "training-server-stopped",
        Outcome(4, f"error: server-0 {_STOPPED}worker-. ended with exit code 5 at iteration .*missing: server-0"),
        within="for entry in os.listdir('/proc'):\n"
        "    if entry.isdigit() and 'server_hooks.server' in open(f'/proc/{entry}/cmdline').read():\n"
        "        if os.environ['DYNAMIX_RUN_ID'] in open(f'/proc/{entry}/environ').read():\n"
        "            os.kill(int(entry), signal.SIGSTOP)",
        comm="byteps",
    ),
)

_TRAINING, _LAUNCH = "tests/integration/test_training_faults.py", "tests/integration/test_launch.py"
_TERMINATION = "tests/integration/test_termination.py"
_NETWORK = "tests/integration/test_network_faults.py"

HELD_ELSEWHERE = (
    HeldElsewhere(
        "loss-not-finite",
        "exit 4, worker and iteration are named",
        f"{_TRAINING}::test_a_fault_in_training_ends_the_job_with_its_reason",
    ),
    HeldElsewhere("data-file-damaged", "exit 4, the file is named", f"{_TRAINING}::test_a_damaged_data_file_is_named"),
    HeldElsewhere(
        "worker-stopped-for-a-while",
        "the others name it, then training goes on and ends well",
        f"{_TRAINING}::test_a_stopped_worker_is_named_by_those_who_wait_and_training_goes_on",
    ),
    HeldElsewhere(
        "launcher-and-reaper-killed",
        "the next launch removes what is left",
        f"{_LAUNCH}::test_what_a_run_left_whose_reaper_died_too_is_removed_by_the_next_run",
    ),
    HeldElsewhere(
        "checkpoint-damaged",
        "refused with its path, and the one before it is used",
        "tests/unit/worker_hooks/test_checkpoint.py::test_a_damaged_checkpoint_is_refused_and_the_one_before_it_used",
    ),
    HeldElsewhere(
        "checkpoint-of-another-model",
        "refused before anything changes",
        "tests/unit/worker_hooks/test_resume.py::test_a_checkpoint_of_another_model_is_refused_before_anything_changes",
    ),
    HeldElsewhere(
        "sigterm-where-checkpoints-are-saved",
        "a checkpoint is written, and the job goes on from it",
        "tests/integration/test_termination.py::test_stopping_a_job_leaves_a_checkpoint_that_it_goes_on_from",
    ),
    HeldElsewhere("network-link-down-and-up", "counted right after it", f"{_NETWORK}::test_link_down_and_up"),
    HeldElsewhere("network-interface-renamed", "counted right", f"{_NETWORK}::test_interface_renamed"),
    HeldElsewhere(
        "network-cut",
        "workers on both sides give up after timeouts.stall_fail_s, exit 5",
        "tests/integration/test_network_cut.py::test_workers_on_both_sides_of_a_cut_give_up",
    ),
    HeldElsewhere(
        "network-lossy-or-narrow",
        "training goes on, and the record tells which link is slow and why",
        "tests/integration/test_network_whole_run.py::test_a_lossy_link_and_a_narrow_link_are_told_apart",
    ),
    HeldElsewhere(
        "probe-killed",
        "training goes on, which is said once",
        "tests/integration/test_network_probe_runs.py::test_training_goes_on_when_the_probe_is_killed",
    ),
    HeldElsewhere(
        "probe-hangs",
        "the run ends all the same",
        "tests/integration/test_network_probe_runs.py::test_a_probe_that_hangs_does_not_keep_the_run_from_ending",
    ),
    HeldElsewhere(
        "arbitrator-dies-again-and-again",
        "it is left alone, which is said once",
        "tests/integration/test_arbitrator_watch.py::test_one_that_dies_again_and_again_is_left_alone",
    ),
    HeldElsewhere(
        "arbitrator-lies",
        "a wrong plan is refused once, and the right one after it counts",
        "tests/faults/test_lying_arbitrator.py::test_a_wrong_plan_is_refused_once_and_the_right_one_after_it_counts",
    ),
    HeldElsewhere(
        "worker-terminated-that-saves-checkpoints",
        "exit 4, the worker is named, worker 0 saves the last iteration",
        f"{_TERMINATION}::test_a_worker_that_is_terminated_leaves_a_checkpoint_of_worker_0",
    ),
    HeldElsewhere(
        "places-differ-after-a-resume",
        "all workers stop in the first iteration",
        "tests/integration/test_own_checkpoint.py::test_workers_that_load_different_places_stop",
    ),
    HeldElsewhere("interrupted-twice", "exit 130, all are killed at once", f"{_LAUNCH}::test_the_second_ctrl_c_kills"),
    HeldElsewhere(
        "port-in-use", "exit 3, its owner is named", f"{_LAUNCH}::test_a_taken_port_is_exit_code_3_and_names_its_owner"
    ),
    HeldElsewhere(
        "policy-module-absent",
        "exit 2 with file and line, nothing is started",
        f"{_LAUNCH}::test_a_policy_that_is_not_there_ends_the_launch_before_anything_starts",
    ),
)
