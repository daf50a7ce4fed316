// A buffer of a recorded exchange: int64 values, a bit for each contribution, that are summed in place, or elsewhere and
// with zeros at the beginning; or float32 values that travel by a codec.
#ifndef BUFFER_H_
#define BUFFER_H_

#include <map>

#include "byteps/common/wire.h"
#include "component.h"

namespace wire = byteps::wire;

const size_t kPieceBytes = 16;

struct Buffer {
  enum Kind { kInPlace, kSkipped, kBfloat16, kInt8, kKinds };

  Buffer(size_t kind, size_t pieces)
      : kind(static_cast<Kind>(kind)),
        values(pieces * kPieceBytes / ValueBytes() - 1),
        mine(values * ValueBytes()),
        sum(mine.size()),
        first_sent(pieces) {}

  const Kind kind;
  const size_t values;
  Bytes mine, sum;
  std::vector<Bytes> first_sent;                // what was sent of every piece in the open round
  std::map<uint64_t, uint64_t> bits;            // that were pushed, by round
  uint64_t bit = 0, generation = 0, round = 0;  // of the last push
  bool open = false;

  bool IsFloat() const { return kind >= kBfloat16; }
  size_t ValueBytes() const { return IsFloat() ? sizeof(float) : sizeof(int64_t); }
  uint8_t Wire() const { return kind == kBfloat16 ? ps::kBfloat16 : ps::kInt8Blocks; }
  size_t Skip(uint64_t bit) const { return kind == kSkipped ? BeginOf(bit, values) * sizeof(int64_t) : 0; }
  size_t Skip(uint64_t bit, const ps::PieceHead& head) const {
    const size_t begin = PieceOf(head.key) * kPieceBytes, skip = Skip(bit);
    return std::min<size_t>(skip > begin ? skip - begin : 0, head.size);
  }

  // Of a piece without zeros.
  ps::PieceHead Head(uint64_t number, uint64_t piece) const {
    ps::PieceHead head = {};
    head.key = KeyOf(number, piece);
    head.type = IsFloat() ? byteps::common::BYTEPS_FLOAT32 : byteps::common::BYTEPS_INT64;
    head.wire = IsFloat() ? Wire() : head.type;
    head.size = std::min(kPieceBytes, mine.size() - piece * kPieceBytes);
    return head;
  }

  // A contribution, or a sum of them, as it is before it travels: the bits as far as they are there, or any float.
  Bytes Values(uint64_t bits) const {
    Bytes all(mine.size());
    for (size_t i = 0; i < values; ++i) {
      if (IsFloat()) {
        reinterpret_cast<float*>(all.data())[i] = (10 + bits % 7) * (1 + i / 100.0f);
      } else {
        reinterpret_cast<int64_t*>(all.data())[i] = SumAt(i, bits, kind == kSkipped ? values : 1);
      }
    }
    return all;
  }

  // A piece of a sum as it travels.
  Bytes Sum(uint64_t bits, uint64_t piece) const {
    const Bytes all = Values(bits);
    const char* begin = all.data() + piece * kPieceBytes;
    const size_t size = std::min(kPieceBytes, all.size() - piece * kPieceBytes);
    if (!IsFloat()) return Bytes(begin, begin + size);
    const wire::Codec& codec = *wire::CodecOf(Wire());
    std::vector<float> errors(size / sizeof(float));
    Bytes code(codec.Bytes(errors.size()));
    codec.Encode(reinterpret_cast<const float*>(begin), errors.data(), code.data(), 0, errors.size());
    return code;
  }

  // Whether what is wanted of a piece of the sum is that of these contributions.
  bool Holds(uint64_t piece, uint64_t bits, uint64_t own) const {
    const Bytes travelled = Sum(bits, piece);
    ps::PieceHead head = Head(0, piece);
    Bytes expected = travelled;
    if (IsFloat()) {
      expected.resize(head.size);
      wire::Decode(head, travelled.data(), expected.data());
    }
    const Bytes& place = kind == kInPlace ? mine : sum;
    const size_t skip = Skip(own, head);
    return memcmp(place.data() + piece * kPieceBytes + skip, expected.data() + skip, head.size - skip) == 0;
  }
};

#endif  // BUFFER_H_
