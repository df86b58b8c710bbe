#include "megatron/rl/rewarder.h"

#include <utility>

namespace megatron::rl {

Rewarder::Rewarder() {
  for (int i = 0; i < kThreads; ++i) threads_.emplace_back([this] { work(); });
}

Rewarder::~Rewarder() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  threads_.clear();
}

void Rewarder::add(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Rewarder::finish() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return under_way_ == 0 && (tasks_.empty() || error_); });
  if (error_) std::rethrow_exception(error_);
}

void Rewarder::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stop_ || (!tasks_.empty() && !error_); });
    if (stop_) return;
    const std::function<void()> task = std::move(tasks_.front());
    tasks_.pop_front();
    ++under_way_;
    lock.unlock();
    std::exception_ptr error;
    try {
      task();
    } catch (...) {
      error = std::current_exception();
    }
    lock.lock();
    if (error && !error_) error_ = error;
    --under_way_;
    done_.notify_all();
  }
}

}  // namespace megatron::rl
