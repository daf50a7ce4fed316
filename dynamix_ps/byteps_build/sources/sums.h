// Sums of values of one type, in memory.
#ifndef BYTEPS_SUMS_H_
#define BYTEPS_SUMS_H_

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <algorithm>
#include <vector>

#include "common.h"
#include "dmlc/logging.h"
#include "half.h"

namespace byteps {
namespace sums {

// to[i] += from[i]
template <typename T>
void AddTyped(char* to, const char* from, size_t bytes) {
  T* __restrict__ a = reinterpret_cast<T*>(to);
  const T* __restrict__ b = reinterpret_cast<const T*>(from);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) a[i] = a[i] + b[i];
}

// a[i] = b[i] = a[i] + b[i]
template <typename T>
void AddBothTyped(char* to, char* too, size_t bytes) {
  T* __restrict__ a = reinterpret_cast<T*>(to);
  T* __restrict__ b = reinterpret_cast<T*>(too);
  for (size_t i = 0; i < bytes / sizeof(T); ++i) a[i] = b[i] = a[i] + b[i];
}

// The instance of `name` for values of this type.
#define BYTEPS_OF_TYPE(type, name)                                           \
  switch (type) {                                                           \
    case common::BYTEPS_FLOAT32: return name<float>;                        \
    case common::BYTEPS_FLOAT64: return name<double>;                       \
    case common::BYTEPS_FLOAT16: return name<mshadow::half::half_t>;        \
    case common::BYTEPS_UINT8: return name<uint8_t>;                        \
    case common::BYTEPS_INT8: return name<int8_t>;                          \
    case common::BYTEPS_INT32: return name<int32_t>;                        \
    case common::BYTEPS_INT64: return name<int64_t>;                        \
    default: LOG(FATAL) << "values of type " << type << " cannot be summed"; \
  }                                                                         \
  return nullptr;

typedef void (*Adder)(char*, const char*, size_t);
inline Adder AdderOf(int type) { BYTEPS_OF_TYPE(type, AddTyped) }
inline void Add(int type, char* to, const char* from, size_t bytes) { AdderOf(type)(to, from, bytes); }

typedef void (*BothAdder)(char*, char*, size_t);
inline BothAdder BothAdderOf(int type) { BYTEPS_OF_TYPE(type, AddBothTyped) }
inline void AddBoth(int type, char* to, char* too, size_t bytes) { BothAdderOf(type)(to, too, bytes); }

const size_t kBlock = 32 << 10;  // what is summed at once, so that all of it stays in the cache

// One contribution in memory that others read too. Values before `skip` are zeros and are not to be written.
struct Contribution {
  char* place;
  size_t skip;
};

// Sum bytes [begin, end) of all contributions, at most kBlock, in their order, into `sum`.
inline void SumInto(char* sum, int type, const std::vector<Contribution>& all, size_t begin, size_t end) {
  size_t filled = end;  // sum has values from here on; before them are zeros
  for (auto& one : all) {
    size_t from = std::max(begin, one.skip);
    if (from >= end) continue;
    if (filled > from) {
      size_t until = std::min(filled, end);
      memcpy(sum + (from - begin), one.place + from, until - from);
      if (until < end) Add(type, sum + (until - begin), one.place + until, end - until);
      filled = from;
    } else {
      Add(type, sum + (from - begin), one.place + from, end - from);
    }
  }
  if (filled > begin) memset(sum, 0, filled - begin);
}

// The same, and everyone gets the sum. Where `more` is not null it takes part too, behind them.
inline void SumBlock(int type, const std::vector<Contribution>& all, char* more, size_t begin, size_t end) {
  if (all.size() == 2 && !more && all[0].skip <= begin && all[1].skip <= begin) {
    AddBoth(type, all[0].place + begin, all[1].place + begin, end - begin);
    return;
  }
  alignas(64) char sum[kBlock];
  SumInto(sum, type, all, begin, end);
  if (more) {
    Add(type, sum, more + begin, end - begin);
    memcpy(more + begin, sum, end - begin);
  }
  for (auto& one : all) {
    size_t from = std::max(begin, one.skip);
    if (from < end) memcpy(one.place + from, sum + (from - begin), end - from);
  }
}

}  // namespace sums
}  // namespace byteps

#endif  // BYTEPS_SUMS_H_
