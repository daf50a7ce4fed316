// Memory that processes of one host share: a worker made it (segments.py), this process maps it.
#ifndef BYTEPS_SEGMENT_H_
#define BYTEPS_SEGMENT_H_

#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>

namespace byteps {
namespace common {

// What a worker tells of its segment; packed by dynamix_ps/comm/segments.py.
#pragma pack(push, 1)
struct SegmentAnnouncement {
  char boot[16];
  uint64_t network_namespace;  // inode: a process in another one counts as another host
  uint64_t pid_namespace;
  uint32_t user;
  uint32_t pid;
  uint32_t descriptor;
  uint64_t bytes;  // of the data, which follows the first page
  char nonce[16];  // at the beginning of the first page
};
#pragma pack(pop)

class Segment {
 public:
  static const size_t kFirstPage = 4096;

  // Null if the announced segment is not one of this host, or cannot be opened.
  static std::unique_ptr<Segment> Open(const std::string& announcement) {
    SegmentAnnouncement told;
    if (announcement.size() != sizeof(told)) return nullptr;
    memcpy(&told, announcement.data(), sizeof(told));
    if (told.network_namespace != Inode("/proc/self/ns/net") || told.pid_namespace != Inode("/proc/self/ns/pid")) {
      return nullptr;
    }
    std::string path = "/proc/" + std::to_string(told.pid) + "/fd/" + std::to_string(told.descriptor);
    int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (fd < 0) return nullptr;
    struct stat file = {};
    void* memory = MAP_FAILED;
    if (fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_uid == geteuid() &&
        static_cast<uint64_t>(file.st_size) == told.bytes + kFirstPage) {
      memory = mmap(nullptr, file.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (memory == MAP_FAILED) return nullptr;
    std::unique_ptr<Segment> segment(new Segment(static_cast<char*>(memory), told.bytes));
    if (memcmp(memory, told.nonce, sizeof(told.nonce)) != 0) return nullptr;
    return segment;
  }

  ~Segment() { munmap(data - kFirstPage, bytes + kFirstPage); }
  Segment(const Segment&) = delete;

  char* const data;
  const uint64_t bytes;

 private:
  Segment(char* memory, uint64_t size) : data(memory + kFirstPage), bytes(size) {}

  static uint64_t Inode(const char* path) {
    struct stat file = {};
    return stat(path, &file) == 0 ? file.st_ino : 0;
  }
};

}  // namespace common
}  // namespace byteps

#endif  // BYTEPS_SEGMENT_H_
