// How the threads of the stages sleep while they have no task.
#ifndef BYTEPS_COMMON_STAGE_SLEEP_H_
#define BYTEPS_COMMON_STAGE_SLEEP_H_

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "global.h"

namespace byteps {
namespace common {

// How long to sleep at most: the stage loops look at the shutdown flag in between.
const std::chrono::milliseconds kPatience(200);

// One thread serves both REDUCE and BROADCAST. So it waits for a task in either queue.
class NcclTasks {
 public:
  static NcclTasks &Instance() {
    static NcclTasks *instance = new NcclTasks();
    return *instance;
  }

  // One of the queues has one more task.
  void Added() {
    std::lock_guard<std::mutex> lock(mu_);
    added_.notify_one();
  }

  // Sleep for a while, until there is a task.
  void Wait() {
    std::unique_lock<std::mutex> lock(mu_);
    if (Pending() == 0) {
      added_.wait_for(lock, kPatience, [] { return Pending() > 0; });
    } else {  // not ready: another process or the GPU decides when
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

 private:
  static uint32_t Pending() {
    return BytePSGlobal::GetScheduledQueue(REDUCE)->pendingSize() +
           BytePSGlobal::GetScheduledQueue(BROADCAST)->pendingSize();
  }

  std::mutex mu_;
  std::condition_variable added_;
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_COMMON_STAGE_SLEEP_H_
