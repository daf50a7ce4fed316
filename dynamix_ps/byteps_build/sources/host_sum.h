// Sums of workers of one host, in memory that all of them map: no server, no thread, no message.
//
// Who waits for a sum works on it. When all have pushed, the waiting workers claim blocks, one after the other;
// each block is summed over all contributions in the order of ranks and written to all of them. So a slow
// worker, which comes last, is not held up by sums that others have time for, and the result is the same
// whoever makes it.
#ifndef BYTEPS_HOST_SUM_H_
#define BYTEPS_HOST_SUM_H_

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <vector>

#include "sums.h"

namespace byteps {
namespace common {

// A number that processes wait for. It only grows (and wraps around).
class Counter {
 public:
  // Adds one and returns the new value.
  uint32_t Increment() { return value_.fetch_add(1) + 1; }
  void Wake() { syscall(SYS_futex, &value_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0); }
  bool Reached(uint32_t value) const { return static_cast<int32_t>(value_.load() - value) >= 0; }

  // Whether `value` is reached before `deadline` (by CLOCK_MONOTONIC).
  bool Wait(uint32_t value, const timespec& deadline) {
    while (true) {
      uint32_t now = value_.load();
      if (static_cast<int32_t>(now - value) >= 0) return true;
      long failed = syscall(SYS_futex, &value_, FUTEX_WAIT_BITSET, now, &deadline, nullptr, FUTEX_BITSET_MATCH_ANY);
      if (failed && errno == ETIMEDOUT) return Reached(value);
    }
  }

 private:
  std::atomic<uint32_t> value_{0};
};

const int kMaxOnHost = 256;

// In the first page of the segment of the first worker of the host; begins as zeros.
struct HostSumState {
  alignas(64) Counter pushed;                 // contributions to all rounds
  alignas(64) std::atomic<uint64_t> claimed;  // round << 32 | blocks of it that are taken
  alignas(64) Counter summed;                 // blocks of all rounds
  alignas(64) uint64_t skip[kMaxOnHost];      // of every worker's contribution to this round
};
static_assert(sizeof(HostSumState) <= 4096 - 64, "it follows the nonce in the first page");

class HostSum {
 public:
  // `places`: the memory of all workers of the host, in the order of ranks; `mine`: which one is this worker's.
  HostSum(HostSumState* state, std::vector<char*> places, int mine, size_t bytes)
      : state_(state), places_(std::move(places)), mine_(mine), bytes_(bytes),
        blocks_((bytes + sums::kBlock - 1) / sums::kBlock) {}

  void Push(int type, size_t skip) {
    ++round_;
    type_ = type;
    state_->skip[mine_] = skip;
    if (state_->pushed.Increment() == static_cast<uint32_t>(round_ * places_.size())) state_->pushed.Wake();
  }

  // Whether the sum of the round is complete before `deadline`.
  bool Wait(const timespec& deadline) {
    if (!state_->pushed.Wait(static_cast<uint32_t>(round_ * places_.size()), deadline)) return false;
    std::vector<sums::Contribution> all;
    for (size_t i = 0; i < places_.size(); ++i) all.push_back({places_[i], state_->skip[i]});
    uint32_t complete = static_cast<uint32_t>(round_ * blocks_);
    for (size_t block; (block = Claim()) < blocks_;) {
      size_t begin = block * sums::kBlock;
      sums::SumBlock(type_, all, nullptr, begin, std::min(begin + sums::kBlock, bytes_));
      if (state_->summed.Increment() == complete) state_->summed.Wake();
    }
    return state_->summed.Wait(complete, deadline);
  }

 private:
  // A block that nobody else takes; `blocks_` if all are taken. Nobody can be in another round here: to push
  // the next one, a worker must have seen the end of this one.
  size_t Claim() {
    uint64_t begin = static_cast<uint64_t>(static_cast<uint32_t>(round_)) << 32;
    uint64_t now = state_->claimed.load();
    while (true) {
      uint64_t next = (now >> 32) == (begin >> 32) ? now : begin;
      if ((next & UINT32_MAX) >= blocks_) return blocks_;
      if (state_->claimed.compare_exchange_weak(now, next + 1)) return next & UINT32_MAX;
    }
  }

  HostSumState* state_;
  const std::vector<char*> places_;
  const int mine_;
  const size_t bytes_, blocks_;
  uint64_t round_ = 0;
  int type_ = 0;
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_HOST_SUM_H_
