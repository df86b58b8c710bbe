#pragma once

#include <string>

#include "megatron/base/error.h"

namespace megatron {

// Another run has a folder.
class FolderInUse : public ConfigError {
 public:
  FolderInUse(const std::string& folder, std::string holder);
  const std::string& holder() const { return holder_; }  // its FolderLock's owner()

 private:
  std::string holder_;
};

// A folder that one run at a time saves into. The lock is the operating system's, on the file .lock of the
// folder, so that it goes with its process, however that ends; the file tells who has it.
class FolderLock {
 public:
  FolderLock() = default;  // of nothing
  // Creates the folder where it is missing. A FolderInUse names the owner where another run has it.
  FolderLock(const std::string& folder, std::string owner);
  ~FolderLock();
  FolderLock(FolderLock&& other) noexcept;
  FolderLock& operator=(FolderLock&& other) noexcept;

  // A name for people: a run, its host and process, and the time.
  static std::string owner_of(const std::string& run);
  // What a FolderInUse would give as the holder of a folder that somebody has locked from now on, and who has
  // stopped before the file told that; "" where somebody has it already.
  static std::string unnamed_holder(const std::string& folder);

  bool held() const { return file_ >= 0; }             // false where the file system knows no locks
  const std::string& owner() const { return owner_; }  // "" where not held

 private:
  int file_ = -1;
  std::string owner_;
};

}  // namespace megatron
