// Workers and servers as they are built, on a network that this program plays: every message is read in two steps, and
// which step comes next, who dies when, and how much of what a dead node sent still arrives, is random. So are the
// priorities of buffers, and, if they all differ, the order of each worker's pushes within a round. Some workers
// leave with a round that all know. Sometimes a new worker comes in the place of a dead one: with a round that all know,
// and with the state of the first that is there.
//
//     story FIRST_SEED SEEDS
//
// Prints how many workers and servers died, how many decisions on losses were made, in how many of them workers were a
// round apart, how many messages of the dead arrived, how many workers lacked a sum that died with its server, how many
// left, and how many came late. Who lacks such a sum cannot go on, and dies too.

#include <cstdio>
#include <deque>
#include <random>
#include <set>

#include "byteps/common/elastic_exchange.h"
#include "byteps/server/round_table.h"

using byteps::common::Buffer;
using byteps::common::ElasticExchange;
using byteps::server::RoundTable;
using ps::PieceHead;

const int kServers = 3, kRounds = 6, kValues = 7;
const uint64_t kPieceBytes = 2 * sizeof(int64_t);
const uint32_t kLargest = 2;                     // number of the last buffer of int64
const uint32_t kLast = 4;                        // of those behind it that travel by codecs
const uint8_t kWires[] = {ps::kBfloat16, ps::kInt8Blocks};

// A value of these: no number in few bits.
double Exact(int i) { return 1 + (1 + i) / 100.0; }

struct Frame {
  PieceHead head;
  ps::SArray<char> payload;
};

// What is on its way from one node to another, in order.
struct Channel {
  std::deque<Frame> frames;
  bool half_read = false;
  char* place = nullptr;
};

// Nodes: 0 to N-1 are workers, 100 to 102 servers. A connection of a dead worker whose place is taken has kOld added.
const int kOld = 1000;

struct Network : public ps::PieceTransport {
  std::map<std::pair<int, int>, Channel> channels;
  std::set<int> gone;
  int from = 0;  // the node that acts

  void SendPiece(int node, const PieceHead& head, ps::SArray<char> payload) override {
    if (!gone.count(node)) channels[{from, node}].frames.push_back({head, payload});
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {}; }
};

struct Worker {
  std::unique_ptr<ElasticExchange> exchange;
  int round = 0;
  std::vector<uint32_t> order = {0, 1, 2, 3, 4};  // of its pushes in this round
  uint32_t next = 0;                           // of them
  int64_t mine[kLargest + 1][kValues], sums[kLargest + 1][kValues];
  float exact[kValues], rounded[2][kValues];
  double drift[2][kValues] = {};
  std::vector<int> history;  // who contributed, as bits
  int known = 0;             // the members as of the last decision, as bits
  int leaves_after = kRounds;  // its last round
  bool left = false;
  bool without = false;        // by the last decision, the one that came is lost again
  int from = 0;                // its first round
  std::set<int> lost;        // servers without which it was last told to go on
};

struct Story {
  explicit Story(unsigned seed) : chance(seed), workers(2 + Below(4)), window(16 + Below(64)) {
    std::shuffle(priorities.begin(), priorities.end(), chance);
    if (!any_order) {
      for (uint32_t& priority : priorities) priority /= 2;
    }
    ps::PieceTransport::Instance() = &network;
    ps::Postoffice::Get()->workers = workers;
    for (int rank = 0; rank < workers; ++rank) {
      members.insert(rank);
      all.emplace_back(new Worker());
      Prepare(*all.back());
    }
    for (int i = 0; i < kServers; ++i) servers.emplace_back(new RoundTable());
    deaths_left = Below(workers);
    server_deaths_left = Below(kServers);
    memberships.push_back(Bits(members));
    for (auto& worker : all) worker->known = Bits(members);
    for (int rank = Below(2) * Below(workers); rank > 0; --rank) all[rank]->leaves_after = Below(kRounds - 1);
  }

  void Prepare(Worker& worker) {
    worker.exchange.reset(new ElasticExchange());
    worker.exchange->window = window;
    worker.exchange->Spread(ServersLeft());
    for (uint32_t number = 0; number <= kLast; ++number) Place(*worker.exchange, number);
  }

  // Memory of the servers is on its way, or in sums that never were complete.
  ~Story() {
    for (auto& one : network.channels) {
      Channel& channel = one.second;
      if (channel.half_read) Receiver(one.first.second)->Abandoned(channel.frames.front().head, channel.place);
    }
    network.channels.clear();
    for (auto& server : servers) server->Fence(UINT64_MAX, 0);
  }

  // As the coordinator knows it.
  std::vector<int> ServersLeft() const {
    std::vector<int> left;
    for (int i = 0; i < kServers; ++i) {
      if (!lost_servers.count(100 + i)) left.push_back(100 + i);
    }
    return left;
  }

  int Below(int limit) { return static_cast<int>(chance() % limit); }

  static int Bits(const std::set<int>& ranks) {
    int bits = 0;
    for (int rank : ranks) bits |= 1 << rank;
    return bits;
  }

  void Place(ElasticExchange& exchange, uint32_t number) const {
    size_t bytes = kValues * (number > kLargest ? sizeof(float) : sizeof(int64_t));
    exchange.Place(number, kPieceBytes, (bytes + kPieceBytes - 1) / kPieceBytes, priorities[number]);
    if (number > kLargest) exchange.Encode(number, bytes, kWires[number - kLargest - 1]);
  }

  static int Skip(int rank, int round, uint32_t number) { return number == 1 ? (rank + round) % kValues : 0; }

  void Act(int rank) {
    Worker& worker = *all[rank];
    network.from = rank;
    if (worker.round == kRounds || worker.left) return;
    if (worker.next == 0 && any_order) std::shuffle(worker.order.begin(), worker.order.end(), chance);
    if (worker.next <= kLast && worker.order[worker.next] <= kLargest) {
      uint32_t number = worker.order[worker.next++];
      for (int i = 0; i < kValues; ++i) worker.mine[number][i] = (int64_t{1} << (8 * rank)) * (1 + worker.round);
      char* mine = reinterpret_cast<char*>(worker.mine[number]);
      char* sum = number == 0 ? mine : reinterpret_cast<char*>(worker.sums[number]);  // in place, too
      size_t skip = Skip(rank, worker.round, number) * sizeof(int64_t);
      worker.exchange->PushPullInto(number, mine, sum, sizeof(worker.mine[0]), byteps::common::BYTEPS_INT64, skip);
    } else if (worker.next <= kLast) {
      uint32_t number = worker.order[worker.next++];
      for (int i = 0; i < kValues; ++i) worker.exact[i] = rank == 0 ? Exact(i) : 0;
      worker.exchange->PushPullInto(number, reinterpret_cast<char*>(worker.exact),
                                    reinterpret_cast<char*>(worker.rounded[number - kLargest - 1]),
                                    sizeof(worker.exact), byteps::common::BYTEPS_FLOAT32, 0);
    } else if (worker.exchange->Wait(Below(kLast + 1), 0)) {
      Check(rank, worker);
      worker.next = 0;
      if (worker.round++ == worker.leaves_after) {
        worker.left = true;
        said_leave.insert(rank);
        ++leaves;
        return;
      }
      if (worker.round == entry) Admit(worker);
      if (worker.round == entry || Left(worker.round) != Left(worker.round - 1)) {
        worker.exchange->Expect(Contributions(worker));
      }
    }
  }

  bool Changing() { return !(to_freeze.empty() && to_fence.empty() && to_resume.empty() && unnoticed.empty()); }

  // A worker has reached the round in which another one comes.
  void Admit(Worker& worker) {
    if (!entered) {
      entered = true;
      if (Changing()) {  // it has heard of the change, and knows no round: it gives up
        network.gone.insert(newcomer);
        unnoticed.insert(newcomer);
      } else {
        Worker& late = *all[newcomer];
        late.round = late.from = entry;
        late.history = worker.history;
        memcpy(late.drift, worker.drift, sizeof(late.drift));
        late.known = worker.known | 1 << newcomer;
        late.lost = lost_servers;
        late.exchange->Spread(ServersLeft());
        late.exchange->Enter(generation, entry, Contributions(late));
        members.insert(newcomer);
        memberships.push_back(Bits(members));
        ++entries;
      }
    }
    if (!worker.without) worker.known |= 1 << newcomer;
  }

  // All agree, by their sums, that a new worker comes in the place of a dead one.
  void Vote() {
    int furthest = 0;
    for (int rank : members) furthest = std::max(furthest, all[rank]->round);
    std::vector<int> places;
    for (int rank : network.gone) {
      if (rank && rank < 100) places.push_back(rank);  // what worker 0 has not rounded yet is lost with it
    }
    if (entry >= 0 || places.empty() || furthest + 1 >= kRounds || Changing()) return;
    newcomer = places[Below(static_cast<int>(places.size()))];
    entry = furthest + 1;
    network.gone.erase(newcomer);
    for (int i = 0; i < kServers; ++i) {
      auto old = network.channels.find({newcomer, 100 + i});
      if (old == network.channels.end()) continue;
      network.channels[{newcomer + kOld, 100 + i}] = std::move(old->second);
      network.channels.erase({newcomer, 100 + i});
    }
    all[newcomer].reset(new Worker());
    Prepare(*all[newcomer]);
    all[newcomer]->round = kRounds;  // it does nothing until it has the state
  }

  // Who has left before this round, as bits.
  int Left(int round) {
    int bits = 0;
    for (int rank = 0; rank < workers; ++rank) bits |= (all[rank]->leaves_after < round) << rank;
    return bits;
  }

  // What a worker expects of its present round.
  int Contributions(const Worker& worker) { return __builtin_popcount(worker.known & ~Left(worker.round)); }

  // All that go on would be lost with it.
  bool IsLast(int rank) {
    for (int other = 0; other < workers; ++other) {
      if (other == rank || network.gone.count(other) || (other == newcomer && !entered)) continue;
      if (all[other]->leaves_after == kRounds) return false;
    }
    return all[rank]->leaves_after == kRounds;
  }

  void Check(int rank, Worker& worker) {
    const int64_t factor = 1 + worker.round;
    int seen = 0;
    for (int other = 0; other < workers; ++other) {
      seen |= (worker.sums[kLargest][0] >> (8 * other) & 255 ? 1 : 0) << other;
    }
    for (uint32_t number = 0; number <= kLargest; ++number) {
      const int64_t* sum = number == 0 ? worker.mine[0] : worker.sums[number];
      for (int i = Skip(rank, worker.round, number); i < kValues; ++i) {
        int64_t expected = 0;
        for (int other = 0; other < workers; ++other) {
          bool in = seen >> other & 1 && i >= Skip(other, worker.round, number);
          if (in) expected += (int64_t{1} << (8 * other)) * factor;
        }
        CHECK_EQ(sum[i], expected) << "worker " << rank << ", round " << worker.round << ", buffer " << number
                                   << ", value " << i << ": " << sum[i];
      }
    }
    for (int coded = 0; seen & 1 && coded < 2; ++coded) {
      for (int i = 0; i < kValues; ++i) {
        double drift = worker.drift[coded][i] += worker.rounded[coded][i] - Exact(i);
        CHECK(drift < 1.0 / 200 && drift > -1.0 / 200) << "codec " << coded << " drifts by " << drift;
      }
    }
    worker.history.push_back(seen);
  }

  ps::PieceReceiver* Receiver(int node) {
    if (node >= 100) return servers[node - 100].get();
    return all[node]->exchange.get();
  }

  // Read half of a message, or the rest of it.
  void Deliver(int from, int to, Channel& channel) {
    network.from = to;
    const int sender = from % kOld;
    ps::PieceReceiver* receiver = Receiver(to);
    Frame& frame = channel.frames.front();
    size_t half = frame.head.bytes / 2;
    if (!channel.half_read) {
      channel.place = receiver->PlaceFor(sender, frame.head);
      if (half) memcpy(channel.place, frame.payload.data(), half);
      channel.half_read = true;
      if (frame.head.bytes) return;
    }
    channel.place = receiver->PlaceForRest(sender, frame.head, channel.place);
    if (frame.head.bytes) memcpy(channel.place + half, frame.payload.data() + half, frame.head.bytes - half);
    from_the_dead += from > kOld || network.gone.count(from);
    receiver->Arrived(sender, frame.head, channel.place);
    channel.half_read = false;
    channel.frames.pop_front();
  }

  void Kill(int rank) {
    network.gone.insert(rank);
    unnoticed.insert(rank);
    ++deaths;
    for (int i = 0; i < kServers; ++i) {
      network.channels.erase({100 + i, rank});
      CutShort(rank, 100 + i);
    }
  }

  void KillServer(int node) {
    network.gone.insert(node);
    unnoticed.insert(node);
    --server_deaths_left;
    ++server_deaths;
    for (int rank = 0; rank < workers; ++rank) {
      Channel& pushed = network.channels[{rank, node}];
      if (pushed.half_read) servers[node - 100]->Abandoned(pushed.frames.front().head, pushed.place);
      network.channels.erase({rank, node});
      CutShort(node, rank);
    }
  }

  // Of what a dead node has sent, only the beginning arrives.
  void CutShort(int from, int to) {
    auto found = network.channels.find({from, to});
    if (found == network.channels.end()) return;
    Channel& sent = found->second;
    size_t arrive = Below(static_cast<int>(sent.frames.size()) + 1);
    if (sent.half_read) arrive = std::max<size_t>(arrive, 1);
    // what still arrives does not depend on memory that is gone
    for (auto& frame : sent.frames) {
      char* copy = new char[frame.payload.size() + 1];
      if (frame.payload.size()) memcpy(copy, frame.payload.data(), frame.payload.size());
      frame.payload.reset(copy, frame.payload.size(), [](char* data) { delete[] data; });
    }
    while (sent.frames.size() > arrive) sent.frames.pop_back();
    if (sent.half_read && Below(2)) {  // the connection ends within a message
      Receiver(to)->Abandoned(sent.frames.front().head, sent.place);
      sent = Channel();
    }
  }

  // Workers that wait for a sum that is nowhere.
  void KillWhoIsCutOff() {
    for (int rank : members) {
      if (network.gone.count(rank)) continue;
      for (int node : all[rank]->exchange->Unanswered()) {
        if (!all[rank]->lost.count(node) || !network.channels[{node, rank}].frames.empty()) continue;
        Kill(rank);
        ++cut_off;
        break;
      }
    }
  }

  // One step of the coordinator.
  void Coordinate() {
    KillWhoIsCutOff();
    for (int node : unnoticed) {
      members.erase(node);
      if (node >= 100) lost_servers.insert(node);
      ++generation;
      to_freeze.assign(members.begin(), members.end());
      to_fence.clear();
      to_resume.clear();
      first = lowest = -1;
    }
    unnoticed.clear();
    if (!said_leave.empty() && Below(3) == 0) {
      int rank = *said_leave.begin();
      said_leave.erase(rank);
      members.erase(rank);
      bool asking = !to_freeze.empty();
      for (auto* list : {&to_freeze, &to_resume}) list->erase(std::remove(list->begin(), list->end(), rank), list->end());
      if (asking && to_freeze.empty()) to_fence = ServersLeft();
    }
    if (!to_freeze.empty()) {
      int rank = Taken(&to_freeze);
      if (network.gone.count(rank)) return;
      all[rank]->exchange->Freeze();
      std::vector<ElasticExchange::Missing> missing;
      int round = static_cast<int>(all[rank]->exchange->Status(&missing));
      CHECK_EQ(round, all[rank]->round);
      lowest = first < 0 ? round : std::min(lowest, round);
      first = std::max(first, round);
      if (to_freeze.empty()) to_fence = ServersLeft();
    } else if (!to_fence.empty()) {
      servers[Taken(&to_fence) - 100]->Fence(generation, first);
      if (to_fence.empty()) {
        to_resume.assign(members.begin(), members.end());
        memberships.push_back(Bits(members));
        ++decisions;
        apart += lowest != first;
      }
    } else if (!to_resume.empty()) {
      int rank = Taken(&to_resume);
      if (network.gone.count(rank)) return;
      network.from = rank;
      all[rank]->known = Bits(members);
      all[rank]->without = entered && !members.count(newcomer);
      CHECK(all[rank]->exchange->Resume(generation, first, Contributions(*all[rank]), ServersLeft()))
          << "worker " << rank;
      all[rank]->lost = lost_servers;
    }
  }

  int Taken(std::vector<int>* from) {
    size_t i = Below(static_cast<int>(from->size()));
    int taken = (*from)[i];
    from->erase(from->begin() + i);
    return taken;
  }

  bool IsOver() {
    for (int rank = 0; rank < workers; ++rank) {
      if (!network.gone.count(rank) && !all[rank]->left && all[rank]->round < kRounds) return false;
    }
    return true;
  }

  bool AreApart() {
    std::set<int> rounds;
    for (int rank : members) rounds.insert(all[rank]->round);
    return rounds.size() > 1;
  }

  void Run() {
    int slow = Below(workers);  // reads and acts seldom
    for (int steps = 0; !IsOver(); ++steps) {
      CHECK_LT(steps, 2000000) << "stuck";
      int what = Below(100);
      if (what < 40) {
        int rank = Below(workers);
        if (!network.gone.count(rank) && (rank != slow || Below(8) == 0)) Act(rank);
      } else if (what < 90) {
        int pick = Below(static_cast<int>(network.channels.size()) + 1);
        for (auto& one : network.channels) {
          if (pick-- > 0 || one.second.frames.empty()) continue;
          if (one.first.second == slow && Below(20)) break;
          Deliver(one.first.first, one.first.second, one.second);
          break;
        }
      } else {
        Coordinate();
      }
      if (deaths_left > 0 && members.size() > 1 && Below(AreApart() ? 40 : 1000) == 0) {
        int rank = Below(workers);
        bool stays = network.gone.count(rank) || all[rank]->left || IsLast(rank);
        if (!stays && all[rank]->round < kRounds) {
          --deaths_left;
          Kill(rank);
        }
      }
      if (server_deaths_left > 0 && Below(AreApart() ? 40 : 1000) == 0) {
        int node = 100 + Below(kServers);
        if (!network.gone.count(node)) KillServer(node);
        int beside = Below(workers);  // often a worker on the same host
        bool stays = network.gone.count(beside) || all[beside]->left || IsLast(beside);
        if (deaths_left > 0 && Below(2) && !stays && all[beside]->round < kRounds) {
          --deaths_left;
          Kill(beside);
        }
      }
      if (deaths > 0 && Below(400) == 0) Vote();
    }
    std::set<std::vector<int>> histories;
    std::set<int> left;
    for (int rank = 0; rank < workers; ++rank) {
      if (network.gone.count(rank) || all[rank]->left || (rank == newcomer && !entered)) continue;
      left.insert(rank);
      histories.insert(all[rank]->history);
    }
    if (left.empty()) return;  // the job has ended with an error
    CHECK_EQ(histories.size(), 1u) << "workers have seen different contributors";
    for (int round = 0; round < kRounds; ++round) {
      const int seen = (*histories.begin())[round];
      std::set<int> there;
      for (int rank : left) {
        if (all[rank]->from <= round) there.insert(rank);
      }
      CHECK_EQ(seen & Bits(there), Bits(there)) << "the contribution of a worker is missing";
      int gone = Left(round);
      auto fits = [&](int decided) { return (decided & ~gone) == seen; };
      CHECK(std::any_of(memberships.begin(), memberships.end(), fits)) << "these were never the members: " << seen;
    }
  }

  std::mt19937 chance;
  Network network;
  int workers;
  const size_t window;
  const bool any_order = Below(2);
  std::vector<uint32_t> priorities = {0, 1, 2, 3, 4};
  std::vector<std::unique_ptr<Worker>> all;
  std::vector<std::unique_ptr<RoundTable>> servers;
  std::set<int> members, unnoticed, said_leave, lost_servers;
  std::vector<int> memberships, to_freeze, to_fence, to_resume;
  uint64_t generation = 0;
  int first = -1, lowest = -1, deaths_left = 0, server_deaths_left = 0;
  int newcomer = -1, entry = -1;  // who comes, and with which round
  bool entered = false;           // somebody has reached it
  int deaths = 0, server_deaths = 0, decisions = 0, apart = 0, from_the_dead = 0, cut_off = 0;
  int leaves = 0, entries = 0;
};

int main(int, char** arguments) {
  setenv("DYNAMIX_ELASTIC", "1", 1);
  int deaths = 0, server_deaths = 0, decisions = 0, apart = 0, from_the_dead = 0, cut_off = 0;
  int leaves = 0, entries = 0;
  int begin = atoi(arguments[1]), end = begin + atoi(arguments[2]);
  for (int seed = begin; seed < end; ++seed) {
    std::unique_ptr<Story> story(new Story(seed));
    std::fprintf(stderr, "\rseed %d ", seed);
    story->Run();
    deaths += story->deaths;
    server_deaths += story->server_deaths;
    cut_off += story->cut_off;
    decisions += story->decisions;
    apart += story->apart;
    from_the_dead += story->from_the_dead;
    leaves += story->leaves;
    entries += story->entries;
  }
  std::printf("%d %d %d %d %d %d %d %d\n", deaths, server_deaths, decisions, apart, from_the_dead, cut_off, leaves,
              entries);
}
