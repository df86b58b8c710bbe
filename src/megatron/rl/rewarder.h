#pragma once

#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron::rl {

// Threads that reward answers beside the steps of the engine: a program may take seconds for one.
class Rewarder {
 public:
  static constexpr int kThreads = 8;

  Rewarder();
  ~Rewarder();  // leaves what no thread has begun
  Rewarder(const Rewarder&) = delete;
  Rewarder& operator=(const Rewarder&) = delete;

  void add(std::function<void()> task);
  // Waits until all is done. Throws what the first task that failed threw; then the others may be left.
  void finish();

 private:
  void work();

  std::mutex mutex_;
  std::condition_variable changed_, done_;
  std::deque<std::function<void()>> tasks_;
  size_t under_way_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::vector<std::jthread> threads_;
};

}  // namespace megatron::rl
