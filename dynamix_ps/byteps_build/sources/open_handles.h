// The handles of the torch plugin: each stands for a sum, from its start until someone has waited for it.
#ifndef BYTEPS_TORCH_OPEN_HANDLES_H_
#define BYTEPS_TORCH_OPEN_HANDLES_H_

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>

#include "../common/common.h"

namespace byteps {
namespace torch {

// Any thread may call it.
class OpenHandles {
 public:
  int AllocateHandle() {
    std::lock_guard<std::mutex> lock(mu_);
    open_[++last_];
    return last_;
  }

  // `tensors` lives until the handle is released, so that the waiting thread destroys it: BytePS's
  // threads must not wait for the GIL, which that can take.
  void MarkDone(int handle, const common::Status& status, std::shared_ptr<void> tensors) {
    std::lock_guard<std::mutex> lock(mu_);
    open_[handle] = {std::make_shared<common::Status>(status), std::move(tensors)};
    done_.notify_all();
  }

  bool PollHandle(int handle) {
    std::lock_guard<std::mutex> lock(mu_);
    return Get(handle).status != nullptr;
  }

  // Sleep until the handle is done or the time is over. True: done. A negative time means no limit.
  bool WaitHandle(int handle, double timeout_s) {
    std::unique_lock<std::mutex> lock(mu_);
    auto done = [&] { return Get(handle).status != nullptr; };
    if (timeout_s >= 0) return done_.wait_for(lock, std::chrono::duration<double>(timeout_s), done);
    done_.wait(lock, done);
    return true;
  }

  std::shared_ptr<common::Status> ReleaseHandle(int handle) {
    Sum sum;  // its tensors are destroyed after the lock is given back
    std::lock_guard<std::mutex> lock(mu_);
    std::swap(sum, Get(handle));
    open_.erase(handle);
    return sum.status;
  }

 private:
  struct Sum {
    std::shared_ptr<common::Status> status;  // null: not done
    std::shared_ptr<void> tensors;
  };

  Sum& Get(int handle) {
    auto found = open_.find(handle);
    if (found == open_.end()) {
      throw std::invalid_argument("Handle " + std::to_string(handle) + " was not created or has been cleared.");
    }
    return found->second;
  }

  std::mutex mu_;
  std::condition_variable done_;
  std::unordered_map<int, Sum> open_;
  int last_ = 0;
};

}  // namespace torch
}  // namespace byteps

#endif  // BYTEPS_TORCH_OPEN_HANDLES_H_
