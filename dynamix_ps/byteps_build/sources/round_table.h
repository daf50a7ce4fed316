// The server's part in the sums of Comm: for every piece the round that is open, and who has contributed.
//
// Only the van's thread sums. The first contribution of a round is the memory to
// which the others are added, and from which the answers leave. That memory returns to the pool when the last
// answer has left: a fast worker, which may push the next round while a slow one still receives this one,
// gets other memory. In all there is at most twice the size of the pieces.
//
// A worker on the server's own host does not send values: it refers to a segment that the server maps, and
// the sum is written there.
//
// Where workers may be lost (elastic_exchange.h), a sum has the contributions of one generation of members. Those who
// are left make the round in flight anew. Somebody has completed the round before it, so all sums of that one are
// made: what is open here is of the round in flight. The first contribution of a newer generation drops all of it, and
// what still arrives of older ones is ignored. So nobody has to tell a server of a change. Answers that were given are
// never withdrawn: they stay in use until they have left, so a worker that is behind gets them, and whoever makes that
// round anew knows by their generation that they are void.
//
// A worker whose host or network is gone closes no connection. Silent finds it: others wait for it, and it does not
// answer. The van's thread of a worker answers, whatever its program is busy with.
#ifndef BYTEPS_SERVER_ROUND_TABLE_H_
#define BYTEPS_SERVER_ROUND_TABLE_H_

#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../common/segment.h"
#include "../common/sums.h"
#include "../common/wire.h"
#include "ps/pieces.h"
#include "ps/ps.h"

namespace byteps {
namespace server {

// Memory for pieces, used again and again. Any thread.
class PiecePool {
 public:
  ~PiecePool() {
    for (auto& kept : free_) {
      for (char* memory : kept.second) free(memory);
    }
  }

  char* Take(size_t bytes) {
    std::lock_guard<std::mutex> lock(mu_);
    auto& kept = free_[Rounded(bytes)];
    if (!kept.empty()) {
      char* memory = kept.back();
      kept.pop_back();
      return memory;
    }
    void* memory = nullptr;
    CHECK_EQ(posix_memalign(&memory, 64, Rounded(bytes)), 0) << "no memory for " << bytes << " bytes of a sum";
    return static_cast<char*>(memory);
  }

  void Return(char* memory, size_t bytes) {
    std::lock_guard<std::mutex> lock(mu_);
    free_[Rounded(bytes)].push_back(memory);
  }

 private:
  static size_t Rounded(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

  std::mutex mu_;
  std::map<size_t, std::vector<char*>> free_;
};

class RoundTable : public ps::PieceReceiver {
 public:
  // The server's, from before it runs until the process ends.
  static RoundTable& Instance() {
    static RoundTable* instance = new RoundTable();
    return *instance;
  }

  RoundTable()
      : returns_early_(ps::GetEnv("BYTEPS_SERVER_PARITY", 1) == 0), elastic_(ps::GetEnv("DYNAMIX_ELASTIC", 0) != 0) {}

  // Workers, by rank, whose contributions to open sums are missing and of which nothing has come for `quiet_s`, though
  // they were asked. Only where nobody contributes meanwhile: a worker that is slow is not silent. Any thread; to be
  // called several times in that time, because it asks.
  std::vector<int> Silent(double quiet_s) {
    std::lock_guard<std::mutex> lock(mu_);
    double now_s = NowS(), looked_s = looked_s_;
    looked_s_ = now_s;
    if (now_s - looked_s > quiet_s / 2) contributed_s_ = now_s;  // this process was stopped itself, or has just begun
    if (now_s - contributed_s_ < quiet_s / 2) return {};
    size_t open = 0;
    std::unordered_map<int, size_t> contributed;  // to how many of them, by node
    for (auto& one : sums_) {
      open += !one.second.pushers.empty();
      for (auto& pusher : one.second.pushers) ++contributed[pusher.node];
    }
    std::vector<int> silent;
    if (open == 0) return silent;
    for (auto& worker : ps::PieceTransport::Instance()->Workers()) {
      if (contributed[worker.first] == open) continue;
      if (now_s - std::max(contributed_s_, answered_s_[worker.first]) >= quiet_s) silent.push_back(worker.second);
      ps::PieceHead question = {};
      question.kind = ps::PieceKind::kAlive;
      Send(worker.first, question, ps::SArray<char>());
    }
    return silent;
  }

  char* PlaceFor(int sender, const ps::PieceHead& head) override {
    switch (head.kind) {
      case ps::PieceKind::kPush: {
        CHECK(head.size <= kMaxPiece && head.skip <= head.size && head.bytes == wire::BytesOf(head))
            << "node " << sender << " pushes " << head.bytes << " bytes of a piece of " << head.size;
        if (head.bytes == 0) return nullptr;
        return wire::CodecOf(head.wire) ? pool_.Take(head.bytes) : pool_.Take(head.size) + head.skip;
      }
      case ps::PieceKind::kEcho:
      case ps::PieceKind::kSegment:
        CHECK_LE(head.bytes, kMaxPiece) << "node " << sender;
        return pool_.Take(head.bytes);
      default:
        CHECK_EQ(head.bytes, 0u) << "node " << sender << " sends bytes with a message that has none";
        return nullptr;
    }
  }

  void Arrived(int sender, const ps::PieceHead& head, char* place) override {
    std::lock_guard<std::mutex> lock(mu_);
    switch (head.kind) {
      case ps::PieceKind::kPush: return Add(sender, head, Values(head, place));
      case ps::PieceKind::kReference: return Refer(sender, head);
      case ps::PieceKind::kEcho: return Send(sender, head, Shared(place, head.bytes));
      case ps::PieceKind::kSegment: return Map(sender, head, place);
      case ps::PieceKind::kForget: segments_.erase({sender, head.segment}); return;
      case ps::PieceKind::kAlive: answered_s_[sender] = NowS(); return;
      default: LOG(FATAL) << "node " << sender << " sends a message that servers do not get";
    }
  }

  void Abandoned(const ps::PieceHead& head, char* place) override {
    if (head.kind == ps::PieceKind::kPush && !wire::CodecOf(head.wire)) {
      pool_.Return(place - head.skip, head.size);
    } else {
      pool_.Return(place, head.bytes);
    }
  }

 protected:
  // Of a clock that does not go back.
  virtual double NowS() const {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

 private:
  static const size_t kMaxPiece = 1 << 30;

  struct Pusher {
    int node;
    uint64_t skip;
    char* place;   // of a reference
    uint8_t wire;  // of what was sent
  };

  // The round of one piece that is open.
  struct Sum {
    uint64_t round = 0;  // the number that workers give it; a piece is not in every round of its buffer
    uint64_t size = 0;
    uint32_t contributions = 0;
    uint8_t type = 0;
    char* total = nullptr;  // of what was sent as bytes; null: only zeros so far
    std::vector<Pusher> pushers;
    std::vector<float> errors;  // what the codes of earlier rounds have left out
    std::vector<float> before;  // the same, before the last round that was finished; where rounds are made anew
  };

  // The first contribution of new members, to the round that they make anew.
  void Follow(const ps::PieceHead& head) {
    generation_ = head.generation;
    for (auto& one : sums_) {
      Sum& sum = one.second;
      if (sum.total) pool_.Return(sum.total, sum.size);
      sum.total = nullptr;
      sum.pushers.clear();
      if (sum.round > head.round) {  // what the code of this round has left out does not count
        sum.errors.swap(sum.before);
        sum.round = head.round;
      }
    }
  }

  // The sum that the contribution belongs to; null: to none any more.
  Sum* Open(int sender, const ps::PieceHead& head) {
    if (head.generation < generation_) return nullptr;
    if (head.generation > generation_) Follow(head);
    if (elastic_) contributed_s_ = NowS();
    Sum& sum = sums_[head.key];
    if (sum.pushers.empty()) {
      CHECK_GE(head.round, sum.round) << "node " << sender << " pushes piece " << head.key << " of a past round";
      sum.round = head.round;
      sum.size = head.size;
      sum.contributions = head.contributions;
      sum.type = head.type;
      sum.pushers.reserve(head.contributions);
    }
    CHECK_EQ(head.round, sum.round) << "node " << sender << " pushes piece " << head.key << " of another round";
    CHECK_EQ(head.size, sum.size) << "node " << sender << " pushes piece " << head.key << " with another size";
    CHECK_EQ(head.type, sum.type) << "node " << sender << " pushes piece " << head.key << " with another type of values";
    CHECK_EQ(head.contributions, sum.contributions) << "node " << sender << " expects another number of pushes";
    for (auto& one : sum.pushers) {
      CHECK_NE(one.node, sender) << "the node pushes piece " << head.key << " twice in one round";
    }
    return &sum;
  }

  // The piece with room for what is skipped; null if nothing was sent.
  char* Values(const ps::PieceHead& head, char* received) {
    if (!received || !wire::CodecOf(head.wire)) return received ? received - head.skip : nullptr;
    char* values = pool_.Take(head.size);
    wire::Decode(head, received, values);
    pool_.Return(received, head.bytes);
    return values;
  }

  void Add(int sender, const ps::PieceHead& head, char* values) {
    Sum* open = Open(sender, head);
    if (!open) {
      if (values) pool_.Return(values, head.size);
      return;
    }
    Sum& sum = *open;
    if (values && !sum.total) {
      memset(values, 0, head.skip);
      sum.total = values;
    } else if (values) {
      sums::Add(head.type, sum.total + head.skip, values + head.skip, head.size - head.skip);
      pool_.Return(values, head.size);
    }
    sum.pushers.push_back({sender, head.skip, nullptr, head.wire});
    if (sum.pushers.size() == head.contributions) return Finish(head, sum);
    if (!head.asks) return;
    ps::PieceHead receipt = head;
    receipt.kind = ps::PieceKind::kReceived;
    receipt.bytes = 0;
    Send(sender, receipt, ps::SArray<char>());
  }

  void Refer(int sender, const ps::PieceHead& head) {
    auto found = segments_.find({sender, head.segment});
    CHECK(found != segments_.end()) << "node " << sender << " refers to a segment that is not mapped here";
    CHECK(head.skip <= head.size && head.offset <= found->second->bytes &&
          head.size <= found->second->bytes - head.offset)
        << "node " << sender << " refers to bytes beyond its segment";
    Sum* sum = Open(sender, head);
    if (!sum) return;
    sum->pushers.push_back({sender, head.skip, found->second->data + head.offset, head.type});
    if (sum->pushers.size() == head.contributions) Finish(head, *sum);
  }

  void Finish(const ps::PieceHead& last, Sum& sum) {
    std::sort(sum.pushers.begin(), sum.pushers.end(), [](const Pusher& a, const Pusher& b) { return a.node < b.node; });
    std::vector<sums::Contribution> here;
    const Pusher* sender = nullptr;  // of bytes
    uint64_t skip = sum.size;        // what nobody wants
    for (auto& one : sum.pushers) {
      skip = std::min(skip, one.skip);
      if (one.place) {
        here.push_back({one.place, one.skip});
      } else if (one.skip < sum.size) {
        CHECK(!sender || one.wire == sender->wire) << "piece " << last.key << " travels in different ways";
        sender = &one;
      }
    }
    if (sender && !sum.total) {  // somebody wants a sum of zeros
      sum.total = pool_.Take(sum.size);
      memset(sum.total, 0, sum.size);
    }
    if (!here.empty()) {
      for (size_t begin = 0; begin < sum.size; begin += sums::kBlock) {
        sums::SumBlock(last.type, here, sum.total, begin, std::min<size_t>(begin + sums::kBlock, sum.size));
      }
    }
    ps::SArray<char> values, code;
    const wire::Codec* codec = sender ? wire::CodecOf(sender->wire) : nullptr;
    if (elastic_) sum.before = sum.errors;
    if (codec) code = Encode(*codec, sum, skip, here);
    if (sum.total) values = Shared(sum.total, sum.size);
    for (auto& one : sum.pushers) {
      ps::PieceHead answer = {};
      answer.kind = ps::PieceKind::kAnswer;
      answer.type = last.type;
      answer.wire = one.wire;
      answer.key = last.key;
      answer.round = sum.round;
      answer.generation = generation_;
      answer.size = sum.size;
      answer.skip = one.skip;
      answer.bytes = one.place ? 0 : wire::BytesOf(answer);
      ps::SArray<char> payload;
      if (answer.bytes && wire::CodecOf(one.wire)) {
        payload = code.segment(code.size() - answer.bytes, code.size());
      } else if (answer.bytes) {
        payload = values.segment(one.skip, sum.size);
      }
      Send(one.node, answer, payload);
    }
    sum.pushers.clear();
    sum.total = nullptr;
    ++sum.round;
  }

  // Encode the sum, for everybody: all workers must get the same. Returns the code.
  ps::SArray<char> Encode(const wire::Codec& codec, Sum& sum, uint64_t skip,
                          const std::vector<sums::Contribution>& here) {
    float* total = reinterpret_cast<float*>(sum.total);
    size_t begin = skip / sizeof(float), count = sum.size / sizeof(float), bytes = codec.Bytes(count);
    if (sum.errors.size() != count) sum.errors.assign(count, 0);
    char* code = pool_.Take(bytes);
    codec.Encode(total, sum.errors.data(), code, begin, count);
    if (!here.empty()) codec.Decode(code, total, begin, count);
    for (auto& one : here) memcpy(one.place + one.skip, sum.total + one.skip, sum.size - one.skip);
    return Shared(code, bytes);
  }

  // Memory of the pool that returns there when its last use is over.
  ps::SArray<char> Shared(char* memory, size_t bytes) {
    if (returns_early_) {
      pool_.Return(memory, bytes);
      return ps::SArray<char>(memory, bytes, false);
    }
    ps::SArray<char> shared;
    shared.reset(memory, bytes, [this, bytes](char* used) { pool_.Return(used, bytes); });
    return shared;
  }

  void Send(int node, const ps::PieceHead& head, ps::SArray<char> payload) {
    ps::PieceTransport::Instance()->SendPiece(node, head, payload);
  }

  void Map(int sender, const ps::PieceHead& head, char* announcement) {
    std::string found(announcement, head.bytes);
    pool_.Return(announcement, head.bytes);
    std::unique_ptr<common::Segment> segment = common::Segment::Open(found);
    ps::PieceHead answer = head;
    answer.bytes = 0;
    answer.size = segment ? 1 : 0;
    if (segment) segments_[{sender, head.segment}] = std::move(segment);
    Send(sender, answer, ps::SArray<char>());
  }

  const bool returns_early_;  // the fault that the race test must find
  const bool elastic_;        // workers may be lost while the others go on
  std::mutex mu_;             // of all below but the pool, which memory returns to from elsewhere
  PiecePool pool_;
  uint64_t generation_ = 0;  // of the newest contribution
  double contributed_s_ = 0, looked_s_ = 0;     // of the last contribution, and of the last call of Silent
  std::unordered_map<int, double> answered_s_;  // to its questions, by node
  std::unordered_map<uint64_t, Sum> sums_;
  std::map<std::pair<int, uint64_t>, std::unique_ptr<common::Segment>> segments_;
};

}  // namespace server
}  // namespace byteps

#endif  // BYTEPS_SERVER_ROUND_TABLE_H_
