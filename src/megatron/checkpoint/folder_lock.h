#pragma once

#include <string>

namespace megatron {

// A folder that one run at a time saves into. The lock is the operating system's, on the file .lock of the
// folder, so that it goes with its process, however that ends; the file tells who has it.
class FolderLock {
 public:
  FolderLock() = default;  // of nothing
  // Creates the folder where it is missing. A ConfigError names the owner where another run has it. `owner`:
  // this run, for people; host and process are added.
  FolderLock(const std::string& folder, const std::string& owner);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

  bool held() const { return file_ >= 0; }  // false where the file system knows no locks

 private:
  int file_ = -1;
};

}  // namespace megatron
