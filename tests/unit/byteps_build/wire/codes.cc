// Codes of a piece, round after round.
//
//     codes WIRE BEGIN COUNT      float32 values of rounds on standard input, COUNT each
//
// Prints for every round the code of values [BEGIN, COUNT), the values that it stands for, and what it leaves out.

#include <cstdio>
#include <vector>

#include "byteps/common/wire.h"

int main(int, char** arguments) {
  ps::PieceHead head = {};
  head.wire = atoi(arguments[1]);
  const size_t begin = atoi(arguments[2]), count = atoi(arguments[3]);
  head.skip = begin * sizeof(float);
  head.size = count * sizeof(float);
  const byteps::wire::Codec* codec = byteps::wire::CodecOf(head.wire);
  std::vector<float> values(count), errors(count), decoded(count);
  std::vector<char> code(codec->Bytes(count));
  while (std::fread(values.data(), sizeof(float), count, stdin) == count) {
    codec->Encode(values.data(), errors.data(), code.data(), begin, count);
    const char* sent = code.data() + codec->Begin(begin);
    byteps::wire::Decode(head, sent, reinterpret_cast<char*>(decoded.data()));
    std::fwrite(sent, 1, byteps::wire::BytesOf(head), stdout);
    std::fwrite(decoded.data() + begin, sizeof(float), count - begin, stdout);
    std::fwrite(errors.data(), sizeof(float), count, stdout);
  }
}
