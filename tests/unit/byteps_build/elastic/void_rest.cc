// An answer becomes void while a worker reads it: its server is lost, and so is a worker that is in the sum. The valid
// answer comes from another server before the rest of the void one does.

#include "byteps/common/elastic_exchange.h"

using byteps::common::ElasticExchange;
using ps::PieceHead;

const int kLost = 100, kLeft = 101, kValues = 4;
const size_t kBytes = kValues * sizeof(int64_t);

struct Network : public ps::PieceTransport {
  std::vector<std::pair<int, PieceHead>> sent;

  void SendPiece(int node, const PieceHead& head, ps::SArray<char>) override { sent.emplace_back(node, head); }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {}; }
};

// The answer of a server to what it was sent last.
struct Answer {
  Answer(const Network& network, int64_t value) : server(network.sent.back().first), head(network.sent.back().second) {
    head.kind = ps::PieceKind::kAnswer;
    std::fill_n(values, kValues, value);
  }

  void ReadHalf(ElasticExchange& exchange) {
    place = exchange.PlaceFor(server, head);
    memcpy(place, values, kBytes / 2);
  }

  void ReadRest(ElasticExchange& exchange) {
    place = exchange.PlaceForRest(server, head, place);
    memcpy(place + kBytes / 2, values + kValues / 2, kBytes / 2);
    exchange.Arrived(server, head, place);
  }

  int server;
  PieceHead head;
  int64_t values[kValues];
  char* place = nullptr;
};

int main() {
  Network network;
  ps::PieceTransport::Instance() = &network;
  ps::Postoffice::Get()->workers = 2;
  ElasticExchange exchange;
  exchange.Spread({kLost, kLeft});
  exchange.Place(0, kBytes, 1, 0);
  int64_t mine[kValues] = {1, 1, 1, 1}, sum[kValues] = {};
  exchange.PushPullInto(0, reinterpret_cast<char*>(mine), reinterpret_cast<char*>(sum), kBytes,
                        byteps::common::BYTEPS_INT64, 0);

  Answer of_two(network, 2);
  CHECK_EQ(of_two.server, kLost);
  of_two.ReadHalf(exchange);
  exchange.Freeze();
  CHECK(exchange.Resume(1, 0, 1, {kLeft}));
  Answer of_one(network, 1);
  CHECK_EQ(of_one.server, kLeft) << "it is sent again, to the server that is left";
  of_one.ReadHalf(exchange);
  of_one.ReadRest(exchange);
  of_two.ReadRest(exchange);
  CHECK(exchange.Wait(0, 0));
  for (int64_t value : sum) CHECK_EQ(value, 1) << "void: " << value;
  return 0;
}
