"""Shared memory and sockets within one worker: names of its own, closed to other users of the host."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit

_PRIVATE = "other users of the host could read and change gradients"
_PRIVATE_TEST = "test_byteps_cluster.py::test_segments_and_sockets_are_private"

NAMES = (
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

PRIVATE = (
    Edit(
        "byteps/common/shared_memory.cc",
        """  int shm_fd = shm_open(shm_name.c_str(), O_CREAT | O_RDWR, 0666);
  BPS_CHECK_GE(shm_fd, 0) << "shm_open failed for " << shm_name;
""",
        """  int shm_fd = shm_open(shm_name.c_str(), O_CREAT | O_RDWR, 0600);
  BPS_CHECK_GE(shm_fd, 0) << "shm_open failed for " << shm_name << ": " << strerror(errno);
  struct stat segment;
  BPS_CHECK_GE(fstat(shm_fd, &segment), 0) << strerror(errno);
  BPS_CHECK_EQ(segment.st_uid, geteuid()) << "shared memory " << shm_name << " belongs to another user";
""",
        _PRIVATE,
        _PRIVATE_TEST,
    ),
    Edit(
        "byteps/common/communicator.cc",
        """  // bind the socket to addr
""",
        """  fchmod(fd, 0600);  // the mode of the file that bind makes

  // bind the socket to addr
""",
        _PRIVATE,
        _PRIVATE_TEST,
    ),
    Edit(
        "byteps/common/communicator.cc",
        """#include <cerrno>
""",
        """#include <sys/stat.h>
#include <cerrno>
""",
        _PRIVATE,
        _PRIVATE_TEST,
    ),
)
