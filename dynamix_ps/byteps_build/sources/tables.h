// What the server keeps for each key: its sum and its compressor. The engine threads look keys up while the handler
// adds new ones; what they find stays where it is.
#ifndef BYTEPS_SERVER_TABLES_H_
#define BYTEPS_SERVER_TABLES_H_

#include <memory>
#include <mutex>
#include <utility>

#include "server.h"

namespace byteps {
namespace server {

inline std::mutex& TablesMutex() {
  static std::mutex* mu = new std::mutex();
  return *mu;
}

inline UpdateBuf& GetUpdate(uint64_t key) {
  std::lock_guard<std::mutex> lock(TablesMutex());
  return update_buf_[key];
}

// Null: none.
inline common::compressor::Compressor* GetCompressor(uint64_t key) {
  std::lock_guard<std::mutex> lock(TablesMutex());
  auto found = compressor_map_.find(key);
  return found == compressor_map_.end() ? nullptr : found->second.get();
}

inline void SetCompressor(uint64_t key, std::unique_ptr<common::compressor::Compressor> compressor) {
  std::lock_guard<std::mutex> lock(TablesMutex());
  compressor_map_[key] = std::move(compressor);
}

}  // namespace server
}  // namespace byteps

#endif  // BYTEPS_SERVER_TABLES_H_
