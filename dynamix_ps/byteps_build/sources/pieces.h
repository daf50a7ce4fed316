// Pieces: the messages of the sums of Comm. A buffer is cut into pieces; each has its place on one server.
//
// A worker pushes a piece, and the server answers with the sum when all contributions are there: one message
// each way. ps-lite's own messages take three (push, acknowledgement, pull) and an answer, and describe
// themselves at length. The van reads the bytes of a piece into the place that the receiver names.
#ifndef PS_PIECES_H_
#define PS_PIECES_H_

#include <stdint.h>

#include <string>
#include <utility>
#include <vector>

#include "ps/sarray.h"

namespace ps {

enum class PieceKind : uint8_t {
  kPush = 1,    // worker to server: values of a contribution
  kReference,   // worker to server: the same, in a segment that both map
  kAnswer,      // server to worker: the sum, or without bytes: it is in the segment
  kEcho,        // worker to server and back: to measure the link
  kSegment,     // worker to server: map this segment; back: whether it could
  kForget,      // worker to server: unmap it
  kAlive,       // server to worker and back, by the transport alone: does it still run?
  kReceived,    // server to worker: it has a push that asks for this, and waits for those of other workers
};

struct PieceHead {
  PieceKind kind;
  uint8_t type;            // BytePS's number of the type of the values
  uint8_t wire;            // the same, as they travel
  uint8_t asks;            // of a push: for a receipt, if the answer does not follow at once
  uint32_t contributions;  // how many make the sum
  uint64_t key;            // number of the buffer << kPieceBits | number of the piece
  uint64_t round;          // sums of this key before; where workers may be lost, of any keys (elastic_exchange.h)
  uint64_t generation;     // of the members whose contributions make the sum
  uint64_t size;           // bytes of the piece, as values of `type`
  uint64_t skip;           // so many bytes at its beginning are zeros, do not travel, and are not wanted
  uint64_t segment;        // of a reference: number of the segment, and where in it the piece begins
  uint64_t offset;
  uint64_t bytes;          // that follow
};

const int kPieceBits = 24;
// wires of float32 values that BytePS has no numbers for (wire.h)
const uint8_t kBfloat16 = 100, kInt8Blocks = 101;

// The van's thread calls it, for one message after the other.
class PieceReceiver {
 public:
  virtual ~PieceReceiver() {}
  // Where the bytes of a message go. They come piecemeal, those of other senders in between.
  virtual char* PlaceFor(int sender, const PieceHead& head) = 0;
  // Where the rest of them goes. To be asked before each read: a message may become void while it is read.
  virtual char* PlaceForRest(int, const PieceHead&, char* place) { return place; }
  virtual void Arrived(int sender, const PieceHead& head, char* place) = 0;
  // The connection has ended before all bytes were there.
  virtual void Abandoned(const PieceHead& head, char* place) = 0;
};

class PieceTransport {
 public:
  virtual ~PieceTransport() {}
  // Any thread. The payload stays in use until the last copy of it is gone. Never waits.
  virtual void SendPiece(int node, const PieceHead& head, SArray<char> payload) = 0;
  // Names of the hosts of all nodes that this one sends to, by the node's number.
  virtual std::vector<std::pair<int, std::string>> Peers() = 0;
  // The workers that this node has connections to: the node's number, and the rank that it was started with.
  virtual std::vector<std::pair<int, int>> Workers() = 0;

  // The transport of this process, once it has one.
  static PieceTransport*& Instance() {
    static PieceTransport* instance = nullptr;
    return instance;
  }
  // Who gets the pieces that arrive; set before any node sends one.
  static PieceReceiver*& Receiver() {
    static PieceReceiver* receiver = nullptr;
    return receiver;
  }
};

}  // namespace ps

#endif  // PS_PIECES_H_
