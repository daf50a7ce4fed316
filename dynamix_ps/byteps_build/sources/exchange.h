// The worker's part in the sums of Comm.
//
// A buffer is cut into equal pieces, each with its place on one server (placement.py). push_pull sends all
// pieces at once, and the van's thread receives the sums into the buffer: no copy, no other thread.
//
// A buffer may lie in a segment that other roles of this host map. Then pieces whose server is on this host
// are not sent: the server gets a reference to the segment. Where several workers are on one host, and the
// buffer is a whole segment of theirs, they push once for all of them (host_push.h), and where all workers are
// on one host there is no server either (host_sum.h).

#ifndef BYTEPS_COMMON_EXCHANGE_H_
#define BYTEPS_COMMON_EXCHANGE_H_

#include <math.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "host_push.h"
#include "host_sum.h"
#include "lane.h"
#include "ps/pieces.h"
#include "ps/ps.h"
#include "wire.h"

namespace byteps {
namespace common {

// Something to wait for.
class Event {
 public:
  void Clear() {
    std::lock_guard<std::mutex> lock(mu_);
    happened_ = false;
  }
  void Set() {
    std::lock_guard<std::mutex> lock(mu_);
    happened_ = true;
    changed_.notify_all();
  }
  bool Wait(double timeout_s) {
    std::unique_lock<std::mutex> lock(mu_);
    auto limit = std::chrono::steady_clock::now() + std::chrono::nanoseconds(static_cast<int64_t>(timeout_s * 1e9));
    return changed_.wait_until(lock, limit, [this] { return happened_; });
  }

 private:
  std::mutex mu_;
  std::condition_variable changed_;
  bool happened_ = true;
};

// Memory of this worker that may be in a segment which other roles of its host map.
struct SharedMemory {
  size_t bytes = 0;
  std::shared_ptr<HostSum> on_host;    // if all workers are here and sum there
  std::shared_ptr<HostPush> of_host;   // if this host's workers push once
  int contributions = 0;               // pushes of all hosts to a sum of all of these bytes
  uint64_t segment = 0;                // its number
  std::vector<int> servers;            // those that map it
};

// One buffer, by the number of its name.
struct Buffer {
  size_t piece_bytes = 0;
  uint32_t priority = 0;  // see Lane
  std::vector<int> servers;  // the node of every piece
  uint64_t rounds = 0;
  size_t coded = 0;           // so many bytes at its beginning travel by the codec
  uint8_t wire = 0;           // of this number
  std::vector<float> errors;  // what the codes of earlier rounds have left out
  std::vector<char> codes;    // of all pieces
  // of the round in flight
  std::shared_ptr<HostSum> on_host;   // if the workers make the sum
  std::shared_ptr<HostPush> of_host;  // if the workers of this host push once
  char* place = nullptr;
  size_t bytes = 0, skip = 0;
  std::vector<bool> awaited;  // of every piece
  std::atomic<size_t> missing{0};
  Event complete;

  size_t Size(size_t piece) const { return std::min(piece_bytes, bytes - piece * piece_bytes); }
  size_t Skip(size_t piece) const {
    size_t begin = piece * piece_bytes;
    return std::min(skip > begin ? skip - begin : 0, Size(piece));
  }
  // Where the code of a piece begins.
  size_t Code(size_t piece) const { return piece * wire::CodecOf(wire)->Bytes(piece_bytes / sizeof(float)); }
};

const uint64_t kPieceMask = (uint64_t{1} << ps::kPieceBits) - 1;

class Exchange : public ps::PieceReceiver {
 public:
  Exchange() : transport_(ps::PieceTransport::Instance()), workers_(ps::Postoffice::Get()->num_workers()) {
    CHECK(transport_) << "byteps_init comes first";
    ps::PieceTransport::Receiver() = this;
  }

  Buffer& Get(uint32_t number) {
    std::lock_guard<std::mutex> lock(mu_);
    auto& buffer = buffers_[number];
    if (!buffer) buffer.reset(new Buffer());
    return *buffer;
  }

  // The servers of neighbouring pieces of any buffer, over and over. The same on all workers.
  void Spread(std::vector<int> servers) {
    std::lock_guard<std::mutex> lock(mu_);
    servers_ = std::move(servers);
  }

  // Cut a buffer into so many pieces of this size; the last one may be shorter.
  void Place(uint32_t number, size_t piece_bytes, size_t pieces, uint32_t priority) {
    Buffer& buffer = Get(number);
    buffer.piece_bytes = piece_bytes;
    buffer.priority = priority;
    buffer.servers.resize(pieces);
    Assign(number, buffer);
  }

  // From now on so many bytes of float32 at the beginning of a buffer, which has its pieces, travel by this codec.
  void Encode(uint32_t number, size_t bytes, uint8_t wire) {
    Buffer& buffer = Get(number);
    buffer.coded = bytes;
    buffer.wire = wire;
    buffer.errors.assign(bytes / sizeof(float), 0);
    buffer.codes.resize(buffer.Code((bytes + buffer.piece_bytes - 1) / buffer.piece_bytes));
  }

  virtual void PushPull(uint32_t number, char* place, size_t bytes, int type, size_t skip) {
    Buffer& buffer = Get(number);
    auto shared = Around(place, bytes);
    Push push = {number, type, workers_, buffer.rounds, bytes, place, skip, shared.first, shared.second, 0};
    bool whole = shared.second && shared.second->bytes == bytes;
    buffer.on_host = whole ? shared.second->on_host : nullptr;
    buffer.of_host = whole ? shared.second->of_host : nullptr;
    if (whole) push.contributions = shared.second->contributions;
    if (buffer.on_host) {
      buffer.on_host->Push(type, skip);
      return;
    }
    ++buffer.rounds;
    if (buffer.of_host) {
      buffer.of_host->Push(skip);
      if (!buffer.of_host->Leads()) return;
      leads_ = true;
    } else {
      buffer.complete.Clear();
    }
    if (leads_) {
      Queue(push);
    } else {
      Send(buffer, push);
    }
  }

  virtual bool Wait(uint32_t number, double timeout_s) {
    Buffer& buffer = Get(number);
    if (!buffer.on_host && !buffer.of_host) return buffer.complete.Wait(timeout_s);
    timespec deadline = {};
    clock_gettime(CLOCK_MONOTONIC, &deadline);
    double whole = floor(timeout_s);
    deadline.tv_sec += static_cast<time_t>(whole);
    deadline.tv_nsec += static_cast<long>((timeout_s - whole) * 1e9);
    if (deadline.tv_nsec >= 1000000000) {
      deadline.tv_nsec -= 1000000000;
      ++deadline.tv_sec;
    }
    return buffer.on_host ? buffer.on_host->Wait(deadline) : buffer.of_host->Wait(deadline);
  }

  void Share(char* place, SharedMemory&& memory) {
    std::lock_guard<std::mutex> lock(mu_);
    shared_[place] = std::move(memory);
  }

  void ShareAmongWorkers(HostSumState* state, const std::vector<char*>& places, int mine, size_t bytes, bool all) {
    std::lock_guard<std::mutex> lock(mu_);
    SharedMemory& memory = shared_[places[mine]];
    memory.bytes = bytes;
    if (all) {
      memory.on_host.reset(new HostSum(state, places, mine, bytes));
    } else {
      memory.of_host.reset(new HostPush(state, places, mine, bytes));
    }
  }

  void Unshare(char* place) {
    std::lock_guard<std::mutex> lock(mu_);
    shared_.erase(place);
  }

  // Seconds that `bytes` take to a server and back; negative: not within `timeout_s`. A late answer to an earlier
  // question shows that its server is there. So it counts for a question to the same server, and for no other.
  double Echo(int server, size_t bytes, double timeout_s) {
    {
      std::lock_guard<std::mutex> lock(echo_mu_);
      asked_ = server;
      echo_.assign(bytes, 0);
      replied_.Clear();
    }
    ps::PieceHead head = {};
    head.kind = ps::PieceKind::kEcho;
    head.bytes = bytes;
    auto begin = std::chrono::steady_clock::now();
    transport_->SendPiece(server, head, ps::SArray<char>(echo_.data(), bytes, false));
    if (!replied_.Wait(timeout_s)) return -1;
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  // Have a server map a segment. Whether it could, within `timeout_s`.
  bool Announce(int server, uint64_t segment, const std::string& announcement, double timeout_s) {
    echo_.assign(announcement.begin(), announcement.end());
    replied_.Clear();
    mapped_ = false;
    ps::PieceHead head = {};
    head.kind = ps::PieceKind::kSegment;
    head.segment = segment;
    head.bytes = announcement.size();
    transport_->SendPiece(server, head, ps::SArray<char>(echo_.data(), echo_.size(), false));
    return replied_.Wait(timeout_s) && mapped_;
  }

  void Forget(int server, uint64_t segment) {
    ps::PieceHead head = {};
    head.kind = ps::PieceKind::kForget;
    head.segment = segment;
    transport_->SendPiece(server, head, ps::SArray<char>());
  }

  char* PlaceFor(int sender, const ps::PieceHead& head) override {
    if (head.kind == ps::PieceKind::kEcho) {
      std::vector<char>& echoed = echoed_[sender];
      echoed.resize(head.bytes);
      return echoed.data();
    }
    if (head.kind == ps::PieceKind::kSegment || head.kind == ps::PieceKind::kReceived) {
      CHECK_EQ(head.bytes, 0u) << "node " << sender;
      return nullptr;
    }
    CHECK(head.kind == ps::PieceKind::kAnswer) << "node " << sender << " sends a message that workers do not get";
    Buffer& buffer = Get(head.key >> ps::kPieceBits);
    size_t piece = head.key & kPieceMask;
    CHECK(piece < buffer.awaited.size() && buffer.awaited[piece] && buffer.servers[piece] == sender &&
          head.round + 1 == buffer.rounds)
        << "node " << sender << " answers what it was not asked";
    CHECK(head.size == buffer.Size(piece) && head.skip == buffer.Skip(piece) &&
          (head.bytes == 0 || head.bytes == wire::BytesOf(head)))
        << "node " << sender << " answers with another size";
    buffer.awaited[piece] = false;
    if (wire::CodecOf(head.wire)) return buffer.codes.data() + buffer.Code(piece);
    return buffer.place + piece * buffer.piece_bytes + head.skip;
  }

  void Arrived(int sender, const ps::PieceHead& head, char* place) override {
    if (head.kind == ps::PieceKind::kReceived) {
      Lane& lane = LaneTo(sender);
      std::lock_guard<std::mutex> lock(lane.mu);
      lane.Received(head.key);
      SendWaiting(sender, lane);
      return;
    }
    if (head.kind == ps::PieceKind::kEcho) {
      std::lock_guard<std::mutex> lock(echo_mu_);
      if (sender == asked_) replied_.Set();
      return;
    }
    if (head.kind != ps::PieceKind::kAnswer) {
      mapped_ = head.size == 1;
      replied_.Set();
      return;
    }
    Buffer& buffer = Get(head.key >> ps::kPieceBits);
    size_t begin = (head.key & kPieceMask) * buffer.piece_bytes;
    if (wire::CodecOf(head.wire) && head.bytes) wire::Decode(head, place, buffer.place + begin);
    {
      Lane& lane = LaneTo(sender);
      std::lock_guard<std::mutex> lock(lane.mu);
      lane.Answered(buffer.priority, head);
      SendWaiting(sender, lane);
    }
    if (buffer.of_host) buffer.of_host->Deliver(begin + head.skip, begin + head.size);
    if (buffer.missing.fetch_sub(1) > 1) return;
    if (buffer.of_host) {
      buffer.of_host->Finish();
    } else {
      buffer.complete.Set();
    }
  }

  void Abandoned(const ps::PieceHead&, char*) override {}

  std::atomic<size_t> window{1 << 20};  // of every lane

 protected:
  struct Push {
    uint32_t number;
    int type, contributions;
    uint64_t round;
    size_t bytes;
    char* place;
    size_t skip;
    char* segment;  // where shared memory begins; null: there is none
    const SharedMemory* shared;
    uint64_t generation;  // of the members whose contributions are expected
  };

  // Give each piece of a buffer its server. Small buffers do not all begin at the same one.
  void Assign(uint32_t number, Buffer& buffer) {
    std::lock_guard<std::mutex> lock(mu_);
    CHECK(!servers_.empty()) << "no servers are known";
    size_t next = number;
    for (int& server : buffer.servers) server = servers_[next++ % servers_.size()];
  }

  // Give all pieces of a buffer to the lanes.
  void Send(Buffer& buffer, const Push& push) {
    CHECK_EQ(buffer.servers.size(), (push.bytes + buffer.piece_bytes - 1) / buffer.piece_bytes);
    char* const place = push.place;
    buffer.place = place;
    buffer.bytes = push.bytes;
    buffer.skip = push.skip;
    buffer.awaited.assign(buffer.servers.size(), true);
    buffer.missing = buffer.servers.size();
    const bool in_segment = push.segment && place >= push.segment && place < push.segment + push.shared->bytes;
    auto of_host = buffer.of_host;
    for (size_t piece = 0; piece < buffer.servers.size(); ++piece) {
      int server = buffer.servers[piece];
      bool refers = in_segment && std::count(push.shared->servers.begin(), push.shared->servers.end(), server);
      size_t begin = piece * buffer.piece_bytes;
      ps::PieceHead head = {};
      head.kind = refers ? ps::PieceKind::kReference : ps::PieceKind::kPush;
      head.size = buffer.Size(piece);
      head.skip = buffer.Skip(piece);
      bool coded = !refers && push.type == BYTEPS_FLOAT32 && begin + head.size <= buffer.coded;
      head.type = push.type;
      head.wire = coded ? buffer.wire : push.type;
      head.contributions = push.contributions;
      head.key = static_cast<uint64_t>(push.number) << ps::kPieceBits | piece;
      head.round = push.round;
      head.generation = push.generation;
      if (refers) {
        head.segment = push.shared->segment;
        head.offset = place + begin - push.segment;
      } else {
        head.bytes = wire::BytesOf(head);
      }
      if (of_host) of_host->Sum(push.type, begin + head.skip, begin + head.size);
      Lane& lane = LaneTo(server);
      std::lock_guard<std::mutex> lock(lane.mu);
      lane.Push(buffer.priority, head, place + begin + head.skip);
      SendWaiting(server, lane);
    }
  }

  Lane& LaneTo(int server) {
    std::lock_guard<std::mutex> lock(mu_);
    auto& lane = lanes_[server];
    if (!lane) lane.reset(new Lane());
    return *lane;
  }

  // The lane is locked.
  void SendWaiting(int server, Lane& lane) {
    for (Lane::Piece next; lane.Next(window, &next);) {
      const ps::PieceHead& head = next.head;
      char* place = next.place;
      if (wire::CodecOf(head.wire) && head.bytes) place = Coded(head, place);
      transport_->SendPiece(server, head, ps::SArray<char>(place, head.bytes, false));
    }
  }

  // What is at `place`, as it travels.
  virtual char* Coded(const ps::PieceHead& head, const char* place) {
    Buffer& buffer = Get(head.key >> ps::kPieceBits);
    size_t piece = head.key & kPieceMask, begin = head.skip / sizeof(float);
    const wire::Codec* codec = wire::CodecOf(head.wire);
    char* code = buffer.codes.data() + buffer.Code(piece);
    float* errors = buffer.errors.data() + piece * buffer.piece_bytes / sizeof(float);
    codec->Encode(reinterpret_cast<const float*>(place - head.skip), errors, code, begin, head.size / sizeof(float));
    return code + codec->Begin(begin);
  }

  ps::PieceTransport* transport_;
  const int workers_;
  std::mutex mu_;
  std::vector<int> servers_;  // nodes; see Spread
  std::unordered_map<uint32_t, std::unique_ptr<Buffer>> buffers_;
  std::unordered_map<int, std::unique_ptr<Lane>> lanes_;

 private:
  // A leader must not keep its thread waiting for others of its host. So another one sends, from the first push
  // for the host on, and sends everything: pushes are to be in one order on all workers (see Lane).
  void Queue(const Push& push) {
    std::lock_guard<std::mutex> lock(mu_);
    if (!sender_.joinable()) sender_ = std::thread(&Exchange::SendQueued, this);
    queue_.push_back(push);
    more_in_queue_.notify_one();
  }

  void SendQueued() {
    while (true) {
      Push push;
      {
        std::unique_lock<std::mutex> lock(mu_);
        more_in_queue_.wait(lock, [this] { return !queue_.empty(); });
        push = queue_.front();
        queue_.pop_front();
      }
      Buffer& buffer = Get(push.number);
      if (buffer.of_host) push.place = buffer.of_host->Begin(&push.skip);
      Send(buffer, push);
    }
  }

  // The shared memory that has all of these bytes, and where it begins; null if there is none.
  std::pair<char*, SharedMemory*> Around(char* place, size_t bytes) {
    std::lock_guard<std::mutex> lock(mu_);
    auto behind = shared_.upper_bound(place);
    if (behind == shared_.begin()) return {nullptr, nullptr};
    auto& found = *std::prev(behind);
    if (place + bytes > found.first + found.second.bytes) return {nullptr, nullptr};
    return {found.first, &found.second};
  }

  std::map<char*, SharedMemory> shared_;  // by where it begins
  bool leads_ = false;
  std::deque<Push> queue_;
  std::condition_variable more_in_queue_;
  std::thread sender_;  // never ends, like this object
  std::vector<char> echo_;  // of the one echo or announcement at a time
  std::unordered_map<int, std::vector<char>> echoed_;  // what has come back, by server; of the van's thread
  std::mutex echo_mu_;
  int asked_ = -1;  // the server of the newest question
  Event replied_;
  std::atomic<bool> mapped_{false};
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_COMMON_EXCHANGE_H_
