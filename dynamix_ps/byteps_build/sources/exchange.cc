// The C functions of the worker's part in the sums of Comm. dynamix_ps/comm/exchange.py calls them.

#include "elastic_exchange.h"
#include "exchange.h"
#include "ps/losses.h"

namespace byteps {
namespace common {

Exchange* exchange_ = nullptr;
ElasticExchange* elastic_ = nullptr;  // the same, if workers may be lost

int ServerNode(int server) { return ps::Postoffice::ServerRankToID(server); }

std::vector<int> ServerNodes(const int32_t* servers, size_t count) {
  std::vector<int> nodes;
  for (size_t i = 0; i < count; ++i) nodes.push_back(ServerNode(servers[i]));
  return nodes;
}

extern "C" {

// After byteps_init. `elastic`: workers may be lost while the others go on.
void byteps_exchange_start(int elastic) {
  if (exchange_) return;
  if (elastic) {
    exchange_ = elastic_ = new ElasticExchange();
  } else {
    exchange_ = new Exchange();
  }
}

// The names of the hosts of all servers, by rank, and of this worker's host, each with a line end.
int byteps_exchange_hosts(char* out, int room) {
  std::unordered_map<int, std::string> hosts;
  for (auto& peer : ps::PieceTransport::Instance()->Peers()) hosts[peer.first] = peer.second;
  std::string all;
  for (int server = 0; server < ps::Postoffice::Get()->num_servers(); ++server) all += hosts[ServerNode(server)] + "\n";
  all += ps::Postoffice::Get()->van()->my_node().hostname + "\n";
  CHECK_LT(all.size(), static_cast<size_t>(room));
  memcpy(out, all.c_str(), all.size() + 1);
  return all.size();
}

// Piece p of buffer n is at server n + p of these, which begin again at their end. For what is placed later.
void byteps_exchange_spread(const int32_t* servers, uint64_t count) { exchange_->Spread(ServerNodes(servers, count)); }

// How a buffer is cut. The lowest priority is sent first.
void byteps_exchange_place(uint32_t number, uint64_t piece_bytes, uint64_t pieces, uint32_t priority) {
  CHECK_LE(pieces, uint64_t{1} << ps::kPieceBits);
  exchange_->Place(number, piece_bytes, pieces, priority);
}

// How many bytes may be in flight to each server (lane.h).
void byteps_exchange_window(uint64_t bytes) { exchange_->window = bytes; }

// So many bytes at the beginning of a buffer of float32, after `place`, travel by the codec `wire` (pieces.h).
void byteps_exchange_encode(uint32_t number, uint64_t bytes, int wire) { exchange_->Encode(number, bytes, wire); }

// A sum of all of this memory has so many contributions. It is in a segment that these servers map.
void byteps_exchange_refer(char* place, uint64_t bytes, int contributions, uint64_t segment, const int32_t* servers,
                           int count) {
  SharedMemory memory;
  memory.bytes = bytes;
  memory.contributions = contributions;
  memory.segment = segment;
  memory.servers = ServerNodes(servers, count);
  exchange_->Share(place, std::move(memory));
}

// The workers of this host sum what they have here: `places` is the memory of all of them, in the order of
// ranks. If they are `all` workers there is nothing to push, else they push once, and `refer` came before.
void byteps_exchange_share(void* state, char** places, int workers, int mine, uint64_t bytes, int all) {
  CHECK_LE(workers, kMaxOnHost);
  exchange_->ShareAmongWorkers(static_cast<HostSumState*>(state), std::vector<char*>(places, places + workers), mine,
                               bytes, all);
}

// The memory is not shared any more.
void byteps_exchange_unshare(char* place) { exchange_->Unshare(place); }

void byteps_exchange_push_pull(uint32_t number, char* place, uint64_t bytes, int type, uint64_t skip) {
  exchange_->PushPull(number, place, bytes, type, skip);
}

// The sum goes to another place, and the values stay until their round is complete. Needs `elastic`, like the
// functions below up to `enter`.
void byteps_exchange_push_pull_into(uint32_t number, char* mine, char* sum, uint64_t bytes, int type, uint64_t skip) {
  elastic_->PushPullInto(number, mine, sum, bytes, type, skip);
}

void byteps_exchange_freeze() { elastic_->Freeze(); }

// The first incomplete round. For up to `room` buffers of it that have no complete sum: their numbers, and how many
// pieces of the sum are missing; returns how many such buffers there are.
int byteps_exchange_status(uint64_t* round, uint32_t* numbers, uint64_t* pieces, int room) {
  std::vector<ElasticExchange::Missing> missing;
  *round = elastic_->Status(&missing);
  for (int i = 0; i < std::min<int>(room, missing.size()); ++i) {
    numbers[i] = missing[i].number;
    pieces[i] = missing[i].pieces;
  }
  return missing.size();
}

// The servers that have a piece of the first incomplete round and have not answered: up to `room` of them, each once.
int byteps_exchange_unanswered(int32_t* servers, int room) {
  int count = 0;
  for (int node : elastic_->Unanswered()) {
    if (count < room) servers[count++] = ps::Postoffice::IDtoRank(node);
  }
  return count;
}

// `servers`: as for `spread`, of those that are left.
int byteps_exchange_resume(uint64_t generation, uint64_t round, int contributions, const int32_t* servers,
                           uint64_t count) {
  return elastic_->Resume(generation, round, contributions, ServerNodes(servers, count));
}

// Between two rounds: how many workers contribute from now on.
void byteps_exchange_expect(int contributions) { elastic_->Expect(contributions); }

// Before the first push of a worker that comes late: where the others are.
void byteps_exchange_enter(uint64_t generation, uint64_t round, int contributions) {
  elastic_->Enter(generation, round, contributions);
}

// The next role whose connection has ended: its kind, and in `rank` which one; -1: none within `timeout_s`.
int byteps_exchange_next_loss(double timeout_s, int* rank) { return ps::Losses::Instance().Next(timeout_s, rank); }

int byteps_exchange_wait(uint32_t number, double timeout_s) { return exchange_->Wait(number, timeout_s); }

double byteps_exchange_echo(int server, uint64_t bytes, double timeout_s) {
  return exchange_->Echo(ServerNode(server), bytes, timeout_s);
}

int byteps_exchange_announce(int server, uint64_t segment, const char* announcement, int size, double timeout_s) {
  return exchange_->Announce(ServerNode(server), segment, std::string(announcement, size), timeout_s);
}

void byteps_exchange_forget(int server, uint64_t segment) { exchange_->Forget(ServerNode(server), segment); }

}  // extern "C"

}  // namespace common
}  // namespace byteps
