"""Faults of a worker that acts like a hook: how it ends, hangs, prints, or lies about its clock."""

from __future__ import annotations

from tests.faults.table import DONE, Outcome, WorkerFault

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
    WorkerFault(
        "worker-dies-after-control-characters",
        "print('\\x1b[2J\\x1b]0;title\\x07', flush=True); os._exit(9)",
        Outcome(4, r"\A[^\x1b\x07]*error: worker-1 ended with exit code 9[^\x1b\x07]*\Z"),
    ),
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
    WorkerFault(
        "worker-writes-a-deep-line",
        "(folder / 'workers' / 'worker-1.jsonl').open('ab').write(b'[' * 200_000 + b'\\n'); finished()",
        DONE,
    ),
    WorkerFault("worker-clock-jumps", "time.time = lambda: 3e9\nfor _ in range(9): step()\nfinished()", DONE),
    WorkerFault("worker-clock-is-behind", "time.time = lambda: -3e9\nfor _ in range(9): step()\nfinished()", DONE),
)
