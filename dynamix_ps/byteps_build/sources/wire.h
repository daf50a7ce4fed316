// How float32 values of a piece travel in fewer bytes: codecs, which both ends know by a number in the piece's head.
//
// What a code leaves out is added to the next values of the same place (error feedback, arXiv 1901.09847), by workers
// for what they push, and by servers for their sums.
#ifndef BYTEPS_WIRE_H_
#define BYTEPS_WIRE_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "ps/pieces.h"

namespace byteps {
namespace wire {

// Bits are looked at as integers, because the compiler is told that there is no NaN.
inline uint32_t BitsOf(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof(bits));
  return bits;
}

inline float FloatOf(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// Values are coded in blocks, which begin at the first value of a piece: at the same places on all workers. `values`,
// `errors` and `code` are of the whole piece, of which values [begin, count) travel. They travel with the rest of the
// block that has value `begin`, in which those before it count as zeros.
class Codec {
 public:
  // Bytes of a code of `count` values.
  virtual size_t Bytes(size_t count) const = 0;
  // Where the block of this value begins in the code.
  virtual size_t Begin(size_t value) const = 0;
  // `errors`: what earlier codes have left out, and then what this one leaves out as well. A value that is not finite
  // is not finite in the code either, and leaves nothing out.
  virtual void Encode(const float* values, float* errors, char* code, size_t begin, size_t count) const = 0;
  virtual void Decode(const char* code, float* values, size_t begin, size_t count) const = 0;

 protected:
  ~Codec() {}  // there is one of each, which is never deleted
};

// The upper half of a float32, rounded to the nearest, ties to even. Its blocks are single values.
class Bfloat16 final : public Codec {
 public:
  size_t Bytes(size_t count) const override { return count * sizeof(uint16_t); }
  size_t Begin(size_t value) const override { return value * sizeof(uint16_t); }

  void Encode(const float* __restrict__ values, float* __restrict__ errors, char* __restrict__ code, size_t begin,
              size_t count) const override {
    uint16_t* __restrict__ halves = reinterpret_cast<uint16_t*>(code);
    for (size_t i = begin; i < count; ++i) {
      float wanted = values[i] + errors[i];
      uint16_t half = Narrowed(wanted);
      errors[i] = (half & 0x7f80) != 0x7f80 ? wanted - Widened(half) : 0.0f;
      halves[i] = half;
    }
  }

  void Decode(const char* __restrict__ code, float* __restrict__ values, size_t begin, size_t count) const override {
    const uint16_t* __restrict__ halves = reinterpret_cast<const uint16_t*>(code);
    for (size_t i = begin; i < count; ++i) values[i] = Widened(halves[i]);
  }

 private:
  static uint16_t Narrowed(float value) {
    uint32_t bits = BitsOf(value);
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return is_nan ? (bits >> 16) | 0x40 : (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  }

  static float Widened(uint16_t half) { return FloatOf(static_cast<uint32_t>(half) << 16); }
};

const size_t kBlock = 256;

// Blocks of 256 values: a step, which is 1/127 of the largest magnitude of the block, and of every value how many steps
// it is, rounded to the nearest. A block with a value that is not finite has the step NaN, so all of it is NaN, and the
// errors stay for a later code.
class Int8Blocks final : public Codec {
 public:
  size_t Bytes(size_t count) const override {
    size_t rest = count % kBlock;
    return Begin(count) + (rest ? sizeof(float) + rest : 0);
  }
  size_t Begin(size_t value) const override { return value / kBlock * (sizeof(float) + kBlock); }

  void Encode(const float* values, float* errors, char* code, size_t begin, size_t count) const override {
    for (size_t block = begin / kBlock * kBlock; block < count; block += kBlock) {
      EncodeBlock(values + block, errors + block, code + Begin(block), std::max(begin, block) - block,
                  std::min(kBlock, count - block));
    }
  }

  void Decode(const char* code, float* values, size_t begin, size_t count) const override {
    for (size_t block = begin / kBlock * kBlock; block < count; block += kBlock) {
      DecodeBlock(code + Begin(block), values + block, std::max(begin, block) - block, std::min(kBlock, count - block));
    }
  }

 private:
  static void EncodeBlock(const float* __restrict__ values, float* __restrict__ errors, char* __restrict__ code,
                          size_t begin, size_t count) {
    float wanted[kBlock] = {};
    for (size_t i = begin; i < count; ++i) wanted[i] = values[i] + errors[i];
    int32_t magnitude = 0;  // bits of magnitudes have the order of the magnitudes
    for (size_t i = 0; i < count; ++i) magnitude = std::max<int32_t>(magnitude, BitsOf(wanted[i]) & 0x7fffffff);
    const float largest = FloatOf(magnitude);
    const bool finite = magnitude <= 0x7f000000;  // up to 2^127, so that 127 steps are finite, too
    const bool is_small = finite && largest < 1.5e-36f;  // a step of it would not be a normal number
    const float step = finite ? largest * (1.0f / 127) : FloatOf(0x7fc00000);
    const float steps_of_one = is_small || !finite ? 0.0f : 127 / largest;
    const float sent = is_small ? 0.0f : step;
    memcpy(code, &sent, sizeof(sent));
    int8_t steps[kBlock] = {};
    if (finite) {
      const float shift = 3 << 22;  // to it, only whole numbers can be added: the last bits of the sum are the number
      for (size_t i = begin; i < count; ++i) {
        int32_t rounded = static_cast<int32_t>(BitsOf(wanted[i] * steps_of_one + shift) - BitsOf(shift));
        steps[i] = static_cast<int8_t>(rounded);
        errors[i] = wanted[i] - static_cast<float>(rounded) * sent;
      }
    }
    memcpy(code + sizeof(sent), steps, count);
  }

  static void DecodeBlock(const char* __restrict__ code, float* __restrict__ values, size_t begin, size_t count) {
    float step;
    memcpy(&step, code, sizeof(step));
    const int8_t* __restrict__ steps = reinterpret_cast<const int8_t*>(code + sizeof(step));
    for (size_t i = begin; i < count; ++i) values[i] = static_cast<float>(steps[i]) * step;
  }
};

// The codec of a way to travel; null: values travel as they are.
inline const Codec* CodecOf(uint8_t wire) {
  static const Bfloat16 bfloat16;
  static const Int8Blocks int8_blocks;
  if (wire == ps::kBfloat16) return &bfloat16;
  return wire == ps::kInt8Blocks ? &int8_blocks : nullptr;
}

// Bytes that follow the head of a piece that travels in this way.
inline uint64_t BytesOf(const ps::PieceHead& head) {
  const Codec* codec = CodecOf(head.wire);
  if (!codec || head.skip >= head.size) return head.size - head.skip;
  return codec->Bytes(head.size / sizeof(float)) - codec->Begin(head.skip / sizeof(float));
}

// Decode what has followed the head, into the place of the whole piece.
inline void Decode(const ps::PieceHead& head, const char* received, char* piece) {
  const Codec* codec = CodecOf(head.wire);
  size_t begin = head.skip / sizeof(float);
  codec->Decode(received - codec->Begin(begin), reinterpret_cast<float*>(piece), begin, head.size / sizeof(float));
}

}  // namespace wire
}  // namespace byteps

#endif  // BYTEPS_WIRE_H_
