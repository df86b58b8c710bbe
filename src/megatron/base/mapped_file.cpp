#include "megatron/base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "megatron/base/refuse.h"

namespace megatron {

MappedFile::MappedFile(std::string path) : path_(std::move(path)) {
  int fd = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a FIFO would wait for its writer
  require_input(fd >= 0, "cannot open {}: {}", path_, std::strerror(errno));
  struct stat status {};
  bool known = ::fstat(fd, &status) == 0;
  bool regular = known && S_ISREG(status.st_mode);
  void* data = nullptr;
  if (regular && status.st_size > 0) {
    data = ::mmap(nullptr, static_cast<size_t>(status.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
  }
  int error = errno;
  ::close(fd);
  require(known, "cannot read {}: {}", path_, std::strerror(error));
  require_input(regular, "cannot read {}: it is not a regular file", path_);
  require(data != MAP_FAILED, "cannot map {} ({} bytes): {}", path_, status.st_size, std::strerror(error));
  data_ = static_cast<const std::byte*>(data);
  size_ = static_cast<size_t>(status.st_size);
}

MappedFile::~MappedFile() {
  if (data_) ::munmap(const_cast<std::byte*>(data_), size_);
}

}  // namespace megatron
