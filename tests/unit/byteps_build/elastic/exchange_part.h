// A worker's exchange. Windows are as small as they may be if pieces are to leave as soon as servers have given receipts,
// which may be after a later push.
#ifndef EXCHANGE_PART_H_
#define EXCHANGE_PART_H_

#include <set>

#include "buffer.h"
#include "byteps/common/elastic_exchange.h"
#include "component.h"

using byteps::common::ElasticExchange;

const int kServer = 100;  // node of the first server; workers are nodes 0 to 99

class ExchangePart : public Component {
 public:
  explicit ExchangePart(const Event& made) {
    ps::Postoffice::Get()->workers = static_cast<int>(made.args[0]);
    exchange_.reset(new ElasticExchange());
    std::vector<uint64_t> servers;
    for (uint64_t server = 0; server < made.args[1]; ++server) servers.push_back(server);
    Spread(servers.begin(), servers.end());
    const std::vector<uint64_t> pieces(made.args.begin() + 2, made.args.end());
    const size_t first_kind = Below(Buffer::kKinds), first_priority = Below(pieces.size());
    for (size_t number = 0; number < pieces.size(); ++number) {
      buffers_.emplace_back((first_kind + number) % Buffer::kKinds, pieces[number]);
      const Buffer& buffer = buffers_.back();
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
    ps::PieceHead& head = message.head;
    head.kind = ps::PieceKind::kAnswer;
    head.round = args[3];
    head.generation = args[4];
    const auto bit = buffer.bits.find(args[3]);
    if (bit != buffer.bits.end()) head.skip = buffer.Skip(bit->second, head);
    head.bytes = wire::BytesOf(head);
    const Bytes sum = buffer.Sum(args[5], args[2]);
    message.bytes.assign(sum.end() - head.bytes, sum.end());
    return message;
  }

  bool MayBegin(const ps::PieceHead& head) override {
    const Buffer& buffer = buffers_[NumberOf(head.key)];
    return std::make_pair(head.generation, head.round) <= std::make_pair(buffer.generation, buffer.round) &&
           !buffer.bits.empty();
  }

 private:
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
    char* const sum = buffer.kind == Buffer::kInPlace ? buffer.mine.data() : buffer.sum.data();
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
      const ps::PieceHead& head = sent.head;
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
      ps::PieceHead head = asking_.front().head;
      head.kind = ps::PieceKind::kReceived;
      head.bytes = 0;
      exchange_->Arrived(server, head, exchange_->PlaceFor(server, head));
      const std::string wrong = Leave();
      CHECK(wrong.empty()) << "leaves: " << wrong;
    }
    CHECK(due_.empty()) << "does not leave: " << *due_.begin();
  }

  void CheckPush(Buffer& buffer, const Sent& sent) {
    ps::PieceHead head = buffer.Head(NumberOf(sent.head.key), PieceOf(sent.head.key));
    buffer.generation = sent.head.generation;
    buffer.round = sent.head.round;
    const uint64_t bit = buffer.bits[buffer.round] = buffer.bit;
    head.skip = buffer.Skip(bit, head);
    CHECK(sent.head.type == head.type && sent.head.wire == head.wire && sent.head.size == head.size &&
          sent.head.skip == head.skip && sent.head.bytes == wire::BytesOf(head) &&
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
    wire::Decode(head, payload.data(), reinterpret_cast<char*>(decoded));
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
  std::deque<Buffer> buffers_;
  const bool one_priority_ = Below(2);
  size_t servers_ = 0;         // that have pieces
  std::set<std::string> due_;  // pushes that have not left
  std::deque<Sent> asking_;    // those that wait for a receipt
};

#endif  // EXCHANGE_PART_H_
