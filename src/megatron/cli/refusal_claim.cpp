#include "megatron/cli/refusal_claim.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>
#include <utility>

#include "megatron/base/hash.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Processes of a job read the same files, and find the same fault about as soon.
constexpr auto kLooking = 1500ms, kStaying = 2000ms, kBetweenLooks = 50ms;

// The rank's own message, without the prefix that other ranks put before it.
std::string_view own_words(std::string_view message) {
  constexpr std::string_view kEcho = " stopped: ";
  const size_t at = message.find(kEcho);
  return message.starts_with("rank ") && at != std::string_view::npos ? message.substr(at + kEcho.size())
                                                                      : message;
}

// The same for all processes that one launcher has started here, and for no others.
std::string claim_path(std::string_view message) {
  std::string job = fmt::format("{} {} {}", ::getuid(), ::getppid(), own_words(message));
  for (const char* name : {"MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"})
    if (const char* value = std::getenv(name)) job += fmt::format(" {}", value);
  std::error_code none;
  return (fs::temp_directory_path(none) / fmt::format("megatron-refusal-{:016x}", hash_text(job))).string();
}

// Whether somebody holds the exclusive lock of an open file. A shared lock asks without claiming.
bool is_locked(int file) {
  if (::flock(file, LOCK_SH | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  ::flock(file, LOCK_UN);
  return false;
}

bool is_claimed(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return false;
  const bool claimed = is_locked(file);
  ::close(file);
  return claimed;
}

// Whether the path still names the open file, which the process that claimed it before may have removed.
bool is_at(const std::string& path, int file) {
  struct stat open {
  }, named{};
  return ::fstat(file, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_dev == named.st_dev &&
         open.st_ino == named.st_ino;
}

}  // namespace

RefusalClaim::RefusalClaim(const LaunchPlace& place, std::string_view message) : path_(claim_path(message)) {
  if (place.process > 0) {
    const auto end = std::chrono::steady_clock::now() + kLooking;
    while (!is_claimed(path_) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(kBetweenLooks);
  }
  for (int tries = 0; tries < 100; ++tries) {
    file_ = ::open(path_.c_str(), O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
    const bool locks = file_ >= 0 && ::flock(file_, LOCK_EX | LOCK_NB) == 0;
    own_ = locks && is_at(path_, file_);
    if (own_) return;
    const bool possible = file_ >= 0 && (locks || errno == EWOULDBLOCK);
    const bool taken = possible && !locks && is_locked(file_);
    if (file_ >= 0) ::close(std::exchange(file_, -1));
    if (taken || !possible) {
      own_ = !taken || place.process == 0;  // rather twice than not at all
      return;
    }
    // Somebody only asked, or has removed the file meanwhile.
  }
  own_ = true;  // a file system that does not tell files apart
}

RefusalClaim::~RefusalClaim() {
  if (file_ < 0) return;
  std::this_thread::sleep_for(kStaying);
  std::error_code ignored;
  fs::remove(path_, ignored);
  ::close(file_);
}

}  // namespace megatron
