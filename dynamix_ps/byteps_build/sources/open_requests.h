// The requests of a customer that are not answered yet, by their timestamps.
//
// Why: ps-lite keeps the counts of every request for ever, 8 bytes each. Here an entry goes with its last
// answer. Its timestamp stays valid: whoever waits for it later need not wait.
#ifndef PS_INTERNAL_OPEN_REQUESTS_H_
#define PS_INTERNAL_OPEN_REQUESTS_H_

#include <condition_variable>
#include <limits>
#include <mutex>
#include <unordered_map>

namespace ps {

// Any thread may call it.
class OpenRequests {
 public:
  // The timestamp of a new request, which `nodes` nodes will answer.
  int Begin(int nodes) {
    std::lock_guard<std::mutex> lock(mu_);
    int timestamp = next_;
    next_ = next_ == kLast ? 0 : next_ + 1;
    open_[timestamp] = {nodes, 0};
    return timestamp;
  }

  // Count answers. False if there is no such request, or no answer to it is missing.
  bool Answer(int timestamp, int answers) {
    std::lock_guard<std::mutex> lock(mu_);
    auto found = open_.find(timestamp);
    if (found == open_.end() || answers > found->second.nodes - found->second.answers) return false;
    found->second.answers += answers;
    if (found->second.answers == found->second.nodes) {
      open_.erase(found);
      completed_.notify_all();
    }
    return true;
  }

  // How many answers there are so far; -1 if all are there.
  int Answers(int timestamp) {
    std::lock_guard<std::mutex> lock(mu_);
    auto found = open_.find(timestamp);
    return found == open_.end() ? -1 : found->second.answers;
  }

  // Sleep until all answers are there.
  void Wait(int timestamp) {
    std::unique_lock<std::mutex> lock(mu_);
    completed_.wait(lock, [&] { return open_.find(timestamp) == open_.end(); });
  }

  size_t size() {
    std::lock_guard<std::mutex> lock(mu_);
    return open_.size();
  }

 private:
  struct Counts {
    int nodes;
    int answers;
  };

  static const int kLast = std::numeric_limits<int>::max() - 1;  // the number after it means "none" in ps-lite

  std::mutex mu_;
  std::condition_variable completed_;
  std::unordered_map<int, Counts> open_;
  int next_ = 0;
};

}  // namespace ps

#endif  // PS_INTERNAL_OPEN_REQUESTS_H_
