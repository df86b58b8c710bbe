#pragma once

#include <memory>
#include <vector>

#include "megatron/base/mapped_file.h"

namespace megatron {

// The plain files of a tar archive, found when it is opened. Safe to share between threads.
class TarFile {
 public:
  struct Member {
    std::string name;
    size_t begin = 0, size = 0;
  };

  explicit TarFile(const std::string& path);
  const std::string& path() const { return file_->path(); }
  const std::vector<Member>& members() const { return members_; }
  std::span<const std::byte> bytes(const Member& member) const {
    return file_->bytes().subspan(member.begin, member.size);
  }

 private:
  std::shared_ptr<MappedFile> file_;
  std::vector<Member> members_;
};

}  // namespace megatron
