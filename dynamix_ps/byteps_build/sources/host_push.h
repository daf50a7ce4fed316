// One push for all workers of a host, where servers or other workers are on other hosts.
//
// The workers map each other's memory. When all have pushed, the first of them, the leader, sums their
// contributions and pushes the sum like a contribution of its own. As the answers arrive it copies them to the
// others, piece by piece, while they are in the cache. The link carries as much as for one worker.
#ifndef BYTEPS_HOST_PUSH_H_
#define BYTEPS_HOST_PUSH_H_

#include <algorithm>
#include <limits>
#include <vector>

#include "host_sum.h"

namespace byteps {
namespace common {

class HostPush {
 public:
  // `places`: the memory of all workers of the host, in the order of ranks; `mine`: which one is this worker's.
  HostPush(HostSumState* state, std::vector<char*> places, int mine, size_t bytes)
      : state_(state), places_(std::move(places)), mine_(mine), bytes_(bytes) {}

  bool Leads() const { return mine_ == 0; }

  // A contribution to the next round. The leader then calls the functions below.
  void Push(size_t skip) {
    ++round_;
    state_->skip[mine_] = skip;
    if (state_->pushed.Increment() == Pushes()) state_->pushed.Wake();
  }

  // Whether the round is complete before `deadline`.
  bool Wait(const timespec& deadline) { return state_->summed.Wait(static_cast<uint32_t>(round_), deadline); }

  // Wait until all have pushed; `skip` is what all of them skip. Returns where the sum is made: in the leader's
  // own memory, unless the leader skips bytes, which are not to be written, that others do not.
  char* Begin(size_t* skip) {
    timespec never = {};
    never.tv_sec = std::numeric_limits<int32_t>::max();
    while (!state_->pushed.Wait(Pushes(), never)) {
    }
    all_.clear();
    *skip = bytes_;
    for (size_t i = 0; i < places_.size(); ++i) {
      all_.push_back({places_[i], state_->skip[i]});
      *skip = std::min(*skip, all_[i].skip);
    }
    bool in_place = all_[0].skip <= *skip;
    if (!in_place) apart_.resize(bytes_);
    total_ = in_place ? places_[0] : apart_.data();
    return total_;
  }

  // Sum bytes [begin, end). Nobody skips all of them.
  void Sum(int type, size_t begin, size_t end) {
    alignas(64) char block[sums::kBlock];
    for (; begin < end; begin += sums::kBlock) {
      size_t until = std::min(begin + sums::kBlock, end);
      sums::SumInto(block, type, all_, begin, until);
      memcpy(total_ + begin, block, until - begin);
    }
  }

  // Bytes [begin, end) of the sum over all hosts have arrived where Begin said.
  void Deliver(size_t begin, size_t end) {
    for (auto& one : all_) {
      size_t from = std::max(begin, one.skip);
      if (one.place != total_ && from < end) memcpy(one.place + from, total_ + from, end - from);
    }
  }

  void Finish() {
    state_->summed.Increment();
    state_->summed.Wake();
  }

 private:
  uint32_t Pushes() const { return static_cast<uint32_t>(round_ * places_.size()); }

  HostSumState* state_;
  const std::vector<char*> places_;
  const int mine_;
  const size_t bytes_;
  uint64_t round_ = 0;
  // of the round in flight, of the leader
  std::vector<sums::Contribution> all_;
  std::vector<char> apart_;
  char* total_ = nullptr;
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_HOST_PUSH_H_
