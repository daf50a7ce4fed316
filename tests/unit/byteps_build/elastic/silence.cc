// Which workers a server takes for silent, with a clock that this program sets.

#include <algorithm>
#include <map>

#include "byteps/server/round_table.h"

using ps::PieceHead;
using ps::PieceKind;

const double kQuietS = 4;

// Workers are nodes 10, 11 and 12 with ranks 0, 1 and 2.
struct Network : public ps::PieceTransport {
  std::map<int, int> asked;

  void SendPiece(int node, const PieceHead& head, ps::SArray<char>) override {
    if (head.kind == PieceKind::kAlive) ++asked[node];
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {{10, 0}, {11, 1}, {12, 2}}; }
};

struct Table : public byteps::server::RoundTable {
  double now_s = 1000;
  double NowS() const override { return now_s; }

  void Push(int node, uint64_t key, uint64_t generation = 0, uint64_t round = 0) {
    PieceHead head = {};
    head.kind = PieceKind::kPush;
    head.contributions = 3;
    head.key = key;
    head.round = round;
    head.generation = generation;
    Arrived(node, head, nullptr);
  }

  void Answer(int node) {
    PieceHead head = {};
    head.kind = PieceKind::kAlive;
    Arrived(node, head, nullptr);
  }

  // Time passes, in steps in which the server looks, and these workers answer. Whom it takes for silent at the end.
  std::vector<int> After(double seconds, const std::vector<int>& answering = {}) {
    std::vector<int> silent;
    for (double end_s = now_s + seconds; now_s < end_s;) {
      now_s += 0.5;
      silent = Silent(kQuietS);
      for (int node : answering) Answer(node);
    }
    return silent;
  }
};

typedef std::vector<int> Ranks;

int main() {
  setenv("DYNAMIX_ELASTIC", "1", 1);
  Network network;
  ps::PieceTransport::Instance() = &network;

  {  // nobody waits: nobody is asked
    Table table;
    CHECK(table.After(20) == Ranks());
    for (int node : {10, 11, 12}) table.Push(node, 1);
    CHECK(table.After(20) == Ranks()) << "a sum that is complete waits for nobody";
    CHECK_EQ(network.asked.size(), 0u);
  }
  {  // one that pushes no more and does not answer, one that does not push but answers
    Table table;
    table.After(1);
    table.Push(10, 1);
    CHECK(table.After(3.5, {12}) == Ranks());
    CHECK(table.After(1, {12}) == Ranks({1})) << "worker 1 is silent";
    CHECK(network.asked[11] > 1 && network.asked[12] > 1 && !network.asked.count(10)) << "those with no part are asked";
    CHECK(table.After(60, {12}) == Ranks({1}));
    table.Answer(11);
    CHECK(table.After(1, {12}) == Ranks()) << "it answers again";
    CHECK(table.After(8) == Ranks({1, 2}));
  }
  {  // it lacks one piece of several; and while others push, nobody is silent
    Table table;
    table.After(1);
    for (uint64_t key = 1; key <= 3; ++key) table.Push(10, key);
    for (uint64_t key = 1; key <= 2; ++key) table.Push(11, key);
    CHECK(table.After(3) == Ranks());
    table.Push(11, 3);
    CHECK(table.After(3) == Ranks());
    CHECK(table.After(1) == Ranks({2}));
    table.Push(10, 1, 1);
    table.Push(12, 2, 0);
    CHECK(table.After(3.5) == Ranks());
    CHECK(table.After(1) == Ranks({1, 2})) << "what is void makes nobody wait, and is no part of a sum";
  }
  {  // the server itself was stopped
    Table table;
    table.After(1);
    table.Push(10, 1);
    table.now_s += 100;
    CHECK(table.Silent(kQuietS) == Ranks()) << "answers may be waiting to be read";
    CHECK(table.After(3.5, {11, 12}) == Ranks());
    CHECK(table.After(60, {11, 12}) == Ranks());
  }
  return 0;
}
