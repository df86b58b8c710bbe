#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace megatron {

// Deletes directories on a thread of its own. Some file systems take as long to delete a large file as to
// write it, and whoever writes meanwhile is slowed down as much: files that nobody reads are cut from their
// end, part by part, on disks of this machine, and between two parts a save may have the disk to itself.
class BackgroundRemoval {
 public:
  BackgroundRemoval() = default;
  ~BackgroundRemoval();  // once everything is deleted
  BackgroundRemoval(const BackgroundRemoval&) = delete;

  void add(std::vector<std::string> directories);
  // Nothing is deleted from the next part on until resume().
  void pause();
  void resume();
  std::vector<std::string> pending() const;  // also that which is being deleted
  // Waits until nothing is left, also where it was paused.
  void finish();
  // An Error where a directory could not be deleted, which is left then; once.
  void rethrow();

 private:
  void run();
  void remove(const std::string& directory);
  void wait_for_turn();

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::string> directories_;
  bool paused_ = false, ending_ = false;
  std::exception_ptr error_;
  std::thread thread_;  // begun with the first directory
};

}  // namespace megatron
