#pragma once

#include <functional>
#include <string>
#include <vector>

#include "megatron/checkpoint/background_removal.h"
#include "megatron/checkpoint/directory.h"

namespace megatron {

// Deletes the checkpoints of a run that do not stay, in the background; the first rank's. A save does not
// wait for that: it stands still meanwhile, unless the disk has no room beside what is to go, or what went
// for an earlier save is still there.
class OldCheckpoints {
 public:
  // Told what could not be deleted.
  explicit OldCheckpoints(std::function<void(const std::string& line)> tell) : tell_(std::move(tell)) {}

  // The checkpoint of an iteration is published at `path`: which ones go?
  void retain(const std::string& root, int64_t iteration, const std::string& path, const Retention& policy);
  ~OldCheckpoints();  // once everything is deleted
  OldCheckpoints(const OldCheckpoints&) = delete;

  // A save into this folder begins; what it is to leave alone there.
  std::vector<std::string> make_way(const std::string& root);
  void save_ended() { removal_.resume(); }
  void finish();  // waits until everything is deleted

 private:
  void tell_failure();

  std::function<void(const std::string& line)> tell_;
  uintmax_t bytes_ = 0;  // of the newest checkpoint for which others went
  size_t newest_ = 0;    // as many folders
  BackgroundRemoval removal_;
};

}  // namespace megatron
