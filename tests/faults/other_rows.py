"""Faults of the surroundings, and faults whose outcome a test of another folder holds."""

from __future__ import annotations

from tests.faults.table import DONE, HeldElsewhere, Outcome, SurroundingsFault

SURROUNDINGS = (
    SurroundingsFault("terminal-ascii", "the terminal's encoding is ascii, a worker prints letters of all kinds", DONE),
    SurroundingsFault("terminal-latin-1", "the same with latin-1", DONE),
    SurroundingsFault("stdout-closed", "standard output is closed (>&-)", DONE),
    SurroundingsFault("all-streams-closed", "standard input, output and error are closed", DONE),
    SurroundingsFault("stdout-full", "standard output is /dev/full", DONE),
    SurroundingsFault("stdout-reader-gone", "who reads the output ends after a line (| head -1)", DONE),
    SurroundingsFault(
        "output-flood",
        "workers print 200,000 lines without pause, then 10 MB without a newline: the logs have every byte, and the "
        "terminal the first and last lines, and how many it leaves out",
        DONE,
    ),
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

_TRAINING, _LAUNCH = "tests/integration/training/test_training_faults.py", "tests/integration/launch/test_launch.py"
_TERMINATION = "tests/integration/launch/test_termination.py"
_NETWORK = "tests/integration/network/test_network_faults.py"
_HOLDINGS, _RECORDER = "tests/unit/launch/cleanup/test_holdings.py", "tests/unit/report/test_recorder.py"
_POD = "tests/integration/launch/test_restricted_pod.py"

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
        "launch-in-another-pid-namespace",
        "a run with the same temporary folder and shared memory goes on untouched",
        f"{_LAUNCH}::test_a_run_is_not_touched_by_one_in_another_pid_namespace_with_the_same_folders",
    ),
    HeldElsewhere(
        "launch-beside-another-of-the-user",
        "what belongs to a run that lives is left alone, that of a dead one is removed",
        f"{_HOLDINGS}::test_the_record_of_a_dead_run_is_believed_and_that_of_a_living_one_is_left",
    ),
    HeldElsewhere(
        "launch-on-another-machine-with-the-same-temporary-folder",
        "a run of the other machine is left alone",
        f"{_HOLDINGS}::test_a_run_of_another_machine_is_left_alone_as_its_lock_may_not_show_here",
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
        "tests/integration/launch/test_termination.py::test_stopping_a_job_leaves_a_checkpoint_that_it_goes_on_from",
    ),
    HeldElsewhere("network-link-down-and-up", "counted right after it", f"{_NETWORK}::test_link_down_and_up"),
    HeldElsewhere("network-interface-renamed", "counted right", f"{_NETWORK}::test_interface_renamed"),
    HeldElsewhere(
        "network-cut",
        "workers on both sides give up after timeouts.stall_fail_s, exit 5",
        "tests/integration/network/test_network_cut.py::test_workers_on_both_sides_of_a_cut_give_up",
    ),
    HeldElsewhere(
        "network-lossy-or-narrow",
        "training goes on, and the record tells which link is slow and why",
        "tests/integration/network/test_network_whole_run.py::test_a_lossy_link_and_a_narrow_link_are_told_apart",
    ),
    HeldElsewhere(
        "probe-killed",
        "training goes on, which is said once",
        "tests/integration/network/test_network_probe_runs.py::test_training_goes_on_when_the_probe_is_killed",
    ),
    HeldElsewhere(
        "probe-hangs",
        "the run ends all the same",
        "tests/integration/network/test_network_probe_runs.py::test_a_probe_that_hangs_does_not_keep_the_run_from_ending",
    ),
    HeldElsewhere(
        "arbitrator-dies-again-and-again",
        "it is left alone, which is said once",
        "tests/integration/arbitrator/test_arbitrator_watch.py::test_one_that_dies_again_and_again_is_left_alone",
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
        "tests/integration/training/test_own_checkpoint.py::test_workers_that_load_different_places_stop",
    ),
    HeldElsewhere("interrupted-twice", "exit 130, all are killed at once", f"{_LAUNCH}::test_the_second_ctrl_c_kills"),
    HeldElsewhere(
        "port-in-use", "exit 3, its owner is named", f"{_LAUNCH}::test_a_taken_port_is_exit_code_3_and_names_its_owner"
    ),
    HeldElsewhere(
        "launcher-out-of-files-at-a-loss",
        "it uses files that it has kept for that, which is said once, and the worker is started again",
        "tests/integration/membership/test_workers_enter.py::test_a_restart_enters",
    ),
    HeldElsewhere(
        "save-killed",
        "the next save removes what is half written",
        "tests/unit/worker_hooks/test_checkpoint.py::test_what_a_save_that_was_killed_has_left_goes_with_the_next_one",
    ),
    HeldElsewhere(
        "record-with-other-values",
        "the line is left out and counted, the run goes on and its report is made",
        "tests/unit/report/test_damaged_lines.py::test_a_line_of_a_worker",
    ),
    HeldElsewhere(
        "record-that-is-no-json-or-too-deep",
        "the line is counted, and the run goes on",
        f"{_RECORDER}::test_unreadable_lines_are_counted_not_raised",
    ),
    HeldElsewhere(
        "record-with-an-endless-line",
        "the line is left out while it grows, and the lines behind it are read",
        f"{_RECORDER}::test_a_long_line_is_left_out_while_it_grows",
    ),
    HeldElsewhere(
        "record-with-control-characters",
        "they are shown as text in the terminal, the summary and the report",
        f"{_RECORDER}::test_text_of_a_role_cannot_steer_a_terminal",
    ),
    HeldElsewhere(
        "message-beyond-its-bounds",
        "refused before it is built, however deep or large it is",
        "tests/unit/test_bounded_json.py::test_what_is_beyond_the_bounds_is_refused",
    ),
    HeldElsewhere(
        "role-that-is-started-thousands-of-times",
        "it waits the longest time, and the launcher goes on",
        "tests/unit/launch/job/test_restarts.py::test_the_wait_stays_the_longest_after_thousands_of_starts",
    ),
    HeldElsewhere(
        "run-folder-of-another-user",
        "no other user can enter it",
        "tests/unit/run_record/test_run_folder.py::test_the_folder_is_for_this_user_alone",
    ),
    HeldElsewhere(
        "journal-of-members-damaged",
        "the arbitrator does not start, and the line is named",
        "tests/unit/membership/test_journal.py::test_a_line_of_another_form_is_an_error_too",
    ),
    HeldElsewhere(
        "message-of-a-member-malformed",
        "refused, and the job goes on",
        "tests/unit/rpc/test_membership_codec.py::test_what_is_no_message_is_refused",
    ),
    HeldElsewhere(
        "policy-file-that-unpacks-to-any-size",
        "refused before it is unpacked",
        "tests/unit/policy/ppo/test_policy_file.py::"
        "test_an_archive_that_unpacks_to_more_than_a_policy_is_refused_unread",
    ),
    HeldElsewhere(
        "recording-that-unpacks-to-any-size",
        "refused at a bound",
        "tests/unit/sim/test_calibrate.py::test_a_recording_that_unpacks_to_any_size_is_refused_at_its_bound",
    ),
    HeldElsewhere(
        "policy-of-a-file-that-is-only-checked",
        "its source is read, nothing of it runs",
        "tests/unit/policy/test_checked_only.py::test_a_command_that_checks_a_file_runs_nothing_of_its_policy",
    ),
    HeldElsewhere(
        "pod-under-pod-security-restricted",
        "admitted: no rule of the profile is broken",
        "tests/unit/launch/targets/kubernetes/test_manifests.py::test_pods_pass_pod_security_restricted",
    ),
    HeldElsewhere(
        "user-without-name-home-and-capabilities",
        "a job on BytePS ends well",
        f"{_POD}::test_a_job_on_byteps_runs_as_a_user_without_name_home_and_capabilities",
    ),
    HeldElsewhere(
        "probe-without-all-rights-of-root",
        "it needs the capabilities of its manifest and no others",
        f"{_POD}::test_the_probe_needs_no_more_than_the_capabilities_of_its_manifest",
    ),
    HeldElsewhere(
        "policy-module-absent",
        "exit 2 with file and line, nothing is started",
        f"{_LAUNCH}::test_a_policy_that_is_not_there_ends_the_launch_before_anything_starts",
    ),
)
