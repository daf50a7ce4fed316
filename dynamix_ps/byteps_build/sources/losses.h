// Roles whose connection has ended, for a thread that waits for the next one.
#ifndef PS_LOSSES_H_
#define PS_LOSSES_H_

#include <stdint.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

namespace ps {

class Losses {
 public:
  // Of this process, from before it has any connection.
  static Losses& Instance() {
    static Losses* instance = new Losses();
    return *instance;
  }

  // `kind`: a Node::Role; `rank`: which one of this kind.
  void Add(int kind, int rank) {
    std::lock_guard<std::mutex> lock(mu_);
    lost_.emplace_back(kind, rank);
    more_.notify_one();
  }

  // The kind, or -1 if nobody is lost within `timeout_s`.
  int Next(double timeout_s, int* rank) {
    std::unique_lock<std::mutex> lock(mu_);
    auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9));
    if (!more_.wait_until(lock, limit, [this] { return !lost_.empty(); })) return -1;
    int kind = lost_.front().first;
    *rank = lost_.front().second;
    lost_.pop_front();
    return kind;
  }

 private:
  std::mutex mu_;
  std::condition_variable more_;
  std::deque<std::pair<int, int>> lost_;
};

}  // namespace ps

#endif  // PS_LOSSES_H_
