// The worker's part in the sums of Comm where workers and servers may be lost while the others go on.
//
// Sums have rounds. What a worker pushes up to a wait that returns true is one round, and that wait returns when all
// of it is summed: the round is complete as a whole, and the next push begins the next round. All workers push and
// wait in the same order, so a round has the same number and the same buffers on all of them. A worker completes a
// round only when all have pushed it, which each does only when it has completed the round before. So at any moment
// the first rounds that workers have not completed differ by one at most.
//
// When a worker is lost, a coordinator freezes the others, takes as T the largest first incomplete round, and lets the
// workers resume with a new generation. Who is at T sends again what it had pushed of it. Servers drop what they have of
// older generations (round_table.h), and the sum is that of the new members. Who is at T-1 only waits: somebody has
// completed T-1, so all of its sums are complete, and their answers are on their way, whoever is lost.
//
// For that, values stay as they were pushed until their round is complete: the sum goes to another place. A sum in
// place is made from a copy.
//
// Where a server is lost, those that are left get its pieces from round T on. A server knows nothing of a piece before
// its first push, so nothing is moved. But a sum of T-1 that the lost server had, and that has not come from it, is
// nowhere else: Unanswered tells of it.
#ifndef BYTEPS_COMMON_ELASTIC_EXCHANGE_H_
#define BYTEPS_COMMON_ELASTIC_EXCHANGE_H_

#include <set>

#include "exchange.h"

namespace byteps {
namespace common {

class ElasticExchange : public Exchange {
 public:
  // A buffer of the open round whose sum is not complete.
  struct Missing {
    uint32_t number;
    uint64_t pieces;
  };

  ElasticExchange() : contributions_(workers_) {}

  void PushPull(uint32_t number, char* place, size_t bytes, int type, size_t skip) override {
    PushPullInto(number, place, place, bytes, type, skip);
  }

  void PushPullInto(uint32_t number, char* mine, char* sum, size_t bytes, int type, size_t skip) {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    Buffer& buffer = Get(number);
    Pushed& pushed = pushed_[number];
    CHECK(!pushed.open) << "buffer " << number << " is pushed twice in a round";
    if (mine == sum) {
      pushed.copy.resize(bytes);
      memcpy(pushed.copy.data() + skip, mine + skip, bytes - skip);
      mine = pushed.copy.data();
    }
    pushed.open = true;
    pushed.sum = sum;
    pushed.coded.assign(buffer.servers.size(), false);
    pushed.received.resize(buffer.codes.size());
    Assign(number, buffer);
    pushed.push = {number, type, contributions_, round_, bytes, mine, skip, nullptr, nullptr, generation_};
    open_.push_back(number);
    Send(buffer, pushed.push);
  }

  // Whether the round in which the buffer was pushed last is complete.
  bool Wait(uint32_t number, double timeout_s) override {
    std::unique_lock<std::mutex> lock(rounds_mu_);
    Pushed& pushed = pushed_[number];
    auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9));
    auto ready = [&] { return !pushed.open || (!frozen_ && AllArrived()); };
    if (!changed_.wait_until(lock, limit, ready)) return false;
    if (!pushed.open) return true;
    for (uint32_t one : open_) pushed_[one].open = false;
    open_.clear();
    ++round_;
    return true;
  }

  // From now on no round completes.
  void Freeze() {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    frozen_ = true;
  }

  // The first round that is not complete, and what of it was pushed but has no complete sum.
  uint64_t Status(std::vector<Missing>* missing) {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    for (uint32_t number : open_) {
      if (size_t pieces = Get(number).missing) missing->push_back({number, pieces});
    }
    return round_;
  }

  // Servers that have a piece of the open round and have not answered.
  std::set<int> Unanswered() {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    std::set<int> servers;
    for (uint32_t number : open_) {
      Buffer& buffer = Get(number);
      for (size_t piece = 0; piece < buffer.servers.size(); ++piece) {
        if (buffer.awaited[piece]) servers.insert(buffer.servers[piece]);
      }
    }
    return servers;
  }

  // Go on with other members, and with these servers (see Spread). Nothing older counts any more in rounds from `round`
  // on. Whether this worker is there, or one round behind.
  bool Resume(uint64_t generation, uint64_t round, int contributions, std::vector<int> servers) {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    if (generation <= generation_ || (round != round_ && round != round_ + 1)) return false;
    generation_ = generation;
    contributions_ = contributions;
    Spread(std::move(servers));
    if (round == round_) SendAgain();
    frozen_ = false;
    changed_.notify_all();
    return true;
  }

  // From the next round on so many contribute, on all workers alike: some have come or left with the round before.
  void Expect(int contributions) {
    std::lock_guard<std::mutex> lock(rounds_mu_);
    CHECK(open_.empty()) << "the number of contributions changes within round " << round_;
    contributions_ = contributions;
  }

  // A worker that comes late begins with this round, of which so many contribute.
  void Enter(uint64_t generation, uint64_t round, int contributions) {
    Expect(contributions);
    std::lock_guard<std::mutex> lock(rounds_mu_);
    generation_ = generation;
    round_ = round;
  }

  char* PlaceFor(int sender, const ps::PieceHead& head) override {
    if (head.kind != ps::PieceKind::kAnswer) return Exchange::PlaceFor(sender, head);
    std::lock_guard<std::mutex> lock(rounds_mu_);
    if (!IsAwaited(head)) return Waste(sender, head);
    Buffer& buffer = Get(NumberOf(head));
    Pushed& pushed = pushed_[NumberOf(head)];
    size_t piece = head.key & kPieceMask;
    CHECK(buffer.servers[piece] == sender && head.size == buffer.Size(piece) && head.skip == buffer.Skip(piece) &&
          (head.bytes == 0 || head.bytes == wire::BytesOf(head)))
        << "node " << sender << " answers what it was not asked";
    if (wire::CodecOf(head.wire)) return pushed.received.data() + buffer.Code(piece);
    return pushed.sum + piece * buffer.piece_bytes + head.skip;
  }

  // An answer may become void while it is read. What came of it to the place of the sum before that does no harm: the
  // valid one is read later. The rest of it would: the valid one may come from another server, in between.
  char* PlaceForRest(int sender, const ps::PieceHead& head, char* place) override {
    if (head.kind != ps::PieceKind::kAnswer) return place;
    std::lock_guard<std::mutex> lock(rounds_mu_);
    return IsAwaited(head) ? place : Waste(sender, head);
  }

  void Arrived(int sender, const ps::PieceHead& head, char* place) override {
    const bool is_receipt = head.kind == ps::PieceKind::kReceived;
    if (head.kind != ps::PieceKind::kAnswer && !is_receipt) return Exchange::Arrived(sender, head, place);
    std::lock_guard<std::mutex> lock(rounds_mu_);
    if (!IsAwaited(head)) return;
    if (is_receipt) return Exchange::Arrived(sender, head, place);
    Buffer& buffer = Get(NumberOf(head));
    Pushed& pushed = pushed_[NumberOf(head)];
    size_t piece = head.key & kPieceMask;
    buffer.awaited[piece] = false;
    if (wire::CodecOf(head.wire) && head.bytes) wire::Decode(head, place, pushed.sum + piece * buffer.piece_bytes);
    {
      Lane& lane = LaneTo(sender);
      std::lock_guard<std::mutex> lane_lock(lane.mu);
      lane.Answered(buffer.priority, head);
      SendWaiting(sender, lane);
    }
    if (buffer.missing.fetch_sub(1) == 1 && AllArrived()) changed_.notify_all();
  }

 private:
  static const size_t kMaxPiece = 1 << 30;

  // The last push of a buffer.
  struct Pushed {
    bool open = false;  // its round is not complete
    Push push;
    char* sum = nullptr;             // where the sum goes
    std::vector<char> copy;          // of the values, if the sum takes their place
    std::vector<bool> coded;         // pieces that have their codes already
    std::vector<char> received;      // codes of the sum
  };

  static uint32_t NumberOf(const ps::PieceHead& head) { return head.key >> ps::kPieceBits; }

  bool IsAwaited(const ps::PieceHead& head) {
    auto found = pushed_.find(NumberOf(head));
    if (found == pushed_.end() || !found->second.open) return false;
    const Push& push = found->second.push;
    if (head.round != push.round || head.generation != push.generation) return false;
    Buffer& buffer = Get(push.number);
    size_t piece = head.key & kPieceMask;
    return piece < buffer.awaited.size() && buffer.awaited[piece];
  }

  // Where a void answer goes.
  char* Waste(int sender, const ps::PieceHead& head) {
    CHECK_LE(head.bytes, size_t{kMaxPiece}) << "node " << sender;
    std::vector<char>& waste = waste_[sender];
    if (waste.size() < head.bytes) waste.resize(head.bytes);
    return waste.data();
  }

  bool AllArrived() {
    return std::all_of(open_.begin(), open_.end(), [this](uint32_t number) { return Get(number).missing == 0; });
  }

  // All that was pushed in the open round, for the new members, to the servers that are left.
  void SendAgain() {
    for (uint32_t number : open_) {
      for (int server : Get(number).servers) {
        Lane& lane = LaneTo(server);  // it has nothing of an earlier round: that is complete
        std::lock_guard<std::mutex> lock(lane.mu);
        lane.Clear();
      }
    }
    for (uint32_t number : open_) {
      Assign(number, Get(number));
      Push& push = pushed_[number].push;
      push.generation = generation_;
      push.contributions = contributions_;
      Send(Get(number), push);
    }
  }

  // A code takes the errors of the round before in. So it is made once, however often a piece is sent.
  char* Coded(const ps::PieceHead& head, const char* place) override {
    Buffer& buffer = Get(NumberOf(head));
    size_t piece = head.key & kPieceMask;
    std::vector<bool>::reference coded = pushed_[NumberOf(head)].coded[piece];
    if (coded) {
      return buffer.codes.data() + buffer.Code(piece) + wire::CodecOf(head.wire)->Begin(head.skip / sizeof(float));
    }
    coded = true;
    return Exchange::Coded(head, place);
  }

  std::mutex rounds_mu_;  // of all below; before any other
  std::condition_variable changed_;
  std::unordered_map<uint32_t, Pushed> pushed_;
  std::vector<uint32_t> open_;  // what was pushed in the round that is not complete
  uint64_t round_ = 0;          // its number
  uint64_t generation_ = 0;
  int contributions_;
  bool frozen_ = false;
  std::unordered_map<int, std::vector<char>> waste_;  // for void answers, by server
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_COMMON_ELASTIC_EXCHANGE_H_
