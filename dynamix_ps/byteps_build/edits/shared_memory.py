"""Names of shared-memory segments per worker, so that several workers can run on one host without root."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

EDITS = (
    Edit(
        "byteps/common/shared_memory.cc",
        """  std::string shm_name(prefix);
  shm_name += std::to_string(key);
""",
        """  // The names are one space for the whole host. All processes of one worker share segments, so the
  // prefix must be the same for them and differ from that of every other worker.
  const char* worker_prefix = getenv("BYTEPS_SHM_PREFIX");
  std::string shm_name(worker_prefix ? worker_prefix : "");
  shm_name += prefix;
  shm_name += std::to_string(key);
""",
        "two workers on one host would share, and overwrite, each other's gradient buffers",
        "test_byteps_cluster.py::test_two_workers_on_one_host_do_not_share_buffers",
    ),
)
