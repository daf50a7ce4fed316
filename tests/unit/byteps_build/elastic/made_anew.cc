// A sum that has been made is void, as a worker is lost, and is made anew. What its code has left out counts no more:
// the code of the next sum adds what was left out before it.

#include <vector>

#include "byteps/server/round_table.h"

using byteps::server::RoundTable;
using ps::PieceHead;

const int kValues = 300, kBegin = 70;  // two blocks, the first of which travels in part
const byteps::wire::Codec* const kCodec = byteps::wire::CodecOf(ps::kInt8Blocks);

struct Network : public ps::PieceTransport {
  std::vector<float> answer;  // of the last piece, decoded
  std::vector<char> code;

  void SendPiece(int, const PieceHead& head, ps::SArray<char> payload) override {
    CHECK_EQ(head.bytes, byteps::wire::BytesOf(head));
    code.assign(payload.data(), payload.data() + payload.size());
    answer.assign(kValues, 0);
    if (head.bytes) byteps::wire::Decode(head, payload.data(), reinterpret_cast<char*>(answer.data()));
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return {}; }
};

// What a worker has pushed, as it arrives.
std::vector<float> Push(RoundTable* server, int worker, int contributions, uint64_t generation, uint64_t round,
                        float scale, int begin) {
  PieceHead head = {};
  head.kind = ps::PieceKind::kPush;
  head.type = byteps::common::BYTEPS_FLOAT32;
  head.wire = ps::kInt8Blocks;
  head.contributions = contributions;
  head.round = round;
  head.generation = generation;
  head.size = kValues * sizeof(float);
  head.skip = begin * sizeof(float);
  head.bytes = byteps::wire::BytesOf(head);
  std::vector<float> values(kValues), errors(kValues), arrived(kValues);
  for (int i = begin; i < kValues; ++i) values[i] = scale * static_cast<float>((i * 37 + worker * 11) % 101 - 50);
  std::vector<char> code(kCodec->Bytes(kValues));
  kCodec->Encode(values.data(), errors.data(), code.data(), begin, kValues);
  char* place = server->PlaceFor(worker, head);
  if (head.bytes) {
    memcpy(place, code.data() + kCodec->Begin(begin), head.bytes);
    kCodec->Decode(code.data(), arrived.data(), begin, kValues);
  }
  server->Arrived(worker, head, place);
  return arrived;
}

std::vector<float> Sum(std::vector<float> a, const std::vector<float>& b) {
  for (int i = 0; i < kValues; ++i) a[i] += b[i];
  return a;
}

// The server's errors before a round are changed to those after it. Its last answer must be the code of this sum.
void Expect(const Network& network, const std::vector<float>& sum, std::vector<float>* errors, int begin) {
  std::vector<char> code(kCodec->Bytes(kValues));
  std::vector<float> decoded(kValues);
  kCodec->Encode(sum.data(), errors->data(), code.data(), begin, kValues);
  kCodec->Decode(code.data(), decoded.data(), begin, kValues);
  for (int i = begin; i < kValues; ++i) CHECK_EQ(network.answer[i], decoded[i]) << "value " << i;
}

int main() {
  setenv("DYNAMIX_ELASTIC", "1", 1);
  Network network;
  ps::PieceTransport::Instance() = &network;
  RoundTable server;
  std::vector<float> errors(kValues), mine;
  mine = Push(&server, 1, 2, 0, 0, 1.0f, kBegin);
  Expect(network, Sum(mine, Push(&server, 2, 2, 0, 0, 0.3f, 0)), &errors, 0);

  Push(&server, 1, 2, 0, 1, 2.0f, 0);
  Push(&server, 2, 2, 0, 1, 7.0f, 0);  // the sum of round 1, of which nobody makes use
  Push(&server, 1, 2, 1, 1, 2.0f, 0);  // anew, and worker 2 is lost before its part has come
  Push(&server, 2, 2, 0, 1, 7.0f, 0);  // void
  std::vector<float> of_one = Push(&server, 1, 1, 2, 1, 2.0f, kBegin);
  Expect(network, of_one, &errors, kBegin);

  Push(&server, 1, 1, 2, 2, 1.0f, kValues);  // a round in which nothing travels, and which is made anew
  CHECK(network.code.empty());
  Push(&server, 1, 1, 3, 2, 1.0f, kValues);
  Expect(network, Push(&server, 1, 1, 3, 3, 1.0f, 0), &errors, 0);
  // Of a round that has not begun: all that there is stays.
  Expect(network, Push(&server, 1, 1, 4, 4, 5.0f, 0), &errors, 0);
  return 0;
}
