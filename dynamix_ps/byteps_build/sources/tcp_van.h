// Plain TCP transport for ps-lite, in place of the one over ZeroMQ.
//
// Why: through ZeroMQ a message passes an I/O thread, a receive thread that polls under a lock, the van's
// thread and the customer's thread, on each side; on few cores these wake-ups cost more than the sum
// itself, and the polling costs a core. Here the sender writes to the socket itself, and one thread, the
// van's, sleeps in epoll_wait, reads whole messages and handles them.
//
// Every node has one connection to each node it talks to and only writes to it; it reads from the
// connections it accepted. Where one of its own ends, the other node is lost: losses.h tells it, and what is for that
// node is dropped. A sender never waits for a slow receiver: what the socket does not take is
// queued and written by the van's thread when there is room again.
//
// Where a run goes on without lost roles, the scheduler may be started again. The others try to reach it, and then
// tell it who they are, whom they are connected to, and at which barrier they wait. Nothing else waits for it.
//
// A piece (pieces.h) is read straight to where its receiver wants it, and handled at once.
//
// Both sides of a new connection first prove that they know the run's token, DYNAMIX_TOKEN (see
// token_proof.h). What a sender has to say waits until then, and nothing of a stranger is looked at: a
// connection without a proof holds a few hundred bytes, is closed after ten seconds, or earlier where there
// are too many of them. Without a token everybody counts as knowing it.
#ifndef PS_TCP_VAN_H_
#define PS_TCP_VAN_H_

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "./descriptors.h"
#include "./meta.h"
#include "./token_proof.h"
#include "ps/internal/van.h"
#include "ps/losses.h"
#include "ps/pieces.h"

namespace ps {

class TcpVan : public Van, public PieceTransport {
 public:
  TcpVan() { PieceTransport::Instance() = this; }

  std::string GetType() const override { return "tcp"; }

  void Start(int customer_id, bool standalone) override {
    start_mu_.lock();
    standalone_ = standalone;
    if (epoll_ < 0) {
      epoll_ = Descriptors::Add(epoll_create1(EPOLL_CLOEXEC));
      CHECK_GE(epoll_, 0) << "epoll_create1: " << strerror(errno);
      const char* token = getenv("DYNAMIX_TOKEN");
      token_ = token ? token : "";
      if (token_.empty() && Postoffice::Get()->is_scheduler()) {
        LOG(WARNING) << "DYNAMIX_TOKEN is not set: whoever reaches the ports of this run can take part in it";
      }
      rlimit files = {};
      getrlimit(RLIMIT_NOFILE, &files);
      max_strangers_ = std::min<size_t>(256, files.rlim_cur / 4);
    }
    start_mu_.unlock();
    if (!standalone) Van::Start(customer_id, false);
  }

  void Stop() override {
    Van::Stop();  // its thread has ended: from here on nobody else uses the connections
    if (refused_ > 0) LOG(WARNING) << "connections refused in this run: " << refused_;
    std::lock_guard<std::mutex> lock(mu_);
    by_node_.clear();
    outputs_.clear();
    strangers_.clear();
    inputs_.clear();
    arrived_.clear();
    pulls_.clear();
    declared_.clear();
    told_.clear();
    refused_ = pause_end_ = 0;
    full_ = told_full_ = false;
    met_scheduler_ = scheduler_is_gone_ = false;
    barrier_.reset();
    Descriptors::Close(listener_);
    Descriptors::Close(epoll_);
    listener_ = epoll_ = -1;
  }

  int Bind(const Node& node, int max_retry) override {
    bool everywhere = node.hostname.empty() || (GetEnv("DMLC_USE_KUBERNETES", 0) > 0 && node.role == Node::SCHEDULER);
    const char* any = node.hostname.find(':') == std::string::npos ? "0.0.0.0" : "::";
    std::string host = everywhere ? any : node.hostname;
    int port = node.port;
    unsigned seed = static_cast<unsigned>(time(NULL)) + port;
    for (int tries_left = max_retry;; --tries_left) {
      listener_ = Listen(host, port);
      if (listener_ >= 0) {
        Descriptors::Add(listener_);
        break;
      }
      CHECK_GT(tries_left, 0) << "cannot listen on " << host << ":" << port << ": " << strerror(errno);
      port = 10000 + rand_r(&seed) % 40000;
    }
    Watch(listener_, EPOLLIN, &listener_);
    return port;
  }

  // The other roles know a worker and a server by the number that it was started with.
  void SetNode(const Node& node) override {
    Node own = node;
    if (own.role == Node::WORKER) own.aux_id = GetEnv("DMLC_WORKER_ID", -1);
    if (own.role == Node::SERVER) own.aux_id = GetEnv("DMLC_SERVER_ID", -1);
    Van::SetNode(own);
  }

  void Connect(const Node& node) override {
    CHECK_NE(node.id, node.kEmpty);
    CHECK_NE(node.port, node.kEmpty);
    CHECK(node.hostname.size());
    // workers do not talk to workers, nor servers to servers
    if (node.role == my_node_.role && node.id != my_node_.id && !standalone_) return;
    // who comes late itself is told of all others: they listen already, and some may be gone by now
    int fd = node.is_recovery || my_node_.is_recovery ? DialOnce(node) : Dial(node);
    if (fd < 0) {
      LOG(WARNING) << node.DebugString() << " cannot be reached: " << strerror(errno);
      EndBarriersWithout(node.id);
      return;
    }
    if (node.role == Node::SCHEDULER) scheduler_.hostname = AddressOfPeer(fd, scheduler_.hostname);
    std::lock_guard<std::mutex> lock(mu_);
    outputs_.emplace_back(fd, node);
    Output* output = &outputs_.back();
    Output*& current = by_node_[node.id];
    if (current) current->Abandon();  // the node came back at another address
    current = output;
    WatchOutput(fd, output);
  }

  void SendPiece(int node, const PieceHead& head, SArray<char> payload) override {
    Output* output = OutputTo(node);
    if (!output) return;
    CHECK_EQ(head.bytes, payload.size());
    Frame frame;
    frame.head.resize(sizeof(Header) + sizeof(PieceHead));
    Header* header = reinterpret_cast<Header*>(frame.head.data());
    memset(header, 0, sizeof(Header));
    header->magic = kPieceMagic;
    header->sender = my_node_.id;
    memcpy(frame.head.data() + sizeof(Header), &head, sizeof(PieceHead));
    frame.size = frame.head.size() + payload.size();
    frame.parts.push_back(std::move(payload));
    output->Send(std::move(frame));
  }

  std::vector<std::pair<int, std::string>> Peers() override {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<std::pair<int, std::string>> peers;
    for (auto& one : by_node_) peers.emplace_back(one.first, one.second->node.hostname);
    return peers;
  }

  std::vector<std::pair<int, int>> Workers() override {
    std::lock_guard<std::mutex> lock(mu_);
    std::vector<std::pair<int, int>> workers;
    for (auto& one : by_node_) {
      const Node& node = one.second->node;
      if (node.role == Node::WORKER) workers.emplace_back(one.first, NumberOf(node));
    }
    return workers;
  }

  int SendMsg(Message& msg) override {
    int id = msg.meta.recver;
    CHECK_NE(id, Meta::kEmpty);
    Output* output = OutputTo(id);
    if (!output) return -1;
    CHECK_LE(msg.data.size(), static_cast<size_t>(kMaxParts));
    if (msg.meta.control.cmd == Control::BARRIER && msg.meta.request) {
      std::lock_guard<std::mutex> lock(mu_);
      barrier_.reset(new Message(msg));
    }
    if (IsData(msg.meta) && msg.meta.request && !msg.meta.push && msg.meta.addr) {
      std::lock_guard<std::mutex> lock(pulls_mu_);
      pulls_[PullKey(id, msg.meta.timestamp)] = {reinterpret_cast<char*>(msg.meta.addr), msg.meta.val_len};
    }
    Frame frame;
    int meta_size = GetPackMetaLen(msg.meta);
    frame.head.resize(sizeof(Header) + meta_size);
    Header* header = reinterpret_cast<Header*>(frame.head.data());
    memset(header, 0, sizeof(Header));
    header->magic = kMagic;
    header->sender = my_node_.id;
    header->meta_size = meta_size;
    header->parts = msg.data.size();
    frame.parts = msg.data;
    frame.size = sizeof(Header) + meta_size;
    for (size_t i = 0; i < msg.data.size(); ++i) {
      header->part_size[i] = msg.data[i].size();
      frame.size += msg.data[i].size();
    }
    char* meta = frame.head.data() + sizeof(Header);
    PackMeta(msg.meta, &meta, &meta_size);
    int size = static_cast<int>(std::min<size_t>(frame.size, INT_MAX));
    output->Send(std::move(frame));
    return size;
  }

  int RecvMsg(Message* msg) override {
    while (arrived_.empty()) {
      epoll_event events[64];
      int patience_ms = strangers_.empty() && !pause_end_ ? -1 : 1000;
      if (scheduler_is_gone_) patience_ms = kTryAgainMs;
      int count = epoll_wait(epoll_, events, 64, patience_ms);
      CHECK(count >= 0 || errno == EINTR) << "epoll_wait: " << strerror(errno);
      for (int i = 0; i < count; ++i) {
        void* source = events[i].data.ptr;
        if (source == &listener_) {
          Accept();
        } else if (Input* input = FindInput(source)) {
          if (!Read(input)) Forget(input);
        } else {
          Resume(static_cast<Output*>(source), events[i].events);
        }
      }
      CloseStrangers();  // after the events: none of them is of a connection that is gone
      if (scheduler_is_gone_ && NowMs() >= next_try_ms_) ReachScheduler();
    }
    size_t size = arrived_.front().second;
    *msg = std::move(arrived_.front().first);
    arrived_.pop_front();
    return static_cast<int>(std::min<size_t>(size, INT_MAX));
  }

 private:
  static const uint32_t kMagic = 0x64786d31;
  static const uint32_t kPieceMagic = 0x64787031;
  static const int kMaxParts = 4;
  static const size_t kBuffer = 64 << 10;
  static const size_t kLarge = 16 << 10;      // so many bytes are worth a read of their own
  static const size_t kFairShare = 512 << 10;  // that one connection may bring before the next one
  static const size_t kMaxMeta = 4 << 20;     // the list of 25,000 nodes
  static const size_t kMaxKeys = 64 << 10;    // keys, or lengths, of one message
  static const size_t kMaxFirstPush = INT_MAX;  // a length is an int in ps-lite
  static const int kPatience = 10;            // seconds that a stranger has for its proof
  static const size_t kToldSources = 16;
  static const int kTryAgainMs = 500;         // to reach a scheduler that is gone
  static const int kTriesPerSecond = 20, kMaxTries = 60 * kTriesPerSecond;  // of a connection

  struct Header {
    uint32_t magic;
    int32_t sender;
    uint32_t meta_size;
    uint32_t parts;
    uint64_t part_size[kMaxParts];
  };

  // A message on its way out. Its parts are not copied: their owner keeps them until they are answered.
  struct Frame {
    std::vector<char> head;  // header and meta
    std::vector<SArray<char>> parts;
    size_t size = 0;
    size_t sent = 0;
  };

  enum class Greeting { kUnfinished, kProven, kLost, kRefused, kImpostor };

  // The way to one node. Any thread sends.
  class Output {
   public:
    Output(int fd, const Node& node) : node(node), fd_(Descriptors::Add(fd)) {}
    ~Output() { Descriptors::Close(fd_); }
    Output(const Output&) = delete;

    void Send(Frame frame) {
      std::lock_guard<std::mutex> lock(mu_);
      if (gone_) return;  // like ZeroMQ, drop what is for a node that went away: the job's supervisor sees it
      if (proven_ && waiting_.empty() && Write(&frame)) return;
      if (!gone_) waiting_.push_back(std::move(frame));
    }

    // How far the proofs are; the rest is only done when both sides have given theirs.
    Greeting Resume(uint32_t events, const std::string& token) {
      std::lock_guard<std::mutex> lock(mu_);
      if (!gone_ && !proven_) {
        Greeting greeting = Greet(token);
        if (greeting != Greeting::kProven) return greeting;
        proven_ = true;
      }
      if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) gone_ = true;
      while (!gone_ && !waiting_.empty() && Write(&waiting_.front())) waiting_.pop_front();
      if (gone_) waiting_.clear();
      return Greeting::kProven;
    }

    // Begin again on another connection to the same node.
    void Restart(int fd, int epoll) {
      std::lock_guard<std::mutex> lock(mu_);
      epoll_ctl(epoll, EPOLL_CTL_DEL, fd_, nullptr);  // as in Unwatch
      Descriptors::Close(fd_);
      fd_ = Descriptors::Add(fd);
      challenged_ = false;
      got_ = 0;
    }

    // The same for a node that was gone.
    void Revive(int fd, int epoll) {
      Restart(fd, epoll);
      std::lock_guard<std::mutex> lock(mu_);
      gone_ = told_ = proven_ = false;
    }

    bool IsGone() {
      std::lock_guard<std::mutex> lock(mu_);
      return gone_;
    }

    // The node is gone.
    void Lose() {
      std::lock_guard<std::mutex> lock(mu_);
      gone_ = true;
      waiting_.clear();
    }

    // True once, when the node is found to be gone.
    bool TellGone() {
      std::lock_guard<std::mutex> lock(mu_);
      bool tell = gone_ && !told_;
      told_ = told_ || gone_;
      return tell;
    }

    void Abandon() {
      std::lock_guard<std::mutex> lock(mu_);
      gone_ = told_ = true;
      waiting_.clear();
      shutdown(fd_, SHUT_RDWR);
    }

    const Node node;
    int tries = 0;  // of the van's thread to reach it again

   private:
    Greeting Greet(const std::string& token) {
      while (true) {
        char* to = challenged_ ? reinterpret_cast<char*>(&verdict_) : reinterpret_cast<char*>(&challenge_);
        size_t size = challenged_ ? sizeof(verdict_) : sizeof(challenge_);
        ssize_t count = recv(fd_, to + got_, size - got_, MSG_DONTWAIT);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return Greeting::kUnfinished;
        if (count <= 0) return Greeting::kLost;
        got_ += count;
        if (got_ < size) continue;
        got_ = 0;
        if (challenged_) {
          if (!verdict_.welcome) return Greeting::kRefused;
          std::string expected = ProofOfAccepting(token, challenge_.random, hello_.random);
          return SameProof(expected, verdict_.proof) ? Greeting::kProven : Greeting::kImpostor;
        }
        if (challenge_.magic != kHelloMagic) return Greeting::kImpostor;
        challenged_ = true;
        hello_.magic = kHelloMagic;
        CHECK(FillRandomly(hello_.random, kProofSize)) << "getrandom: " << strerror(errno);
        std::string proof = ProofOfConnecting(token, challenge_.random, hello_.random);
        memcpy(hello_.proof, proof.data(), kProofSize);
        // the first bytes on a connection always find room
        if (send(fd_, &hello_, sizeof(hello_), MSG_NOSIGNAL | MSG_DONTWAIT) != sizeof(hello_)) return Greeting::kLost;
      }
    }

    // True when all of it is written (or the node is gone), false when the socket is full.
    bool Write(Frame* frame) {
      while (frame->sent < frame->size) {
        iovec pieces[1 + kMaxParts];
        int count = 0;
        size_t skip = frame->sent;
        auto add = [&](const char* data, size_t size) {
          if (skip >= size) {
            skip -= size;
            return;
          }
          pieces[count].iov_base = const_cast<char*>(data) + skip;
          pieces[count++].iov_len = size - skip;
          skip = 0;
        };
        add(frame->head.data(), frame->head.size());
        for (auto& part : frame->parts) add(part.data(), part.size());
        msghdr message = {};
        message.msg_iov = pieces;
        message.msg_iovlen = count;
        ssize_t written = sendmsg(fd_, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (written >= 0) {
          frame->sent += written;
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
          return false;
        } else if (errno != EINTR) {
          PS_VLOG(1) << "a node is gone: " << strerror(errno);
          gone_ = true;
          return true;
        }
      }
      return true;
    }

    int fd_;
    std::mutex mu_;
    std::deque<Frame> waiting_;
    bool gone_ = false;
    bool told_ = false;
    bool proven_ = false;  // both sides know the token
    bool challenged_ = false;
    size_t got_ = 0;  // bytes of the challenge, then of the verdict
    Challenge challenge_;
    Hello hello_;
    Verdict verdict_;
  };

  // What arrives from one node. Only the van's thread uses it.
  struct Input {
    Input(int socket, const std::string& from) : fd(Descriptors::Add(socket)), source(from) {
      Expect(&hello, sizeof(hello));
    }
    ~Input() { Descriptors::Close(fd); }
    Input(const Input&) = delete;

    void Expect(void* to, size_t size) {
      target = static_cast<char*>(to);
      missing = size;
    }
    void ExpectMessage() {
      stage = kHeader;
      Expect(&header, sizeof(Header));
    }

    enum Stage { kHello, kHeader, kMeta, kParts, kPieceHead, kPiece };
    const int fd;
    const std::string source;  // its address
    Stage stage = kHello;
    Challenge challenge;
    Hello hello;
    time_t deadline = 0;                   // of the proof
    std::list<Input*>::iterator stranger;  // its place in strangers_ until then
    std::string fault = "it closed the connection before any proof";
    Header header;
    PieceHead piece;
    char* place = nullptr;  // of the bytes of the piece
    std::vector<char> meta;
    Message message;
    size_t part = 0;
    char* target = nullptr;  // where the next `missing` bytes go
    size_t missing = 0;
    std::vector<char> buffer;  // bytes read beyond them: [begin, end); none before the proof
    size_t begin = 0, end = 0;
  };

  void Watch(int fd, uint32_t events, void* source) {
    epoll_event event = {};
    event.events = events;
    event.data.ptr = source;
    CHECK_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event), 0) << "epoll_ctl: " << strerror(errno);
  }

  // To be called before `fd` is closed: a forked child (of a DataLoader, say) holds the connection too, and as
  // long as it lives, epoll would report events of it.
  void Unwatch(int fd) { epoll_ctl(epoll_, EPOLL_CTL_DEL, fd, nullptr); }

  // Edge triggered: the events that matter are the other side's proof, and room after the socket was full.
  void WatchOutput(int fd, Output* output) { Watch(fd, EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET, output); }

  // IPv6 where the host has no IPv4 address.
  static addrinfo* Resolve(const std::string& host, int port) {
    for (int family : {AF_INET, AF_INET6}) {
      addrinfo hints = {};
      hints.ai_family = family;
      hints.ai_socktype = SOCK_STREAM;
      addrinfo* found = nullptr;
      if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0) return found;
    }
    return nullptr;
  }

  // A listening socket, or -1 and errno.
  static int Listen(const std::string& host, int port) {
    addrinfo* address = Resolve(host, port);
    CHECK(address) << "unknown host name " << host;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK_GE(fd, 0) << strerror(errno);
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    bool ok = bind(fd, address->ai_addr, address->ai_addrlen) == 0 && listen(fd, 1024) == 0;
    int error = errno;
    freeaddrinfo(address);
    if (ok) return fd;
    close(fd);
    errno = error;
    return -1;
  }

  // Connect, waiting for the node to come up. The scheduler may be started last, so it is waited for
  // without limit; every other node has told the scheduler that it listens.
  int Dial(const Node& node) {
    const int kTell = 10 * kTriesPerSecond;
    for (int tries = 1;; ++tries) {
      int error = EHOSTUNREACH;
      if (addrinfo* address = Resolve(node.hostname, node.port)) {
        int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_GE(fd, 0) << strerror(errno);
        if (IsOfThisHost(address)) PreferCubic(fd);
        bool ok = connect(fd, address->ai_addr, address->ai_addrlen) == 0;
        error = errno;
        freeaddrinfo(address);
        if (ok && !IsMyself(fd)) {
          int on = 1;
          setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
          fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
          return fd;
        }
        close(fd);
      }
      CHECK(node.role == Node::SCHEDULER || tries < kMaxTries)
          << "cannot connect to " << node.DebugString() << ": " << strerror(error);
      if (tries % kTell == 0) {
        LOG(WARNING) << "still waiting for " << node.DebugString() << ": " << strerror(error);
      }
      usleep(1000000 / kTriesPerSecond);
    }
  }

  // One try, which does not wait for its outcome; -1: it cannot even begin. A node that comes late may be gone again
  // before anybody has met it, and the van has others to serve.
  int DialOnce(const Node& node) {
    addrinfo* address = Resolve(node.hostname, node.port);
    if (!address) return -1;
    int fd = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    CHECK_GE(fd, 0) << strerror(errno);
    if (IsOfThisHost(address)) PreferCubic(fd);
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    bool begun = connect(fd, address->ai_addr, address->ai_addrlen) == 0 || errno == EINPROGRESS;
    int error = errno;
    freeaddrinfo(address);
    if (begun) return fd;
    close(fd);
    errno = error;
    return -1;
  }

  // Only an address of this host can be bound.
  static bool IsOfThisHost(const addrinfo* address) {
    sockaddr_storage any_port = {};
    memcpy(&any_port, address->ai_addr, address->ai_addrlen);
    reinterpret_cast<sockaddr_in*>(&any_port)->sin_port = 0;  // at the same place in a sockaddr_in6
    int fd = socket(address->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&any_port), address->ai_addrlen) == 0;
    if (fd >= 0) close(fd);
    return bound;
  }

  // Within a host there is no link to spare: a congestion control that paces, such as bbr, only slows a connection
  // down. To be called before connecting, as the pace of the one that a connection began with would stay.
  static void PreferCubic(int fd) {
    const char name[] = "cubic";
    if (setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, strlen(name)) == 0) return;
    PS_VLOG(1) << "within this host the default congestion control is used, not cubic: " << strerror(errno);
  }

  // While nobody listens yet, a port of the range for outgoing connections can connect to itself.
  static bool IsMyself(int fd) {
    sockaddr_storage here = {}, there = {};
    socklen_t here_size = sizeof(here), there_size = sizeof(there);
    getsockname(fd, reinterpret_cast<sockaddr*>(&here), &here_size);
    getpeername(fd, reinterpret_cast<sockaddr*>(&there), &there_size);
    return here_size == there_size && memcmp(&here, &there, here_size) == 0;
  }

  void Resume(Output* output, uint32_t events) {
    Greeting greeting = output->Resume(events, token_);
    const bool met = greeting == Greeting::kProven || greeting == Greeting::kUnfinished;
    if (MayComeBack(output) && (met || met_scheduler_)) {
      if (!met) output->Lose();
      met_scheduler_ = met_scheduler_ || greeting == Greeting::kProven;
      scheduler_is_gone_ = output->IsGone();
      next_try_ms_ = NowMs() + kTryAgainMs;
      return;
    }
    if (!met && my_node_.is_recovery && !is_scheduler_) {
      output->Abandon();  // it was gone when this process came: the others know it, and somebody may be in its place
      greeting = Greeting::kUnfinished;
    } else if (!met && output->node.is_recovery) {  // it came late, and is gone again before its proof
      output->Lose();
      greeting = Greeting::kUnfinished;
    }
    CHECK(greeting != Greeting::kRefused)
        << output->node.DebugString() << " has another DYNAMIX_TOKEN than this process; all roles of a run need the same";
    CHECK(greeting != Greeting::kImpostor)
        << "what listens at " << output->node.DebugString() << " does not know this run's token; nothing was sent to it";
    if (output->TellGone()) {
      const Node& node = output->node;
      Losses::Instance().Add(node.role, NumberOf(node));
      EndBarriersWithout(node.id);
    }
    if (greeting != Greeting::kLost) return;
    // closed before its proof: the node had too many strangers, or this process was stopped for too long
    CHECK_LT(++output->tries, kMaxTries) << output->node.DebugString() << " closes every connection";
    usleep(1000000 / kTriesPerSecond);
    int fd = Dial(output->node);
    output->Restart(fd, epoll_);
    WatchOutput(fd, output);
  }

  // Whether it is the way to a scheduler that others may start again.
  bool MayComeBack(Output* output) {
    if (is_scheduler_ || output->node.role != Node::SCHEDULER || !GetEnv("DYNAMIX_ELASTIC", 0)) return false;
    std::lock_guard<std::mutex> lock(mu_);
    return by_node_[kScheduler] == output;
  }

  // Try once. What is sent now waits for the proofs, and is dropped if this try is in vain.
  void ReachScheduler() {
    next_try_ms_ = NowMs() + kTryAgainMs;
    int fd = DialOnce(scheduler_);
    if (fd < 0) return;
    scheduler_is_gone_ = false;
    Message members;
    std::unique_ptr<Message> barrier;
    Output* scheduler;
    {
      std::lock_guard<std::mutex> lock(mu_);
      scheduler = by_node_[kScheduler];
      members.meta.control.node.push_back(my_node_);
      for (auto& one : by_node_) {
        const Node& node = one.second->node;
        const bool is_other = node.role != Node::SCHEDULER && node.id != my_node_.id;
        if (IsReady() && is_other && !one.second->IsGone()) members.meta.control.node.push_back(node);
      }
      if (barrier_) barrier.reset(new Message(*barrier_));
    }
    members.meta.recver = kScheduler;
    members.meta.control.cmd = Control::ADD_NODE;
    members.meta.timestamp = GetTimestamp();
    scheduler->Revive(fd, epoll_);
    SendMsg(members);
    if (barrier) SendMsg(*barrier);
    WatchOutput(fd, scheduler);
  }

  // In numbers, so that nobody has to be asked for it again.
  static std::string AddressOfPeer(int fd, const std::string& otherwise) {
    sockaddr_storage address = {};
    socklen_t size = sizeof(address);
    char host[NI_MAXHOST];
    const bool found = getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
                       getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), NULL, 0,
                                   NI_NUMERICHOST) == 0;
    return found ? host : otherwise;
  }

  // Among those of its kind: as it was started, if it has said so.
  static int NumberOf(const Node& node) { return node.aux_id < 0 ? Postoffice::IDtoRank(node.id) : node.aux_id; }

  static time_t Now() { return NowMs() / 1000; }

  static int64_t NowMs() {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * int64_t{1000} + now.tv_nsec / 1000000;
  }

  void Accept() {
    for (int left = 64; left > 0; --left) {
      sockaddr_storage address = {};
      socklen_t size = sizeof(address);
      int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) {
        full_ = errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM;
        return;  // or none left, or the connection is gone already
      }
      char host[NI_MAXHOST] = "?";
      getnameinfo(reinterpret_cast<sockaddr*>(&address), size, host, sizeof(host), NULL, 0, NI_NUMERICHOST);
      std::unique_ptr<Input> input(new Input(fd, host));
      input->deadline = Now() + kPatience;
      input->stranger = strangers_.insert(strangers_.end(), input.get());
      input->challenge.magic = kHelloMagic;
      CHECK(FillRandomly(input->challenge.random, kProofSize)) << "getrandom: " << strerror(errno);
      send(fd, &input->challenge, sizeof(Challenge), MSG_NOSIGNAL | MSG_DONTWAIT);  // the first bytes find room
      Watch(fd, EPOLLIN | EPOLLRDHUP, input.get());
      void* key = input.get();
      inputs_[key] = std::move(input);
    }
  }

  // Close connections whose time for a proof is over, and the oldest where there are too many.
  void CloseStrangers() {
    bool starved = full_ && strangers_.empty();
    while (!strangers_.empty() && strangers_.front()->deadline <= Now()) {
      strangers_.front()->fault = "it gave no proof within " + std::to_string(kPatience) + " s";
      Forget(strangers_.front());
    }
    size_t limit = full_ ? strangers_.size() / 2 : max_strangers_;
    while (strangers_.size() > limit) {
      strangers_.front()->fault = "too many connections gave no proof yet";
      Forget(strangers_.front());
    }
    // Where this process has no descriptor left for a connection, accept none for a second.
    if (starved) {
      if (!told_full_) LOG(WARNING) << "no file descriptor is left for new connections (ulimit -n)";
      told_full_ = true;
      pause_end_ = Now() + 2;  // in whole seconds: at least one
      SetAccepting(false);
    } else if (pause_end_ && pause_end_ <= Now()) {
      pause_end_ = 0;
      SetAccepting(true);
    }
    full_ = false;
  }

  void SetAccepting(bool on) {
    epoll_event event = {};
    event.events = on ? EPOLLIN : 0;
    event.data.ptr = &listener_;
    epoll_ctl(epoll_, EPOLL_CTL_MOD, listener_, &event);
  }

  // One line per address, and not more than a few lines.
  void CountRefused(const Input& input) {
    ++refused_;
    if (told_.size() >= kToldSources || !told_.insert(input.source).second) return;
    LOG(WARNING) << "refused a connection from " << input.source << ": " << input.fault
                 << " (told once per address; what it sent was not looked at)";
  }

  Input* FindInput(void* source) {
    auto it = inputs_.find(source);
    return it == inputs_.end() ? nullptr : it->second.get();
  }

  void Forget(Input* input) {
    if (input->stage == Input::kHello) {
      CountRefused(*input);
      strangers_.erase(input->stranger);
    }
    if (input->stage == Input::kPiece) PieceTransport::Receiver()->Abandoned(input->piece, input->place);
    Unwatch(input->fd);
    inputs_.erase(input);
  }

  // Check the proof of the other side, and give ours.
  bool Welcome(Input* input) {
    Verdict verdict = {};
    if (input->hello.magic != kHelloMagic) {
      input->fault = "it does not speak the protocol of this BytePS";
      return false;
    }
    if (SameProof(ProofOfConnecting(token_, input->challenge.random, input->hello.random), input->hello.proof)) {
      verdict.welcome = 1;
      std::string proof = ProofOfAccepting(token_, input->challenge.random, input->hello.random);
      memcpy(verdict.proof, proof.data(), kProofSize);
    }
    send(input->fd, &verdict, sizeof(verdict), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (!verdict.welcome) {
      input->fault = "it does not know this run's token (DYNAMIX_TOKEN)";
      return false;
    }
    strangers_.erase(input->stranger);
    input->buffer.resize(kBuffer);
    input->ExpectMessage();
    return true;
  }

  // Read what is there, up to a fair share. False when the connection has ended.
  bool Read(Input* input) {
    for (size_t budget = kFairShare; budget > 0;) {
      if (input->stage == Input::kPiece) Redirect(input);
      // Behind many bytes comes another message: of that one only the head is read along, so that its
      // bytes need no copy.
      size_t beyond = input->missing < kLarge ? input->buffer.size() : sizeof(Header) + sizeof(PieceHead);
      iovec pieces[2] = {{input->target, input->missing}, {input->buffer.data(), beyond}};
      ssize_t got = readv(input->fd, pieces, 2);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (got <= 0) return false;
      size_t size = got, asked = input->missing + beyond;
      size_t direct = std::min(size, input->missing);
      input->target += direct;
      input->missing -= direct;
      input->begin = 0;
      input->end = size - direct;
      while (input->missing == 0) {
        if (!Advance(input)) return false;
        size_t copied = std::min(input->missing, input->end - input->begin);
        memcpy(input->target, input->buffer.data() + input->begin, copied);
        input->begin += copied;
        input->target += copied;
        input->missing -= copied;
      }
      if (size < asked) return true;  // that was all
      budget -= std::min(budget, size);
    }
    return true;
  }

  // The receiver may want the rest of a piece elsewhere by now.
  void Redirect(Input* input) {
    size_t got = input->target - input->place;
    input->place = PieceTransport::Receiver()->PlaceForRest(input->header.sender, input->piece, input->place);
    input->target = input->place + got;
  }

  // The expected bytes are complete: find out what comes next. False when this is not one of us.
  // A role of this run that breaks the protocol is an error of the program: it ends the job, with its cause.
  bool Advance(Input* input) {
    if (input->stage == Input::kHello) return Welcome(input);
    const Header& header = input->header;
    if (input->stage == Input::kHeader && header.magic == kPieceMagic) {
      input->Expect(&input->piece, sizeof(PieceHead));
      input->stage = Input::kPieceHead;
      return true;
    }
    if (input->stage == Input::kPieceHead && input->piece.kind == PieceKind::kAlive && my_node_.role == Node::WORKER) {
      SendPiece(header.sender, input->piece, SArray<char>());  // from here: it may take part in no sums yet
      input->ExpectMessage();
      return true;
    }
    if (input->stage == Input::kPieceHead) {
      CHECK(PieceTransport::Receiver()) << "a piece of a sum for a node that takes none";
      input->place = PieceTransport::Receiver()->PlaceFor(header.sender, input->piece);
      input->Expect(input->place, input->piece.bytes);
      input->stage = Input::kPiece;
      if (input->missing > 0) return true;
    }
    if (input->stage == Input::kPiece) {
      PieceTransport::Receiver()->Arrived(header.sender, input->piece, input->place);
      input->ExpectMessage();
      return true;
    }
    if (input->stage == Input::kHeader) {
      CHECK(header.magic == kMagic && header.parts <= kMaxParts && header.meta_size >= sizeof(RawMeta) &&
            header.meta_size <= kMaxMeta)
          << "node " << header.sender << " at " << input->source << " sent a header that makes no sense";
      input->meta.resize(header.meta_size);
      input->Expect(input->meta.data(), header.meta_size);
      input->stage = Input::kMeta;
      return true;
    }
    Message& message = input->message;
    if (input->stage == Input::kMeta) {
      CHECK(IsWhole(input->meta)) << "node " << header.sender << " at " << input->source
                                  << " sent a description of a message that makes no sense";
      message.meta = Meta();
      UnpackMeta(input->meta.data(), header.meta_size, &message.meta);
      message.meta.sender = header.sender;
      message.meta.recver = my_node_.id;
      message.data.clear();
      input->stage = Input::kParts;
      input->part = 0;
    } else {
      ++input->part;
    }
    for (; input->part < header.parts; ++input->part) {
      message.data.push_back(PlaceFor(message, header, input->part));
      if (header.part_size[input->part] == 0) continue;
      input->Expect(message.data.back().data(), header.part_size[input->part]);
      return true;
    }
    if (message.meta.control.cmd == Control::BARRIER && !message.meta.request) {
      std::lock_guard<std::mutex> lock(mu_);
      barrier_.reset();
    }
    size_t size = sizeof(Header) + header.meta_size;
    for (auto& part : message.data) size += part.size();
    arrived_.emplace_back(std::move(message), size);
    input->message = Message();
    input->ExpectMessage();
    return true;
  }

  Output* OutputTo(int id) {
    std::lock_guard<std::mutex> lock(mu_);
    auto it = by_node_.find(id);
    if (it != by_node_.end()) return it->second;
    LOG(WARNING) << "there is no connection to node " << id;
    return nullptr;
  }

  static bool IsData(const Meta& meta) { return meta.control.empty() && !meta.simple_app; }

  static uint64_t PullKey(int node, int timestamp) {
    return static_cast<uint64_t>(node) << 32 | static_cast<uint32_t>(timestamp);
  }

  // Whether the counts in a packed meta fit its size.
  static bool IsWhole(const std::vector<char>& meta) {
    const RawMeta* raw = reinterpret_cast<const RawMeta*>(meta.data());
    int64_t body = raw->body_size, types = raw->data_type_size, nodes = raw->control.node_size;
    if (body < 0 || types < 0 || nodes < 0) return false;
    int64_t size = sizeof(RawMeta) + body + types * sizeof(int) + nodes * static_cast<int64_t>(sizeof(RawNode));
    if (size != static_cast<int64_t>(meta.size())) return false;
    const char* node = meta.data() + sizeof(RawMeta) + body + types * sizeof(int);
    for (; nodes > 0; --nodes, node += sizeof(RawNode)) {
      if (!memchr(node + offsetof(RawNode, hostname), 0, sizeof(RawNode::hostname))) return false;
    }
    return true;
  }

  // The answer to a pull goes where the puller wants it, everything else into new memory. The size is
  // checked first: the first push of a key declares how much the others may have.
  SArray<char> PlaceFor(const Message& message, const Header& header, size_t part) {
    const Meta& meta = message.meta;
    size_t size = header.part_size[part];
    size_t limit = IsData(meta) ? kMaxKeys : 0;
    if (part == 1 && IsData(meta)) {
      if (!meta.request && !meta.push) {
        std::lock_guard<std::mutex> lock(pulls_mu_);
        auto it = pulls_.find(PullKey(header.sender, meta.timestamp));
        if (it != pulls_.end() && size <= static_cast<size_t>(it->second.size)) {
          char* place = it->second.place;
          pulls_.erase(it);
          return SArray<char>(place, size, false);
        }
        limit = 0;  // longer than asked for, or not asked for
      } else if (meta.request && meta.push && message.data[0].size() >= sizeof(uint64_t)) {
        uint64_t key;
        memcpy(&key, message.data[0].data(), sizeof(key));
        if (size <= kMaxFirstPush) declared_.emplace(key, size);
        auto declared = declared_.find(key);
        limit = declared == declared_.end() ? kMaxFirstPush : declared->second;
      }
    }
    CHECK_LE(size, limit) << "bytes in part " << part << " of a message of node " << header.sender;
    SArray<char> place;
    place.reset(new char[size + 1], size, [](char* data) { delete[] data; });
    return place;
  }

  bool standalone_ = false;
  int epoll_ = -1;
  int listener_ = -1;
  std::string token_;
  size_t max_strangers_ = 0;
  std::list<Input*> strangers_;  // connections without a proof, oldest first
  bool full_ = false;            // an accept just failed for want of a descriptor
  bool told_full_ = false;
  time_t pause_end_ = 0;         // until then nothing is accepted; 0: no pause
  uint64_t refused_ = 0;
  std::unordered_set<std::string> told_;  // addresses of refused connections that the log names
  std::unordered_map<uint64_t, size_t> declared_;  // bytes of the first push of a key
  bool met_scheduler_ = false;
  bool scheduler_is_gone_ = false;
  int64_t next_try_ms_ = 0;
  std::mutex mu_;  // barrier_, by_node_ and outputs_
  std::unique_ptr<Message> barrier_;  // at which this process waits
  std::unordered_map<int, Output*> by_node_;
  std::list<Output> outputs_;  // also those that were replaced: the van's thread may still hold an event of them
  std::unordered_map<void*, std::unique_ptr<Input>> inputs_;
  std::deque<std::pair<Message, size_t>> arrived_;
  struct Pull {
    char* place;
    int size;
  };
  std::mutex pulls_mu_;
  std::unordered_map<uint64_t, Pull> pulls_;  // asked for, not answered yet
};

}  // namespace ps

#endif  // PS_TCP_VAN_H_
