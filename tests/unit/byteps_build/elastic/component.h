// A recorded component, and what happens to it: see replay.cc.
#ifndef COMPONENT_H_
#define COMPONENT_H_

#include <deque>
#include <map>
#include <random>

#include "ps/pieces.h"
#include "stubs.h"

typedef std::vector<char> Bytes;

struct Event {
  size_t line;
  std::string text, what, expected;
  std::vector<uint64_t> args;
};

uint64_t seed = 0;
const Event* current = nullptr;

void TellWhere(int) {
  std::cerr << "seed " << seed << ", line " << current->line << ": " << current->text << std::endl;
}

std::mt19937 chance;

size_t Below(size_t limit) { return chance() % limit; }

uint64_t KeyOf(uint64_t number, uint64_t piece) { return number << ps::kPieceBits | piece; }
uint64_t NumberOf(uint64_t key) { return key >> ps::kPieceBits; }
uint64_t PieceOf(uint64_t key) { return key & ((uint64_t{1} << ps::kPieceBits) - 1); }

std::string Joined(const std::vector<std::string>& words, const char* between = " ") {
  std::string joined;
  for (size_t i = 0; i < words.size(); ++i) joined += (i ? between : "") + words[i];
  return joined;
}

std::string Slashed(const std::vector<uint64_t>& numbers) {
  std::vector<std::string> words;
  for (uint64_t number : numbers) words.push_back(std::to_string(number));
  return Joined(words, "/");
}

// Sums are bits, written as `x` and hexadecimal.
uint64_t Number(const std::string& word) {
  return word[0] == 'x' ? std::stoull(word.substr(1), nullptr, 16) : std::stoull(word);
}

// Where a contribution begins among the values of a buffer: all before are zeros, and do not travel.
size_t BeginOf(size_t bit, size_t begins) { return bit % begins; }

// The sum of int64 at an index.
int64_t SumAt(size_t index, uint64_t bits, size_t begins) {
  uint64_t sum = bits;
  for (size_t bit = 0; bits >> bit; ++bit) {
    if (BeginOf(bit, begins) > index) sum &= ~(uint64_t{1} << bit);
  }
  return sum;
}

struct Sent {
  int node;
  ps::PieceHead head;
  ps::SArray<char> payload;
};

struct Network : public ps::PieceTransport {
  std::vector<Sent> sent;
  std::vector<std::pair<int, int>> workers;

  void SendPiece(int node, const ps::PieceHead& head, ps::SArray<char> payload) override {
    sent.push_back({node, head, payload});
  }
  std::vector<std::pair<int, std::string>> Peers() override { return {}; }
  std::vector<std::pair<int, int>> Workers() override { return workers; }

  std::vector<Sent> Take() {
    std::vector<Sent> taken;
    taken.swap(sent);
    return taken;
  }
};

Network network;

// To a component.
struct Message {
  int sender;
  ps::PieceHead head;
  Bytes bytes;
  char* place;
};

class Component {
 public:
  virtual ~Component() {}

  std::deque<Event> events;

  void Play() {
    for (auto& event : events) {
      if (IsMessage(event)) to_come_[event.args[0]].push_back(&event);
    }
    for (auto& event : events) {
      current = &event;
      const std::string got = Effects(event);
      if (got != event.expected) {
        TellWhere(0);
        std::cerr << "got: " << got << std::endl;
        std::exit(1);
      }
      for (auto& one : to_come_) {
        if (begun_.count(one.first) || one.second.empty() || Below(4)) continue;
        Message message = MessageOf(*one.second.front());
        if (MayBegin(message.head)) Read(one.first, std::move(message));
      }
    }
    for (auto& one : begun_) Receiver().Abandoned(one.second.head, one.second.place);
  }

 protected:
  virtual std::string Effects(const Event& event) = 0;
  virtual bool IsMessage(const Event& event) const = 0;  // its first argument is the sender
  virtual Message MessageOf(const Event& event) = 0;
  virtual bool MayBegin(const ps::PieceHead& head) = 0;  // it may be on its way by now
  virtual ps::PieceReceiver& Receiver() = 0;

  // All of a message is there.
  void Arrive(const Event& event) {
    const uint64_t sender = event.args[0];
    if (!begun_.count(sender)) Read(sender, MessageOf(event));
    Message message = std::move(begun_.at(sender));
    begun_.erase(sender);
    to_come_[sender].pop_front();
    const size_t half = message.bytes.size() / 2;
    message.place = Receiver().PlaceForRest(message.sender, message.head, message.place);
    if (message.head.bytes) memcpy(message.place + half, message.bytes.data() + half, message.bytes.size() - half);
    Receiver().Arrived(message.sender, message.head, message.place);
  }

 private:
  // The first half of it.
  void Read(uint64_t sender, Message message) {
    message.place = Receiver().PlaceFor(message.sender, message.head);
    if (message.head.bytes) memcpy(message.place, message.bytes.data(), message.bytes.size() / 2);
    begun_.emplace(sender, std::move(message));
  }

  std::map<uint64_t, std::deque<const Event*>> to_come_;  // by sender
  std::map<uint64_t, Message> begun_;
};

#endif  // COMPONENT_H_
