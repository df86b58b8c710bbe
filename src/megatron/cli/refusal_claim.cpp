#include "megatron/cli/refusal_claim.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "megatron/base/hash.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

// Processes of a job read the same files, and find the same fault about as soon.
constexpr auto kLooking = 1500ms, kStaying = 2000ms, kBetweenLooks = 50ms;

// A fault of another rank is told as such, in the words of that rank.
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

// A file that a process which was killed has left says nothing.
bool is_claimed(const std::string& path) {
  std::error_code absent;
  const fs::file_time_type written = fs::last_write_time(path, absent);
  return !absent && fs::file_time_type::clock::now() - written < kLooking + kStaying;
}

}  // namespace

RefusalClaim::RefusalClaim(const LaunchPlace& place, std::string_view message) : path_(claim_path(message)) {
  if (place.process > 0) {
    const auto end = std::chrono::steady_clock::now() + kLooking;
    while (!is_claimed(path_) && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(kBetweenLooks);
    if (is_claimed(path_)) return;
  }
  std::error_code ignored;
  if (!is_claimed(path_)) fs::remove(path_, ignored);  // of an earlier job
  const int fd = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  own_ = fd >= 0 || place.process == 0 || !is_claimed(path_);  // rather twice than not at all
  if (fd >= 0) ::close(fd);
}

RefusalClaim::~RefusalClaim() {
  if (!own_) return;
  std::this_thread::sleep_for(kStaying);
  std::error_code ignored;
  fs::remove(path_, ignored);
}

}  // namespace megatron
