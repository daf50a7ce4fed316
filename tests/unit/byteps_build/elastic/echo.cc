// Whether a worker takes the late answer of a server for that of another one.

#include <deque>

#include "byteps/common/exchange.h"

using byteps::common::Exchange;
using ps::PieceHead;

// The answer to the oldest question comes while the next one is asked, or the answer to each question comes at once.
struct Network : public ps::PieceTransport {
  Exchange* worker = nullptr;
  std::deque<std::pair<int, PieceHead>> questions;
  bool is_late = true;

  void SendPiece(int node, const PieceHead& head, ps::SArray<char>) override {
    questions.push_back({node, head});
    if (is_late && questions.size() < 2) return;
    std::pair<int, PieceHead> answer = questions.front();
    questions.pop_front();
    char* place = worker->PlaceFor(answer.first, answer.second);
    memset(place, 0, answer.second.bytes);
    worker->Arrived(answer.first, answer.second, place);
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {}; }
};

int main() {
  Network network;
  ps::PieceTransport::Instance() = &network;
  Exchange worker;
  network.worker = &worker;
  CHECK(worker.Echo(8, 1, 0) < 0) << "nothing has come";
  CHECK(worker.Echo(10, 4000, 0) < 0) << "what came is of another server";
  CHECK(worker.Echo(10, 1, 0) >= 0) << "a late answer shows that the server is there";
  CHECK(worker.Echo(8, 1, 0) < 0) << "what came is of another server";
  network.questions.clear();
  network.is_late = false;
  CHECK(worker.Echo(10, 1, 0) >= 0) << "the answer has come";
}
