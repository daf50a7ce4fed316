// The sockets of this process, which a forked child must not keep.
//
// A child of a DataLoader, say, has all descriptors of its parent. While it has them, the end of the parent closes no
// connection, and nobody learns of it. So in the child each of them becomes /dev/null: the number stays in use, and
// what the child might do with its copy of the transport reaches nobody.
#ifndef PS_DESCRIPTORS_H_
#define PS_DESCRIPTORS_H_

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace ps {

class Descriptors {
 public:
  static int Add(int fd) {
    Descriptors& all = Instance();
    std::lock_guard<std::mutex> lock(all.mu_);
    all.open_.push_back(fd);
    return fd;
  }

  static void Close(int fd) {
    Descriptors& all = Instance();
    std::lock_guard<std::mutex> lock(all.mu_);
    all.open_.erase(std::remove(all.open_.begin(), all.open_.end(), fd), all.open_.end());
    close(fd);
  }

 private:
  Descriptors() {
    pthread_atfork([] { Instance().mu_.lock(); }, [] { Instance().mu_.unlock(); }, [] { Instance().Hide(); });
  }

  static Descriptors& Instance() {
    static Descriptors* instance = new Descriptors();
    return *instance;
  }

  // In the child.
  void Hide() {
    int nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd : open_) {
      if (nothing < 0 || dup3(nothing, fd, O_CLOEXEC) < 0) close(fd);
    }
    if (nothing >= 0) close(nothing);
    mu_.unlock();
  }

  std::mutex mu_;
  std::vector<int> open_;
};

}  // namespace ps

#endif  // PS_DESCRIPTORS_H_
