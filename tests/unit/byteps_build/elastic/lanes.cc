// Workers and servers as they are built, on a network that this program plays. Buffers have priorities and windows are
// small. When each worker pushes and waits, and which message is read next, is random; where no two buffers share a
// priority, so is the order of each worker's pushes.
//
//     lanes FIRST_SEED SEEDS
//
// Prints how many receipts servers sent.

#include <cstdio>
#include <deque>
#include <numeric>
#include <random>

#include "byteps/common/exchange.h"
#include "byteps/server/round_table.h"

using byteps::common::Exchange;
using byteps::server::RoundTable;
using ps::PieceHead;
using ps::PieceKind;

const int kServer = 100, kRounds = 3;
const uint32_t kBuffers = 6, kRounded = 3;  // the one in half precision has few values, which it holds exactly
const size_t kPieceBytes = 16;
const int kMostValues = 24;

struct Frame {
  PieceHead head;
  ps::SArray<char> payload;
};

uint32_t NumberOf(const PieceHead& head) { return head.key >> ps::kPieceBits; }

// What is on its way from one node to another, in order.
struct Channel {
  std::deque<Frame> frames;
  size_t bytes = 0;
};

struct Network : public ps::PieceTransport {
  std::map<std::pair<int, int>, Channel> channels;
  std::map<std::pair<int, int>, std::map<uint32_t, size_t>> without_answer;  // bytes, by priority
  std::vector<uint32_t> priorities;  // of every buffer
  size_t window = 0;
  std::vector<PieceHead> sent;  // by worker 0
  int from = 0;

  void SendPiece(int node, const PieceHead& head, ps::SArray<char> payload) override {
    Channel& channel = channels[{from, node}];
    channel.frames.push_back({head, payload});
    channel.bytes += head.bytes;
    if (node >= kServer) {
      CHECK_LE(channel.bytes, window + kPieceBytes) << "more than may be in flight";
      size_t& unanswered = without_answer[std::make_pair(from, node)][priorities[NumberOf(head)]];
      CHECK_LE(unanswered += head.bytes, window) << "a worker is too far ahead";
    }
    if (head.kind == PieceKind::kPush && from == 0) sent.push_back(head);
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {}; }
};

struct Worker {
  std::unique_ptr<Exchange> exchange;
  int round = 0;
  std::vector<uint32_t> to_push, to_wait;
  int64_t values[kBuffers][kMostValues];
};

struct Cluster {
  Cluster(int workers, int servers, const std::vector<int>& values, const std::vector<uint32_t>& priorities,
          size_t window)
      : values(values) {
    network.priorities = priorities;
    network.window = window;
    ps::PieceTransport::Instance() = &network;
    ps::Postoffice::Get()->workers = workers;
    std::vector<int> nodes;
    for (int i = 0; i < servers; ++i) {
      nodes.push_back(kServer + i);
      tables.emplace_back(new RoundTable());
    }
    for (int rank = 0; rank < workers; ++rank) {
      all.emplace_back(new Worker());
      Exchange& exchange = *(all.back()->exchange = std::unique_ptr<Exchange>(new Exchange()));
      exchange.window = window;
      exchange.Spread(nodes);
      for (uint32_t number = 0; number < kBuffers; ++number) {
        exchange.Place(number, kPieceBytes, (Bytes(number) + kPieceBytes - 1) / kPieceBytes, priorities[number]);
      }
      exchange.Encode(kRounded, Bytes(kRounded), ps::kBfloat16);
    }
  }

  ~Cluster() { network.channels.clear(); }  // whose payloads return to the servers

  size_t Bytes(uint32_t number) const {
    return values[number] * (number == kRounded ? sizeof(float) : sizeof(int64_t));
  }

  void Push(int rank, uint32_t number, int skip) {
    network.from = rank;
    Worker& worker = *all[rank];
    const int value = 1 + rank + 4 * worker.round;
    float* floats = reinterpret_cast<float*>(worker.values[number]);
    for (int i = 0; i < values[number]; ++i) {
      if (number == kRounded) {
        floats[i] = value;
      } else {
        worker.values[number][i] = value;
      }
    }
    char* place = reinterpret_cast<char*>(worker.values[number]);
    const int type = number == kRounded ? byteps::common::BYTEPS_FLOAT32 : byteps::common::BYTEPS_INT64;
    worker.exchange->PushPull(number, place, Bytes(number), type, skip * sizeof(int64_t));
  }

  void Deliver(int from, int to, Channel& channel) {
    network.from = to;
    ps::PieceReceiver* receiver;
    if (to >= kServer) {
      receiver = tables[to - kServer].get();
    } else {
      receiver = all[to]->exchange.get();
    }
    const Frame frame = channel.frames.front();
    channel.frames.pop_front();
    channel.bytes -= frame.head.bytes;
    receipts += frame.head.kind == PieceKind::kReceived;
    if (frame.head.kind == PieceKind::kAnswer) {
      network.without_answer[{to, from}][network.priorities[NumberOf(frame.head)]] -= frame.head.bytes;
    }
    char* place = receiver->PlaceFor(from, frame.head);
    if (frame.head.bytes) memcpy(place, frame.payload.data(), frame.head.bytes);
    receiver->Arrived(from, frame.head, place);
  }

  const std::vector<int> values;  // of every buffer
  Network network;
  std::vector<std::unique_ptr<RoundTable>> tables;
  std::vector<std::unique_ptr<Worker>> all;
  int receipts = 0;
};

// One schedule.
struct Schedule {
  explicit Schedule(unsigned seed) : chance(seed) {
    std::vector<int> values;
    for (uint32_t number = 0; number < kBuffers; ++number) values.push_back(1 + Below(kMostValues));
    std::vector<uint32_t> priorities(kBuffers);
    std::iota(priorities.begin(), priorities.end(), 0);
    Shuffle(priorities);
    any_order = Below(2);
    if (!any_order) {
      for (uint32_t& priority : priorities) priority /= 1 + Below(3);
    }
    workers = 2 + Below(3);
    slow = Below(workers);
    cluster.reset(new Cluster(workers, 1 + Below(2), values, priorities, 16 + Below(100)));
    for (int rank = 0; rank < workers; ++rank) Begin(*cluster->all[rank]);
  }

  int Below(int limit) { return static_cast<int>(chance() % limit); }

  void Shuffle(std::vector<uint32_t>& list) { std::shuffle(list.begin(), list.end(), chance); }

  int Skip(int rank, int round, uint32_t number) const {
    return number == kRounded ? 0 : (rank + round + number) % 3 * cluster->values[number] / 2;
  }

  void Begin(Worker& worker) {
    for (uint32_t number = 0; number < kBuffers; ++number) worker.to_push.push_back(number);
    if (any_order) Shuffle(worker.to_push);
  }

  // Push or wait. False: there is nothing that this worker can do.
  bool Act(int rank) {
    Worker& worker = *cluster->all[rank];
    if (worker.round == kRounds) return false;
    const bool waits = worker.to_push.empty() || (!any_order && !worker.to_wait.empty() && Below(8) == 0);
    if (!waits) {
      const uint32_t number = worker.to_push.front();
      worker.to_push.erase(worker.to_push.begin());
      worker.to_wait.push_back(number);
      cluster->Push(rank, number, Skip(rank, worker.round, number));
      return true;
    }
    const size_t which = Below(static_cast<int>(worker.to_wait.size()));
    const uint32_t number = worker.to_wait[which];
    if (!worker.exchange->Wait(number, 0)) return false;
    Check(rank, number);
    worker.to_wait.erase(worker.to_wait.begin() + which);
    if (worker.to_wait.empty() && worker.to_push.empty() && ++worker.round < kRounds) Begin(worker);
    return true;
  }

  void Check(int rank, uint32_t number) {
    Worker& worker = *cluster->all[rank];
    for (int i = Skip(rank, worker.round, number); i < cluster->values[number]; ++i) {
      int64_t expected = 0;
      for (int other = 0; other < workers; ++other) {
        if (i >= Skip(other, worker.round, number)) expected += 1 + other + 4 * worker.round;
      }
      const float* floats = reinterpret_cast<const float*>(worker.values[number]);
      const int64_t found = number == kRounded ? static_cast<int64_t>(floats[i]) : worker.values[number][i];
      CHECK_EQ(found, expected) << "worker " << rank << ", buffer " << number << ", value " << i << ": " << found;
    }
  }

  // Read a message of a random connection. False: none is on its way.
  bool Read() {
    std::vector<std::pair<int, int>> ways, slow_ways;
    for (auto& one : cluster->network.channels) {
      if (!one.second.frames.empty()) (one.first.second == slow ? slow_ways : ways).push_back(one.first);
    }
    if (ways.empty() || Below(10) == 0) ways.insert(ways.end(), slow_ways.begin(), slow_ways.end());
    if (ways.empty()) return false;
    const auto way = ways[Below(static_cast<int>(ways.size()))];
    cluster->Deliver(way.first, way.second, cluster->network.channels[way]);
    return true;
  }

  void Run() {
    for (;;) {
      bool over = true;
      for (auto& worker : cluster->all) over &= worker->round == kRounds;
      if (over) return;
      if (Below(3) && Act(Below(workers))) continue;
      if (Read()) continue;
      bool acted = false;
      for (int tries = 0; tries < 100 && !acted; ++tries) acted = Act(Below(workers));
      CHECK(acted) << "stuck: every worker waits, and no message is on its way";
    }
  }

  std::mt19937 chance;
  std::unique_ptr<Cluster> cluster;
  bool any_order = false;
  int workers = 0, slow = 0;  // which reads seldom
};

// The order on a slow link: of two workers, with one server, that push everything at once.
void CheckOrder() {
  const std::vector<int> values = {24, 24, 24, 2, 24, 2};
  const size_t window = 64;
  Cluster cluster(2, 1, values, {5, 4, 3, 2, 1, 0}, window);
  for (uint32_t number = 0; number < kBuffers; ++number) {
    for (int rank = 0; rank < 2; ++rank) cluster.Push(rank, number, 0);
  }
  std::vector<uint32_t> complete;
  for (bool more = true; more;) {
    more = false;
    for (auto& one : cluster.network.channels) {  // as from full links, one message of each in turn
      if (one.second.frames.empty()) continue;
      more = true;
      cluster.Deliver(one.first.first, one.first.second, one.second);
    }
    for (uint32_t number = 0; number < kBuffers; ++number) {
      const bool told = std::count(complete.begin(), complete.end(), number);
      if (!told && cluster.all[0]->exchange->Wait(number, 0)) complete.push_back(number);
    }
  }
  CHECK(complete == std::vector<uint32_t>({5, 3, 4, 2, 1, 0}) || complete == std::vector<uint32_t>({5, 4, 3, 2, 1, 0}))
      << "buffer " << complete[0] << " is complete first";
  // what left before the most urgent one was pushed, and then nearly all in the order of priorities
  const std::vector<PieceHead>& sent = cluster.network.sent;
  size_t before = 0, first = 0, passed = 0;
  while (NumberOf(sent[first]) != 5) before += sent[first++].bytes;
  CHECK_LE(before, window + kPieceBytes);
  for (size_t i = first; i < sent.size(); ++i) {
    auto urgent = [&](const PieceHead& later) { return NumberOf(later) > NumberOf(sent[i]); };
    passed += std::any_of(sent.begin() + i, sent.end(), urgent);
  }
  CHECK_LE(passed, sent.size() / 8) << "pieces that left before more urgent ones";
}

int main(int, char** arguments) {
  CheckOrder();
  int receipts = 0;
  const int begin = atoi(arguments[1]), end = begin + atoi(arguments[2]);
  for (int seed = begin; seed < end; ++seed) {
    std::fprintf(stderr, "\rseed %d ", seed);
    Schedule schedule(seed);
    schedule.Run();
    receipts += schedule.cluster->receipts;
  }
  std::printf("%d\n", receipts);
}
