#pragma once

#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron {

// Threads that end what one generation of a world leaves behind while the next one is made. That one waits
// for them before it does what they could hold up for ever.
class BackgroundEnds {
 public:
  BackgroundEnds() = default;
  ~BackgroundEnds() { wait(); }
  BackgroundEnds(const BackgroundEnds&) = delete;
  BackgroundEnds& operator=(const BackgroundEnds&) = delete;

  // Runs `end`, which throws nothing, and destroys it there.
  void add(std::function<void()> end) {
    const std::lock_guard lock(mutex_);
    threads_.emplace_back([end = std::move(end)]() mutable {
      end();
      end = {};
    });
  }
  // Until all that were added have returned.
  void wait() {
    const std::lock_guard lock(mutex_);
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::mutex mutex_;
  std::vector<std::thread> threads_;
};

}  // namespace megatron
