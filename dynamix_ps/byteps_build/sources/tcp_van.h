// Plain TCP transport for ps-lite, in place of the one over ZeroMQ.
//
// Why: through ZeroMQ a message passes an I/O thread, a receive thread that polls under a lock, the van's
// thread and the customer's thread, on each side; on few cores these wake-ups cost more than the sum
// itself, and the polling costs a core. Here the sender writes to the socket itself, and one thread, the
// van's, sleeps in epoll_wait, reads whole messages and handles them.
//
// Every node has one connection to each node it talks to and only writes to it; it reads from the
// connections it accepted. A sender never waits for a slow receiver: what the socket does not take is
// queued and written by the van's thread when there is room again.
#ifndef PS_TCP_VAN_H_
#define PS_TCP_VAN_H_

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "ps/internal/van.h"

namespace ps {

class TcpVan : public Van {
 public:
  std::string GetType() const override { return "tcp"; }

  void Start(int customer_id, bool standalone) override {
    start_mu_.lock();
    standalone_ = standalone;
    if (epoll_ < 0) {
      epoll_ = epoll_create1(EPOLL_CLOEXEC);
      CHECK_GE(epoll_, 0) << "epoll_create1: " << strerror(errno);
    }
    start_mu_.unlock();
    if (!standalone) Van::Start(customer_id, false);
  }

  void Stop() override {
    Van::Stop();  // its thread has ended: from here on nobody else uses the connections
    std::lock_guard<std::mutex> lock(mu_);
    by_node_.clear();
    outputs_.clear();
    inputs_.clear();
    arrived_.clear();
    pulls_.clear();
    close(listener_);
    close(epoll_);
    listener_ = epoll_ = -1;
  }

  int Bind(const Node& node, int max_retry) override {
    bool everywhere = node.hostname.empty() || (GetEnv("DMLC_USE_KUBERNETES", 0) > 0 && node.role == Node::SCHEDULER);
    std::string host = everywhere ? "0.0.0.0" : node.hostname;
    int port = node.port;
    unsigned seed = static_cast<unsigned>(time(NULL)) + port;
    for (int tries_left = max_retry;; --tries_left) {
      listener_ = Listen(host, port);
      if (listener_ >= 0) break;
      CHECK_GT(tries_left, 0) << "cannot listen on " << host << ":" << port << ": " << strerror(errno);
      port = 10000 + rand_r(&seed) % 40000;
    }
    Watch(listener_, EPOLLIN, &listener_);
    return port;
  }

  void Connect(const Node& node) override {
    CHECK_NE(node.id, node.kEmpty);
    CHECK_NE(node.port, node.kEmpty);
    CHECK(node.hostname.size());
    // workers do not talk to workers, nor servers to servers
    if (node.role == my_node_.role && node.id != my_node_.id && !standalone_) return;
    int fd = Dial(node);
    std::lock_guard<std::mutex> lock(mu_);
    outputs_.emplace_back(fd);
    Output* output = &outputs_.back();
    Output*& current = by_node_[node.id];
    if (current) current->Abandon();  // the node came back at another address
    current = output;
    // edge triggered: the one event that matters is room again after the socket was full
    Watch(fd, EPOLLOUT | EPOLLRDHUP | EPOLLET, output);
  }

  int SendMsg(Message& msg) override {
    int id = msg.meta.recver;
    CHECK_NE(id, Meta::kEmpty);
    Output* output;
    {
      std::lock_guard<std::mutex> lock(mu_);
      auto it = by_node_.find(id);
      if (it == by_node_.end()) {
        LOG(WARNING) << "there is no connection to node " << id;
        return -1;
      }
      output = it->second;
    }
    CHECK_LE(msg.data.size(), static_cast<size_t>(kMaxParts));
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
      int count = epoll_wait(epoll_, events, 64, -1);
      CHECK(count >= 0 || errno == EINTR) << "epoll_wait: " << strerror(errno);
      for (int i = 0; i < count; ++i) {
        void* source = events[i].data.ptr;
        if (source == &listener_) {
          AcceptAll();
        } else if (Input* input = FindInput(source)) {
          if (!Read(input)) Forget(input);
        } else {
          static_cast<Output*>(source)->Resume(events[i].events);
        }
      }
    }
    size_t size = arrived_.front().second;
    *msg = std::move(arrived_.front().first);
    arrived_.pop_front();
    return static_cast<int>(std::min<size_t>(size, INT_MAX));
  }

 private:
  static const uint32_t kMagic = 0x64786d31;
  static const int kMaxParts = 4;
  static const size_t kBuffer = 64 << 10;
  static const size_t kMaxMeta = 64 << 20;
  static const size_t kMaxPart = size_t(1) << 40;

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

  // The way to one node. Any thread sends.
  class Output {
   public:
    explicit Output(int fd) : fd_(fd) {}
    ~Output() { close(fd_); }
    Output(const Output&) = delete;

    void Send(Frame frame) {
      std::lock_guard<std::mutex> lock(mu_);
      if (gone_) return;  // like ZeroMQ, drop what is for a node that went away: the job's supervisor sees it
      if (waiting_.empty() && Write(&frame)) return;
      if (!gone_) waiting_.push_back(std::move(frame));
    }

    void Resume(uint32_t events) {
      std::lock_guard<std::mutex> lock(mu_);
      if (events & (EPOLLERR | EPOLLHUP | EPOLLRDHUP)) gone_ = true;
      while (!gone_ && !waiting_.empty() && Write(&waiting_.front())) waiting_.pop_front();
      if (gone_) waiting_.clear();
    }

    void Abandon() {
      std::lock_guard<std::mutex> lock(mu_);
      gone_ = true;
      waiting_.clear();
      shutdown(fd_, SHUT_RDWR);
    }

   private:
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

    const int fd_;
    std::mutex mu_;
    std::deque<Frame> waiting_;
    bool gone_ = false;
  };

  // What arrives from one node. Only the van's thread uses it.
  struct Input {
    explicit Input(int socket) : fd(socket), buffer(kBuffer) { Expect(&header, sizeof(header)); }
    ~Input() { close(fd); }
    Input(const Input&) = delete;

    void Expect(void* to, size_t size) {
      target = static_cast<char*>(to);
      missing = size;
    }

    enum Stage { kHeader, kMeta, kParts };
    const int fd;
    Stage stage = kHeader;
    Header header;
    std::vector<char> meta;
    Message message;
    size_t part = 0;
    char* target = nullptr;  // where the next `missing` bytes go
    size_t missing = 0;
    std::vector<char> buffer;  // bytes read beyond them: [begin, end)
    size_t begin = 0, end = 0;
  };

  void Watch(int fd, uint32_t events, void* source) {
    epoll_event event = {};
    event.events = events;
    event.data.ptr = source;
    CHECK_EQ(epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event), 0) << "epoll_ctl: " << strerror(errno);
  }

  static addrinfo* Resolve(const std::string& host, int port) {
    addrinfo hints = {};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    return getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) == 0 ? found : nullptr;
  }

  // A listening socket, or -1 and errno.
  static int Listen(const std::string& host, int port) {
    addrinfo* address = Resolve(host, port);
    CHECK(address) << "unknown host name " << host;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
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
    const int kTriesPerSecond = 20, kLimit = 60 * kTriesPerSecond, kTell = 10 * kTriesPerSecond;
    for (int tries = 1;; ++tries) {
      int error = EHOSTUNREACH;
      if (addrinfo* address = Resolve(node.hostname, node.port)) {
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        CHECK_GE(fd, 0) << strerror(errno);
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
      CHECK(node.role == Node::SCHEDULER || tries < kLimit)
          << "cannot connect to " << node.DebugString() << ": " << strerror(error);
      if (tries % kTell == 0) {
        LOG(WARNING) << "still waiting for " << node.DebugString() << ": " << strerror(error);
      }
      usleep(1000000 / kTriesPerSecond);
    }
  }

  // While nobody listens yet, a port of the range for outgoing connections can connect to itself.
  static bool IsMyself(int fd) {
    sockaddr_in here = {}, there = {};
    socklen_t size = sizeof(here);
    getsockname(fd, reinterpret_cast<sockaddr*>(&here), &size);
    size = sizeof(there);
    getpeername(fd, reinterpret_cast<sockaddr*>(&there), &size);
    return here.sin_port == there.sin_port && here.sin_addr.s_addr == there.sin_addr.s_addr;
  }

  void AcceptAll() {
    while (true) {
      int fd = accept4(listener_, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (fd < 0) return;  // none left, or the connection is gone already
      std::unique_ptr<Input> input(new Input(fd));
      Watch(fd, EPOLLIN | EPOLLRDHUP, input.get());
      void* key = input.get();
      inputs_[key] = std::move(input);
    }
  }

  Input* FindInput(void* source) {
    auto it = inputs_.find(source);
    return it == inputs_.end() ? nullptr : it->second.get();
  }

  void Forget(Input* input) { inputs_.erase(input); }

  // Read what is there, up to a fair share. False when the connection has ended.
  bool Read(Input* input) {
    for (size_t budget = 4 << 20; budget > 0;) {
      iovec pieces[2] = {{input->target, input->missing}, {input->buffer.data(), kBuffer}};
      ssize_t got = readv(input->fd, pieces, 2);
      if (got < 0 && errno == EINTR) continue;
      if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return true;
      if (got <= 0) return false;
      size_t size = got, asked = input->missing + kBuffer;
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

  // The expected bytes are complete: find out what comes next. False when this is not one of us.
  bool Advance(Input* input) {
    const Header& header = input->header;
    if (input->stage == Input::kHeader) {
      bool valid = header.magic == kMagic && header.parts <= kMaxParts && header.meta_size >= sizeof(RawMeta) &&
                   header.meta_size <= kMaxMeta;
      for (uint32_t i = 0; valid && i < header.parts; ++i) valid = header.part_size[i] <= kMaxPart;
      if (!valid) {
        LOG(WARNING) << "closed a connection that does not speak the protocol of this BytePS";
        return false;
      }
      input->meta.resize(header.meta_size);
      input->Expect(input->meta.data(), header.meta_size);
      input->stage = Input::kMeta;
      return true;
    }
    Message& message = input->message;
    if (input->stage == Input::kMeta) {
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
      message.data.push_back(PlaceFor(message.meta, header, input->part));
      if (header.part_size[input->part] == 0) continue;
      input->Expect(message.data.back().data(), header.part_size[input->part]);
      return true;
    }
    size_t size = sizeof(Header) + header.meta_size;
    for (auto& part : message.data) size += part.size();
    arrived_.emplace_back(std::move(message), size);
    input->message = Message();
    input->stage = Input::kHeader;
    input->Expect(&input->header, sizeof(Header));
    return true;
  }

  static bool IsData(const Meta& meta) { return meta.control.empty() && !meta.simple_app; }

  static uint64_t PullKey(int node, int timestamp) {
    return static_cast<uint64_t>(node) << 32 | static_cast<uint32_t>(timestamp);
  }

  // The answer to a pull goes where the puller wants it, everything else into new memory.
  SArray<char> PlaceFor(const Meta& meta, const Header& header, size_t part) {
    size_t size = header.part_size[part];
    if (part == 1 && IsData(meta) && !meta.request && !meta.push) {
      std::lock_guard<std::mutex> lock(pulls_mu_);
      auto it = pulls_.find(PullKey(header.sender, meta.timestamp));
      if (it != pulls_.end()) {
        Pull pull = it->second;
        pulls_.erase(it);
        if (size <= static_cast<size_t>(pull.size)) return SArray<char>(pull.place, size, false);
      }
    }
    SArray<char> place;
    place.reset(new char[size + 1], size, [](char* data) { delete[] data; });
    return place;
  }

  bool standalone_ = false;
  int epoll_ = -1;
  int listener_ = -1;
  std::mutex mu_;  // by_node_ and outputs_
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
