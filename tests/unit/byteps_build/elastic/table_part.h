// A server's table, with pieces of this program's choice.
#ifndef TABLE_PART_H_
#define TABLE_PART_H_

#include <set>

#include "byteps/server/round_table.h"
#include "component.h"

class TablePart : public Component {
 public:
  TablePart() : first_(Below(2)) {}
  ~TablePart() {
    ps::PieceHead head = {};
    head.kind = ps::PieceKind::kPush;
    head.generation = UINT64_MAX;
    head.contributions = 2;
    table_.Arrived(0, head, nullptr);  // drops sums that never were complete
  }

 protected:
  bool IsMessage(const Event& event) const override { return event.what == "push"; }
  bool MayBegin(const ps::PieceHead&) override { return true; }
  ps::PieceReceiver& Receiver() override { return table_; }

  std::string Effects(const Event& event) override {
    const std::vector<uint64_t>& args = event.args;
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
    ps::PieceHead& head = message.head;
    head.kind = ps::PieceKind::kPush;
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

  // An answer on its way, and the values at its end.
  struct Held {
    ps::SArray<char> payload;
    std::vector<int64_t> values;
    bool IsRight() const {
      const char* end = reinterpret_cast<const char*>(values.data() + values.size());
      return payload.size() == 0 || memcmp(payload.data(), end - payload.size(), payload.size()) == 0;
    }
  };

  static size_t Values(uint64_t key) { return 1 + key % 3; }
  // All of a piece may be zeros.
  size_t Begins(uint64_t key) const { return (first_ + NumberOf(key)) % 2 ? Values(key) + 1 : 1; }
  size_t Skip(uint64_t bit, uint64_t key) const { return BeginOf(bit, Begins(key)) * sizeof(int64_t); }

  // `expected` ends with the contributions.
  std::string Answers(const std::string& expected) {
    const uint64_t bits = expected.empty() ? 0 : Number(expected.substr(expected.rfind(' ') + 1));
    std::vector<std::string> found;
    bool right = true;
    for (auto& sent : network.Take()) {
      const ps::PieceHead& head = sent.head;
      if (head.kind != ps::PieceKind::kAnswer) continue;
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

#endif  // TABLE_PART_H_
