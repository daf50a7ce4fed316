"""Real trainings in which one worker does something else than the other."""

from __future__ import annotations

from tests.faults.table import Outcome, TrainingFault

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
        Outcome(
            4, "error: .*the weights differ between workers before the step of iteration 10"
        ),  # every fifth sum looks
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
        Outcome(
            4,
            "error: worker-1 does not answer: stopped by SIGSTOP or a debugger; "
            # It may have stopped before it has told anything to the arbitrator.
            "worker-0 ended with exit code 5 at iteration 6: .*(missing: worker 1|has not heard of worker 1)",
        ),
        within="os.kill(os.getpid(), signal.SIGSTOP)",
    ),
    TrainingFault(
        "training-server-stopped",
        Outcome(
            4,
            "error: server-0 does not answer: stopped by SIGSTOP or a debugger; "
            "worker-. ended with exit code 5 at iteration ",
        ),
        within="for entry in os.listdir('/proc'):\n"
        "    if entry.isdigit() and 'server_hooks.server' in open(f'/proc/{entry}/cmdline').read():\n"
        "        if os.environ['DYNAMIX_RUN_ID'] in open(f'/proc/{entry}/environ').read():\n"
        "            os.kill(int(entry), signal.SIGSTOP)",
        comm="byteps",
    ),
)
