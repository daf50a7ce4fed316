"""Stage threads without work sleep until there is some; unedited, they wake up 18,000 times per second."""

from __future__ import annotations

from dynamix_ps.byteps_build.edits.base import Edit, added

_WHY = "a stage without work sleeps until there is some"
_TEST = "test_byteps_waiting.py::test_idle_roles_use_no_cpu"

_QUEUE_H = "byteps/common/scheduled_queue.h"
_QUEUE_CC = "byteps/common/scheduled_queue.cc"
_NCCL_H = "byteps/common/nccl_manager.h"
_NCCL_CC = "byteps/common/nccl_manager.cc"

EDITS = (
    added("byteps/common/stage_sleep.h", _WHY, _TEST),
    Edit(
        _QUEUE_H,
        """  std::shared_ptr<TensorTableEntry> getTask();
""",
        """  // A ready task. Without one: null, but from an empty queue only after waiting for a task for a while
  // (not REDUCE and BROADCAST: one thread serves both, see NcclTasks).
  std::shared_ptr<TensorTableEntry> getTask();
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_H,
        """  std::mutex _mutex;
  uint64_t _credits;
""",
        """  std::mutex _mutex;
  std::condition_variable _added;
  bool _waits;
  uint64_t _credits;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_H,
        """#include <atomic>
#include <memory>
""",
        """#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_CC,
        """BytePSScheduledQueue::BytePSScheduledQueue(QueueType type) {
""",
        """BytePSScheduledQueue::BytePSScheduledQueue(QueueType type) {
  _waits = type != REDUCE && type != BROADCAST;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_CC,
        """  std::lock_guard<std::mutex> lock(_mutex);
  _sq.push_back(entry);
""",
        """  std::unique_lock<std::mutex> lock(_mutex);
  _sq.push_back(entry);
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_CC,
        """                 << " addTask: " << entry->tensor_name << " key: " << entry->key
                 << " rank: " << BytePSGlobal::GetLocalRank();
  return;
""",
        """                 << " addTask: " << entry->tensor_name << " key: " << entry->key
                 << " rank: " << BytePSGlobal::GetLocalRank();
  lock.unlock();
  if (_waits) {
    _added.notify_one();
  } else {
    NcclTasks::Instance().Added();
  }
  return;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_CC,
        """std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  std::lock_guard<std::mutex> lock(_mutex);
""",
        """std::shared_ptr<TensorTableEntry> BytePSScheduledQueue::getTask() {
  std::unique_lock<std::mutex> lock(_mutex);
  if (_waits) _added.wait_for(lock, kPatience, [this] { return !_sq.empty(); });
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _QUEUE_CC,
        """#include "logging.h"
""",
        """#include "logging.h"
#include "stage_sleep.h"
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/common/core_loops.cc",
        """#include "logging.h"
""",
        """#include "logging.h"
#include "stage_sleep.h"
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/common/core_loops.cc",
        """    NCCLCHECK(ncclGroupEnd());
    std::this_thread::sleep_for(std::chrono::nanoseconds(1000));
""",
        """    NCCLCHECK(ncclGroupEnd());
    NcclTasks::Instance().Wait();
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _NCCL_CC,
        """  std::lock_guard<std::mutex> lock(_nccl_mutex);
  _nccl_pipeline.push(e);
  return;
""",
        """  std::lock_guard<std::mutex> lock(_nccl_mutex);
  _nccl_pipeline.push(e);
  _nccl_added.notify_one();
  return;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _NCCL_CC,
        """  std::lock_guard<std::mutex> lock(_nccl_mutex);
  if (!_nccl_pipeline.size()) {
    return nullptr;
  }
""",
        """  std::unique_lock<std::mutex> lock(_nccl_mutex);
  if (!_nccl_added.wait_for(lock, std::chrono::milliseconds(200),
                            [this] { return !_nccl_pipeline.empty(); })) {
    return nullptr;
  }
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _NCCL_H,
        """  std::mutex _nccl_mutex;
""",
        """  std::mutex _nccl_mutex;
  std::condition_variable _nccl_added;
""",
        _WHY,
        _TEST,
    ),
    Edit(
        _NCCL_H,
        """#include <queue>
""",
        """#include <condition_variable>
#include <mutex>
#include <queue>
""",
        _WHY,
        _TEST,
    ),
    Edit(
        "byteps/common/communicator.h",
        """    if ((_root == _local_rank) && _listen_thread) {
      _listen_thread->join();
    }
""",
        """    if ((_root == _local_rank) && _listen_thread) {
      shutdown(_recv_fd, SHUT_RDWR);  // wakes the thread, which otherwise looks up every 3 seconds
      _listen_thread->join();
    }
""",
        "a worker's exit took up to six seconds",
        "every test that ends a worker",
    ),
)
