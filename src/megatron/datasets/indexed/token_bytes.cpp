#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <thread>

#include "megatron/base/refuse.h"
#include "megatron/datasets/indexed/indexed_dataset.h"

namespace megatron {
namespace {

class MappedTokens final : public TokenBytes {
 public:
  explicit MappedTokens(const std::string& path) : file_(path) {}
  int64_t size() const override { return static_cast<int64_t>(file_.bytes().size()); }
  void read(int64_t begin, std::span<std::byte> out) const override {
    if (!out.empty()) std::memcpy(out.data(), file_.bytes().data() + begin, out.size());
  }

 private:
  MappedFile file_;
};

class FileTokens final : public TokenBytes {
 public:
  explicit FileTokens(std::string path) : path_(std::move(path)) {
    fd_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC);
    require_input(fd_ >= 0, "cannot open {}: {}", path_, std::strerror(errno));
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
      ::close(fd_);
      refuse("cannot read {}: it is not a regular file", path_);
    }
    size_ = status.st_size;
  }
  ~FileTokens() override { ::close(fd_); }

  int64_t size() const override { return size_; }

  void read(int64_t begin, std::span<std::byte> out) const override {
    int retries = 0;
    while (!out.empty()) {
      const ssize_t count = ::pread(fd_, out.data(), out.size(), begin);
      if (count < 0 && errno == EINTR) continue;
      if (count < 0 && (errno == EIO || errno == ESTALE) && retries < 3) {
        // Network file systems recover: wait 10, 20 and 40 s.
        std::this_thread::sleep_for(std::chrono::seconds(10 << retries++));
        continue;
      }
      require(count >= 0, "cannot read {} at byte {}: {}", path_, begin, std::strerror(errno));
      require(count > 0, "cannot read {} at byte {}: the file was cut while in use", path_, begin);
      out = out.subspan(static_cast<size_t>(count));
      begin += count;
    }
  }

 private:
  std::string path_;
  int fd_ = -1;
  int64_t size_ = 0;
};

}  // namespace

std::unique_ptr<TokenBytes> open_token_bytes(const std::string& path, bool mmap) {
  if (mmap) return std::make_unique<MappedTokens>(path);
  return std::make_unique<FileTokens>(path);
}

}  // namespace megatron
