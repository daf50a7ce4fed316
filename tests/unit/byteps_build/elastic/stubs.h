// What the sources of the sums use of BytePS and ps-lite, in small.
#ifndef STUBS_H_
#define STUBS_H_

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <iostream>
#include <memory>
#include <sstream>
#include <string>

// Ends the program with what is streamed into it.
struct Failure {
  std::ostringstream text;
  ~Failure() {
    std::cerr << text.str() << std::endl;
    abort();
  }
};

#define CHECK(condition) \
  if (condition) {       \
  } else                 \
    Failure().text << __FILE__ << ":" << __LINE__ << ": " #condition " "
#define CHECK_EQ(a, b) CHECK((a) == (b))
#define CHECK_NE(a, b) CHECK((a) != (b))
#define CHECK_LE(a, b) CHECK((a) <= (b))
#define CHECK_LT(a, b) CHECK((a) < (b))
#define CHECK_GE(a, b) CHECK((a) >= (b))
#define LOG(severity) Failure().text

namespace mshadow {
namespace half {
struct half_t {
  half_t operator+(half_t) const { return *this; }
};
}  // namespace half
}  // namespace mshadow

namespace byteps {
namespace common {
enum DataType {
  BYTEPS_FLOAT32 = 0,
  BYTEPS_FLOAT64 = 1,
  BYTEPS_FLOAT16 = 2,
  BYTEPS_UINT8 = 3,
  BYTEPS_INT32 = 4,
  BYTEPS_INT8 = 5,
  BYTEPS_INT64 = 6,
};
}  // namespace common
}  // namespace byteps

namespace ps {

template <typename V>
class SArray {
 public:
  SArray() {}
  SArray(V* data, size_t size, bool) : data_(data), size_(size) {}

  template <typename Deleter>
  void reset(V* data, size_t size, Deleter deleter) {
    owner_.reset(data, deleter);
    data_ = data;
    size_ = size;
  }

  SArray segment(size_t begin, size_t end) const {
    SArray part = *this;
    part.data_ += begin;
    part.size_ = end - begin;
    return part;
  }

  V* data() const { return data_; }
  size_t size() const { return size_; }

 private:
  std::shared_ptr<V> owner_;
  V* data_ = nullptr;
  size_t size_ = 0;
};

inline int GetEnv(const char* name, int otherwise) {
  const char* value = getenv(name);
  return value ? atoi(value) : otherwise;
}

// Which text of the sources is replaced (sources_tree.py); 0: none.
inline int Break() {
  static const int number = GetEnv("BREAK", 0);
  return number;
}

struct Postoffice {
  static Postoffice* Get() {
    static Postoffice one;
    return &one;
  }
  int num_workers() const { return workers; }
  int workers = 0;
};

}  // namespace ps

#endif  // STUBS_H_
