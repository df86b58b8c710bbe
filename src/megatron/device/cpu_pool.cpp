#include "megatron/device/cpu_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace megatron {

struct CpuPool::State {
  std::mutex mutex;
  std::condition_variable wake, finished;
  uint64_t generation = 0;
  bool stop = false, open = false;  // open: threads may still join the job
  int active = 0;                   // threads that have joined and not left
  std::exception_ptr error;

  void (*call)(void*, int64_t, int64_t) = nullptr;
  void* body = nullptr;
  int64_t n = 0, step = 1;
  std::atomic<int64_t> next{0};
  std::vector<std::thread> threads;

  void take_chunks() {
    for (int64_t begin; (begin = next.fetch_add(step, std::memory_order_relaxed)) < n;)
      call(body, begin, std::min(n, begin + step));
  }

  void take_chunks_noting_errors() {
    try {
      take_chunks();
    } catch (...) {
      next.store(n, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work() {
    uint64_t seen = 0;
    while (true) {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return stop || generation != seen; });
      if (stop) return;
      seen = generation;
      if (!open) continue;
      ++active;
      lock.unlock();
      take_chunks_noting_errors();
      lock.lock();
      if (--active == 0) finished.notify_one();
    }
  }
};

CpuPool::CpuPool(int width) : width_(std::max(1, width)) {
  if (width_ == 1) return;
  state_ = std::make_unique<State>();
  for (int i = 1; i < width_; ++i) state_->threads.emplace_back([state = state_.get()] { state->work(); });
}

CpuPool::~CpuPool() {
  if (!state_) return;
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->wake.notify_all();
  for (auto& thread : state_->threads) thread.join();
}

void CpuPool::run(int64_t n, int64_t grain, void (*call)(void*, int64_t, int64_t), const void* body) {
  State& s = *state_;
  {
    std::lock_guard lock(s.mutex);
    s.call = call;
    s.body = const_cast<void*>(body);
    s.n = n;
    s.step = chunk_size(n, grain);
    s.next.store(0, std::memory_order_relaxed);
    s.error = nullptr;
    s.open = true;
    ++s.generation;
  }
  s.wake.notify_all();
  s.take_chunks_noting_errors();
  // No chunk is left: only threads that hold one are waited for, not those that have yet to wake.
  std::unique_lock lock(s.mutex);
  s.open = false;
  s.finished.wait(lock, [&] { return s.active == 0; });
  if (s.error) std::rethrow_exception(s.error);
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace megatron
