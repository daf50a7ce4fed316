// The way of a worker's pieces to one server: what waits, what has left, and which piece is next.
//
// The lowest priority goes first; within a priority, the first push, in the order that all workers share. A server answers
// a sum at once when it is complete, so answers come in the order of whoever sends last. `window` bytes are the limit of
// two things:
//
// - Of each priority, bytes without an answer. A worker is not to be far ahead of the others: their pieces, which the
//   same sums need, would wait behind its own.
// - Of all priorities, bytes in flight: without an answer, and not known to wait for other workers. What has left cannot
//   be overtaken any more.
//
// An answer needs the pieces of all workers. So if one window held all that has no answer, those of two workers could
// be full of pieces that wait for each other, since workers that push at different times choose different pieces. Here
// every piece leaves in the end:
//
// - Whoever is held up by bytes in flight has a piece on its way that asks for a receipt. The server sends the sum or the
//   receipt at once, which depends on no other worker. It reads and answers in order: what left before and has no
//   answer by then waits for other workers. This limit opens again and again.
// - Take the earliest push whose sum is not complete. No piece of its priority is before it, so that no worker holds it
//   back for the other limit.
// - More urgent pieces pass it, but not for ever: a buffer is pushed again only when its sum is complete.
#ifndef BYTEPS_COMMON_LANE_H_
#define BYTEPS_COMMON_LANE_H_

#include <algorithm>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "ps/pieces.h"

namespace byteps {
namespace common {

class Lane {
 public:
  std::mutex mu;  // of all below; the caller locks it

  struct Piece {
    ps::PieceHead head;
    char* place;
  };

  void Push(uint32_t priority, const ps::PieceHead& head, char* place) {
    rows_[priority].waiting.push_back({head, place});
  }

  // Take the piece that is to be sent now. False: none is.
  bool Next(size_t window, Piece* next) {
    for (auto& one : rows_) {
      Row& row = one.second;
      if (row.waiting.empty() || !Fits(row.unanswered, row.waiting.front().head.bytes, window)) continue;
      *next = row.waiting.front();
      ps::PieceHead& head = next->head;
      const bool fits = Fits(in_flight_, head.bytes, window);
      if (!fits && asked_) return false;
      head.asks = head.bytes && !asked_ && (!fits || SeveralWait());
      asked_ |= head.asks;
      row.waiting.pop_front();
      row.unanswered += head.bytes;
      in_flight_ += head.bytes;
      if (head.bytes) sent_.push_back(head);
      return true;
    }
    return false;
  }

  void Answered(uint32_t priority, const ps::PieceHead& answer) {
    rows_[priority].unanswered -= answer.bytes;
    Received(answer.key);
  }

  // The server has this piece and all that was sent before it.
  void Received(uint64_t key) {
    auto is_it = [key](const ps::PieceHead& head) { return head.key == key; };
    const auto found = std::find_if(sent_.begin(), sent_.end(), is_it);
    if (found == sent_.end()) return;  // known already
    for (auto one = sent_.begin(); one <= found; ++one) {
      in_flight_ -= one->bytes;
      if (one->asks) asked_ = false;
    }
    sent_.erase(sent_.begin(), found + 1);
  }

  void Clear() {
    rows_.clear();
    sent_.clear();
    in_flight_ = 0;
    asked_ = false;
  }

 private:
  // Of one priority.
  struct Row {
    std::deque<Piece> waiting;
    size_t unanswered = 0;  // bytes
  };

  static bool Fits(size_t there, size_t more, size_t window) { return !there || !more || there + more <= window; }

  bool SeveralWait() const {
    return std::count_if(rows_.begin(), rows_.end(), [](const std::pair<const uint32_t, Row>& row) {
             return !row.second.waiting.empty();
           }) > 1;
  }

  std::map<uint32_t, Row> rows_;    // by priority
  std::deque<ps::PieceHead> sent_;  // what is in flight, in order
  size_t in_flight_ = 0;            // bytes of it
  bool asked_ = false;              // a piece of it asks for a receipt
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_COMMON_LANE_H_
