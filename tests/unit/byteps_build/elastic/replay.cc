// Recorded schedules of the reference in Python (tests/models/membership/recorded.py), played again by the exchange and
// the round table as they are built. What follows from each event must be the same.
//
//     replay FILE
//
// Prints the number of jobs and of events. What a schedule leaves open is chosen here: buffers hold int64 values, a bit
// for each contribution, that are summed in place, or elsewhere and with zeros at the beginning, or float32 values that
// travel by codecs. Windows are as small as they may be if pieces are to leave as soon as servers have given receipts,
// which may be after a later push. Messages are read in two steps, the first of which may be long before the event of
// their arrival.

#include <signal.h>

#include <cstdio>
#include <deque>
#include <fstream>
#include <random>
#include <set>

#include "byteps/common/elastic_exchange.h"
#include "byteps/server/round_table.h"

using byteps::common::ElasticExchange;
using ps::PieceHead;
using ps::PieceKind;

typedef std::vector<char> Bytes;

const int kServer = 100;  // node of the first server; workers are nodes 0 to 99
const size_t kPieceBytes = 16;

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

// Sums are written as hexadecimals.
uint64_t Number(const std::string& word) {
  return word[0] == 'x' ? std::stoull(word.substr(1), nullptr, 16) : std::stoull(word);
}

// Where a contribution begins among so many values.
size_t Begin(size_t bit, size_t values) { return bit % values; }

// The sum of int64 at an index, of contributions that begin at their own places.
int64_t SumAt(size_t index, uint64_t bits, size_t begins) {
  uint64_t sum = bits;
  for (size_t bit = 0; bits >> bit; ++bit) {
    if (Begin(bit, begins) > index) sum &= ~(uint64_t{1} << bit);
  }
  return sum;
}

struct Sent {
  int node;
  PieceHead head;
  ps::SArray<char> payload;
};

struct Network : public ps::PieceTransport {
  std::vector<Sent> sent;
  std::vector<std::pair<int, int>> workers;

  void SendPiece(int node, const PieceHead& head, ps::SArray<char> payload) override {
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

// A message to a component.
struct Message {
  int sender;
  PieceHead head;
  Bytes bytes;
  char* place;
};

// An exchange or a table, and what happens to it.
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
  virtual bool IsMessage(const Event& event) const = 0;
  virtual Message MessageOf(const Event& event) = 0;
  virtual bool MayBegin(const PieceHead& head) = 0;  // it may be on its way by now
  virtual ps::PieceReceiver& Receiver() = 0;

  // A message has arrived as a whole.
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

class ExchangePart : public Component {
 public:
  explicit ExchangePart(const Event& made) {
    ps::Postoffice::Get()->workers = static_cast<int>(made.args[0]);
    exchange_.reset(new ElasticExchange());
    std::vector<uint64_t> servers;
    for (uint64_t server = 0; server < made.args[1]; ++server) servers.push_back(server);
    Spread(servers.begin(), servers.end());
    const std::vector<uint64_t> pieces(made.args.begin() + 2, made.args.end());
    const size_t first_kind = Below(4), first_priority = Below(pieces.size());
    buffers_.resize(pieces.size());
    for (size_t number = 0; number < pieces.size(); ++number) {
      Buffer& buffer = buffers_[number];
      buffer.kind = static_cast<Kind>((first_kind + number) % 4);
      const size_t size = buffer.IsFloat() ? sizeof(float) : sizeof(int64_t);
      buffer.values = pieces[number] * kPieceBytes / size - 1;
      buffer.mine.resize(buffer.values * size);
      buffer.sum.resize(buffer.mine.size());
      buffer.first_sent.resize(pieces[number]);
      const uint32_t priority = (first_priority + number) % pieces.size();
      exchange_->Place(number, kPieceBytes, pieces[number], one_priority_ ? 0 : priority);
      if (buffer.IsFloat()) exchange_->Encode(number, buffer.mine.size(), buffer.Wire());
    }
  }

 protected:
  bool IsMessage(const Event& event) const override { return event.what == "take"; }
  ps::PieceReceiver& Receiver() override { return *exchange_; }

  std::string Effects(const Event& event) override {
    const std::vector<uint64_t>& args = event.args;
    if (event.what == "push") {
      Push(buffers_.at(args[0]), args[0], args[1]);
      return Pushes(event.expected);
    }
    if (event.what == "resume") return Resume(event);
    Settle();
    if (event.what == "take") return Arrive(event), "";
    if (event.what == "wait") return Wait(event.expected);
    if (event.what == "freeze") return exchange_->Freeze(), "";
    if (event.what == "spread") return Spread(args.begin(), args.end()), "";
    if (event.what == "expect") return exchange_->Expect(static_cast<int>(args[0])), "";
    if (event.what == "enter") return exchange_->Enter(args[0], args[1], static_cast<int>(args[2])), "";
    std::vector<std::string> found;
    if (event.what == "unanswered") {
      for (int node : exchange_->Unanswered()) found.push_back(std::to_string(node - kServer));
    } else {
      CHECK(event.what == "status");
      std::vector<ElasticExchange::Missing> missing;
      found.push_back(std::to_string(exchange_->Status(&missing)));
      for (auto& one : missing) found.push_back(Slashed({one.number, one.pieces}));
    }
    return Joined(found);
  }

  Message MessageOf(const Event& event) override {
    const std::vector<uint64_t>& args = event.args;
    Buffer& buffer = buffers_.at(args[1]);
    Message message = {static_cast<int>(args[0]) + kServer, buffer.Head(args[1], args[2]), {}, nullptr};
    PieceHead& head = message.head;
    head.kind = PieceKind::kAnswer;
    head.round = args[3];
    head.generation = args[4];
    const auto bit = buffer.bits.find(args[3]);
    if (bit != buffer.bits.end()) head.skip = buffer.Skip(bit->second, head);
    head.bytes = byteps::wire::BytesOf(head);
    const Bytes sum = buffer.Sum(args[5], args[2]);
    message.bytes.assign(sum.end() - head.bytes, sum.end());
    return message;
  }

  bool MayBegin(const PieceHead& head) override {
    const Buffer& buffer = buffers_[NumberOf(head.key)];
    return std::make_pair(head.generation, head.round) <= std::make_pair(buffer.generation, buffer.round) &&
           !buffer.bits.empty();
  }

 private:
  enum Kind { kInPlace, kSkipped, kBfloat16, kInt8 };

  struct Buffer {
    Kind kind;
    size_t values;
    Bytes mine, sum;
    std::vector<Bytes> first_sent;       // what was sent of every piece in the open round
    std::map<uint64_t, uint64_t> bits;   // that were pushed, by round
    uint64_t bit = 0, generation = 0, round = 0;  // of the last push
    bool open = false;

    bool IsFloat() const { return kind >= kBfloat16; }
    uint8_t Wire() const { return kind == kBfloat16 ? ps::kBfloat16 : ps::kInt8Blocks; }
    size_t Skip(uint64_t bit) const { return kind == kSkipped ? Begin(bit, values) * sizeof(int64_t) : 0; }
    size_t Skip(uint64_t bit, const PieceHead& head) const {
      const size_t begin = PieceOf(head.key) * kPieceBytes, skip = Skip(bit);
      return std::min<size_t>(skip > begin ? skip - begin : 0, head.size);
    }

    // Of a piece without zeros.
    PieceHead Head(uint64_t number, uint64_t piece) const {
      PieceHead head = {};
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
      const byteps::wire::Codec& codec = *byteps::wire::CodecOf(Wire());
      std::vector<float> errors(size / sizeof(float));
      Bytes code(codec.Bytes(errors.size()));
      codec.Encode(reinterpret_cast<const float*>(begin), errors.data(), code.data(), 0, errors.size());
      return code;
    }

    // Whether what is wanted of a piece of the sum is that of these contributions.
    bool Holds(uint64_t piece, uint64_t bits, uint64_t own) const {
      const Bytes travelled = Sum(bits, piece);
      PieceHead head = Head(0, piece);
      Bytes expected = travelled;
      if (IsFloat()) {
        expected.resize(head.size);
        byteps::wire::Decode(head, travelled.data(), expected.data());
      }
      const Bytes& place = kind == kInPlace ? mine : sum;
      const size_t skip = Skip(own, head);
      return memcmp(place.data() + piece * kPieceBytes + skip, expected.data() + skip, head.size - skip) == 0;
    }
  };

  typedef std::vector<uint64_t>::const_iterator Numbers;

  static std::vector<int> Nodes(Numbers begin, Numbers end) {
    std::vector<int> nodes;
    for (; begin != end; ++begin) nodes.push_back(static_cast<int>(*begin) + kServer);
    return nodes;
  }

  void Spread(Numbers begin, Numbers end) {
    servers_ = end - begin;
    exchange_->Spread(Nodes(begin, end));
  }

  // Enough for all pieces of a round that go to one of these servers.
  void LimitWindow(size_t least) {
    size_t most = 0, all = 0;
    for (auto& buffer : buffers_) {
      const size_t bytes = (buffer.first_sent.size() + servers_ - 1) / servers_ * kPieceBytes;
      most = std::max(most, bytes);
      all += bytes;
    }
    exchange_->window = std::max(least, one_priority_ ? all : most);
  }

  std::string Resume(const Event& event) {
    const std::vector<int> servers = Nodes(event.args.begin() + 3, event.args.end());
    if (event.expected != "refused") {
      const bool sends = !event.expected.empty();
      servers_ = servers.size();
      LimitWindow(sends ? 0 : exchange_->window.load());
      if (sends) due_.clear();  // what has not left yet leaves no more
    }
    if (!exchange_->Resume(event.args[0], event.args[1], static_cast<int>(event.args[2]), servers)) return "refused";
    return Pushes(event.expected);
  }

  void Push(Buffer& buffer, uint64_t number, uint64_t bit) {
    buffer.mine = buffer.Values(buffer.IsFloat() ? bit : uint64_t{1} << bit);
    std::fill(buffer.mine.begin(), buffer.mine.begin() + buffer.Skip(bit), 77);  // nobody wants it
    std::fill(buffer.sum.begin(), buffer.sum.end(), 99);
    std::fill(buffer.first_sent.begin(), buffer.first_sent.end(), Bytes());
    if (std::none_of(buffers_.begin(), buffers_.end(), [](const Buffer& one) { return one.open; })) LimitWindow(0);
    buffer.open = true;
    buffer.bit = bit;
    const int type = buffer.Head(number, 0).type;
    char* const sum = buffer.kind == kInPlace ? buffer.mine.data() : buffer.sum.data();
    exchange_->PushPullInto(number, buffer.mine.data(), sum, buffer.mine.size(), type, buffer.Skip(bit));
  }

  // These are to leave, now or when servers have given receipts.
  std::string Pushes(const std::string& expected) {
    std::istringstream words(expected);
    for (std::string word; words >> word;) due_.insert(word);
    const std::string wrong = Leave();
    if (wrong.empty() && Below(4) == 0) Settle();
    return wrong.empty() ? expected : wrong;
  }

  // What has left was due. Otherwise, returns what it is.
  std::string Leave() {
    for (auto& sent : network.Take()) {
      const PieceHead& head = sent.head;
      const std::string place = Slashed({uint64_t(sent.node - kServer), NumberOf(head.key), PieceOf(head.key)});
      const std::string word = place + "/" + Slashed({head.round, head.generation, head.contributions});
      if (!due_.erase(word)) return word;
      CheckPush(buffers_.at(NumberOf(head.key)), sent);
      if (head.asks) asking_.push_back(sent);
    }
    return "";
  }

  // Servers give all receipts.
  void Settle() {
    for (; !asking_.empty(); asking_.pop_front()) {
      const int server = asking_.front().node;
      PieceHead head = asking_.front().head;
      head.kind = PieceKind::kReceived;
      head.bytes = 0;
      exchange_->Arrived(server, head, exchange_->PlaceFor(server, head));
      const std::string wrong = Leave();
      CHECK(wrong.empty()) << "leaves: " << wrong;
    }
    CHECK(due_.empty()) << "does not leave: " << *due_.begin();
  }

  void CheckPush(Buffer& buffer, const Sent& sent) {
    PieceHead head = buffer.Head(NumberOf(sent.head.key), PieceOf(sent.head.key));
    buffer.generation = sent.head.generation;
    buffer.round = sent.head.round;
    const uint64_t bit = buffer.bits[buffer.round] = buffer.bit;
    head.skip = buffer.Skip(bit, head);
    CHECK(sent.head.type == head.type && sent.head.wire == head.wire && sent.head.size == head.size &&
          sent.head.skip == head.skip && sent.head.bytes == byteps::wire::BytesOf(head) &&
          sent.payload.size() == sent.head.bytes);
    const Bytes payload(sent.payload.data(), sent.payload.data() + sent.head.bytes);
    Bytes& first = buffer.first_sent[PieceOf(head.key)];
    CHECK(first.empty() || payload == first) << "a piece is sent again, and is not what it was";
    first = payload;
    const Bytes values = buffer.Values(buffer.IsFloat() ? bit : uint64_t{1} << bit);
    const char* piece = values.data() + PieceOf(head.key) * kPieceBytes;
    if (!buffer.IsFloat()) {
      CHECK(payload == Bytes(piece + head.skip, piece + head.size)) << "other values are sent";
      return;
    }
    float decoded[kPieceBytes / sizeof(float)];
    byteps::wire::Decode(head, payload.data(), reinterpret_cast<char*>(decoded));
    for (size_t i = 0; i < head.size / sizeof(float); ++i) {
      const float error = decoded[i] / reinterpret_cast<const float*>(piece)[i] - 1;
      CHECK(-0.02 < error && error < 0.02) << "a code of other values is sent";
    }
  }

  // `expected` tells whose contributions are in each piece.
  std::string Wait(const std::string& expected) {
    std::vector<uint32_t> open;
    for (uint32_t number = 0; number < buffers_.size(); ++number) {
      if (buffers_[number].open) open.push_back(number);
    }
    if (open.empty() || !exchange_->Wait(open[Below(open.size())], 0)) return "-";
    if (expected == "-") return "complete";
    std::istringstream words(expected);
    std::vector<std::string> found;
    for (std::string word; words >> word;) {
      unsigned number = 0, piece = 0;
      unsigned long long bits = 0;
      CHECK_EQ(std::sscanf(word.c_str(), "%u/%u/x%llx", &number, &piece, &bits), 3);
      const Buffer& buffer = buffers_.at(number);
      CHECK(buffer.open);
      found.push_back(buffer.Holds(piece, bits, buffer.bits.at(buffer.round)) ? word : "another");
    }
    for (uint32_t number : open) buffers_[number].open = false;
    return Joined(found);
  }

  std::unique_ptr<ElasticExchange> exchange_;
  std::vector<Buffer> buffers_;
  const bool one_priority_ = Below(2);
  size_t servers_ = 0;         // that have pieces
  std::set<std::string> due_;  // pushes that have not left
  std::deque<Sent> asking_;    // those that wait for a receipt
};

class TablePart : public Component {
 public:
  TablePart() : first_(Below(2)) {}
  ~TablePart() { table_.Fence(UINT64_MAX, 0); }  // drops sums that never were complete

 protected:
  bool IsMessage(const Event& event) const override { return event.what == "push"; }
  bool MayBegin(const PieceHead&) override { return true; }
  ps::PieceReceiver& Receiver() override { return table_; }

  std::string Effects(const Event& event) override {
    const std::vector<uint64_t>& args = event.args;
    if (event.what == "fence") return table_.Fence(args[0], args[1]), "";
    if (event.what == "push") return Arrive(event), Answers(event.expected);
    CHECK(event.what == "missing");
    network.workers.clear();
    for (uint64_t worker : args) network.workers.emplace_back(worker, worker);
    for (int times = 0; times < 3; ++times) {
      table_.now_s += 1.9;
      table_.Silent(4);
    }
    std::set<uint64_t> asked;
    for (auto& sent : network.Take()) asked.insert(sent.node);
    std::vector<std::string> words;
    for (uint64_t worker : asked) words.push_back(std::to_string(worker));
    return Joined(words);
  }

  Message MessageOf(const Event& event) override {
    const std::vector<uint64_t>& args = event.args;
    Message message = {static_cast<int>(args[0]), {}, {}, nullptr};
    PieceHead& head = message.head;
    head.kind = PieceKind::kPush;
    head.type = head.wire = byteps::common::BYTEPS_INT64;
    head.asks = args[6] % 2;
    head.key = KeyOf(args[1], args[2]);
    head.round = args[3];
    head.generation = args[4];
    head.contributions = args[5];
    head.size = Values(head.key) * sizeof(int64_t);
    head.skip = Skip(args[6], head.key);
    head.bytes = head.size - head.skip;
    const std::vector<int64_t> values(Values(head.key), int64_t{1} << args[6]);
    const char* begin = reinterpret_cast<const char*>(values.data());
    message.bytes.assign(begin, begin + head.bytes);
    return message;
  }

 private:
  struct Table : public byteps::server::RoundTable {
    double now_s = 1000;
    double NowS() const override { return now_s; }
  };

  // Answers on their way, and the last values that they must have.
  struct Held {
    ps::SArray<char> payload;
    std::vector<int64_t> values;
    bool IsRight() const { return payload.size() == 0 || memcmp(payload.data(), End() - payload.size(), payload.size()) == 0; }
    const char* End() const { return reinterpret_cast<const char*>(values.data() + values.size()); }
  };

  static size_t Values(uint64_t key) { return 1 + key % 3; }
  // All of a piece may be zeros.
  size_t Begins(uint64_t key) const { return (first_ + NumberOf(key)) % 2 ? Values(key) + 1 : 1; }
  size_t Skip(uint64_t bit, uint64_t key) const { return Begin(bit, Begins(key)) * sizeof(int64_t); }

  // `expected` ends with the contributions.
  std::string Answers(const std::string& expected) {
    const uint64_t bits = expected.empty() ? 0 : Number(expected.substr(expected.rfind(' ') + 1));
    std::vector<std::string> found;
    bool right = true;
    for (auto& sent : network.Take()) {
      const PieceHead& head = sent.head;
      if (head.kind != PieceKind::kAnswer) continue;
      found.push_back(Slashed({uint64_t(sent.node), head.round, head.generation}));
      std::vector<int64_t> values;
      for (size_t i = 0; i < Values(head.key); ++i) values.push_back(SumAt(i, bits, Begins(head.key)));
      held_.push_back({sent.payload, values});
      right &= head.skip + head.bytes == head.size && head.bytes == sent.payload.size() && held_.back().IsRight();
    }
    if (!found.empty()) found.push_back(right ? expected.substr(expected.rfind(' ') + 1) : "another");
    for (; held_.size() > 6; held_.pop_front()) CHECK(held_.front().IsRight()) << "an answer was changed on its way";
    return Joined(found);
  }

  const size_t first_;
  Table table_;
  std::deque<Held> held_;  // their memory returns to the table
};

// COMPONENT WHAT ARGUMENTS... > EFFECTS...
size_t Parse(size_t line, const std::string& text, Event* event) {
  const size_t end = text.find(" >");
  std::istringstream words(text.substr(0, end));
  size_t component = 0;
  words >> component >> event->what;
  for (std::string word; words >> word;) event->args.push_back(Number(word));
  event->line = line;
  event->text = text;
  event->expected = text.substr(std::min(text.size(), end + 3));
  return component;
}

int main(int, char** arguments) {
  setenv("DYNAMIX_ELASTIC", "1", 1);
  signal(SIGABRT, TellWhere);
  ps::PieceTransport::Instance() = &network;
  std::ifstream file(arguments[1]);
  std::map<size_t, std::unique_ptr<Component>> components;
  size_t jobs = 0, events = 0, lines = 0;
  for (std::string text;;) {
    const bool more = static_cast<bool>(std::getline(file, text));
    if (!more || text.compare(0, 5, "seed ") == 0) {
      for (auto& one : components) one.second->Play();
      components.clear();
      if (!more) break;
      ++jobs;
      seed = std::stoull(text.substr(5));
      chance.seed(seed);
    }
    ++lines;
    if (text.compare(0, 5, "seed ") == 0) continue;
    Event event;
    const size_t component = Parse(lines, text, &event);
    ++events;
    if (event.what == "exchange") {
      components[component].reset(new ExchangePart(event));
    } else if (event.what == "table") {
      components[component].reset(new TablePart());
    } else {
      components.at(component)->events.push_back(std::move(event));
    }
  }
  std::printf("%zu %zu\n", jobs, events);
}
