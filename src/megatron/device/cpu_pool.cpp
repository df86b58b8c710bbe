#include "megatron/device/cpu_pool.h"

#include <sched.h>

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <vector>

namespace megatron {
namespace {

constexpr int64_t kCacheLine = 64;

// Of `count` things, the first that is thread `index`'s of `width`.
int64_t first_of(int64_t count, int index, int width) { return count * index / width; }

// A loop over a stream, as the one before it foretells it.
struct StreamLoop {
  ReadStream stream;
  int64_t n = 0, step = 1;

  int64_t chunks() const { return (n + step - 1) / step; }
};

// Which loop over a stream came behind which. Weights are read in the same order step after step.
class StreamOrder {
 public:
  // Notes that `loop` is next; returns what came behind it the last time, which may be nothing.
  StreamLoop advance(const StreamLoop& loop) {
    if (following_.size() >= kMost) following_.clear();
    if (last_) following_[last_] = loop;
    last_ = loop.stream.data;
    const auto found = following_.find(last_);
    return found == following_.end() ? StreamLoop{} : found->second;
  }

 private:
  static constexpr size_t kMost = size_t{1} << 16;
  std::unordered_map<const void*, StreamLoop> following_;  // by where a stream begins
  const void* last_ = nullptr;
};

// What one thread has yet to bring into its caches.
class ReadAhead {
 public:
  // `number` tells one announcement from the next.
  void aim(uint64_t number, const StreamLoop& loop, int index, int width) {
    if (number == number_) return;
    number_ = number;
    const int64_t first = first_of(loop.chunks(), index, width) * loop.step,
                  last = std::min(loop.n, first_of(loop.chunks(), index + 1, width) * loop.step);
    at_ = static_cast<const char*>(loop.stream.data) + first * loop.stream.bytes;
    left_ = std::min(CpuPool::kReadAhead, (last - first) * loop.stream.bytes);
  }

  template <class Done>
  void run(Done done) {
    constexpr int64_t piece = 16 * kCacheLine;  // a fraction of a microsecond
    for (; left_ > 0 && !done(); left_ -= piece, at_ += piece)
      for (int64_t line = 0; line < std::min(piece, left_); line += kCacheLine)
        __builtin_prefetch(at_ + line, 0, 2);
  }

 private:
  const char* at_ = nullptr;
  int64_t left_ = 0;
  uint64_t number_ = 0;
};

}  // namespace

struct CpuPool::State {
  explicit State(int width) : width(width), shares(static_cast<size_t>(width)) {}

  struct alignas(kCacheLine) Share {
    std::atomic<int64_t> next{0};
    int64_t end = 0;
  };

  const int width;
  std::mutex mutex;
  std::condition_variable wake, finished;
  // These two change under the mutex; threads that read ahead look at them without.
  std::atomic<uint64_t> generation{0};
  std::atomic<int> active{0};       // threads that have joined and not left
  bool stop = false, open = false;  // open: threads may still join the job
  std::exception_ptr error;

  void (*call)(void*, int64_t, int64_t) = nullptr;
  void* body = nullptr;
  int64_t n = 0, step = 1;
  std::vector<Share> shares;  // chunks, of each thread
  StreamLoop coming;
  uint64_t announced = 0;  // how many streams there were: `coming` is of the last
  std::vector<std::thread> threads;

  StreamOrder order;  // of the caller alone, like what follows
  ReadAhead caller_ahead;

  void take_chunks(int index) {
    for (int i = 0; i < width; ++i) {
      Share& share = shares[static_cast<size_t>((index + i) % width)];
      for (int64_t chunk; (chunk = share.next.fetch_add(1, std::memory_order_relaxed)) < share.end;)
        call(body, chunk * step, std::min(n, (chunk + 1) * step));
    }
  }

  void take_chunks_noting_errors(int index) {
    try {
      take_chunks(index);
    } catch (...) {
      for (Share& share : shares) share.next.store(share.end, std::memory_order_relaxed);
      std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  }

  void work(int index) {
    uint64_t seen = 0;
    ReadAhead ahead;
    while (true) {
      ahead.run([&] { return generation.load(std::memory_order_relaxed) != seen; });
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return generation.load(std::memory_order_relaxed) != seen; });
      if (stop) return;
      seen = generation.load(std::memory_order_relaxed);
      ahead.aim(announced, coming, index, width);
      if (!open) continue;
      active.fetch_add(1, std::memory_order_relaxed);
      lock.unlock();
      take_chunks_noting_errors(index);
      lock.lock();
      if (active.fetch_sub(1, std::memory_order_relaxed) == 1) finished.notify_one();
    }
  }

  void end() {
    {
      std::lock_guard lock(mutex);
      stop = true;
      generation.fetch_add(1, std::memory_order_relaxed);
    }
    wake.notify_all();
    for (auto& thread : threads) thread.join();
  }

  // Of the caller: no chunk is left, so only threads that hold one are waited for, not those that have yet to
  // wake.
  void wait_for_others() {
    std::unique_lock lock(mutex);
    open = false;
    const auto done = [&] { return active.load(std::memory_order_relaxed) == 0; };
    if (done()) return;
    lock.unlock();
    caller_ahead.run(done);
    lock.lock();
    finished.wait(lock, done);
  }
};

CpuPool::CpuPool(int width) : width_(std::max(1, width)) {
  if (width_ == 1) return;
  state_ = std::make_unique<State>(width_);
  try {
    for (int i = 1; i < width_; ++i)
      state_->threads.emplace_back([state = state_.get(), i] { state->work(i); });
  } catch (...) {  // the system gives no more threads
    state_->end();
    throw;
  }
}

CpuPool::~CpuPool() {
  if (state_) state_->end();
}

void CpuPool::run(int64_t n, int64_t grain, Call call, const void* body) { run(n, grain, {}, call, body); }

void CpuPool::run(int64_t n, int64_t grain, const ReadStream& stream, Call call, const void* body) {
  State& s = *state_;
  const StreamLoop loop{stream, n, chunk_size(n, grain)};
  StreamLoop coming;
  if (stream.data) coming = s.order.advance(loop);
  {
    std::lock_guard lock(s.mutex);
    s.call = call;
    s.body = const_cast<void*>(body);
    s.n = n;
    s.step = loop.step;
    for (int i = 0; i < width_; ++i) {
      State::Share& share = s.shares[static_cast<size_t>(i)];
      share.next.store(first_of(loop.chunks(), i, width_), std::memory_order_relaxed);
      share.end = first_of(loop.chunks(), i + 1, width_);
    }
    if (stream.data) {
      s.coming = coming;
      s.caller_ahead.aim(++s.announced, coming, 0, width_);
    }
    s.error = nullptr;
    s.open = true;
    s.generation.fetch_add(1, std::memory_order_relaxed);
  }
  s.wake.notify_all();
  s.take_chunks_noting_errors(0);
  s.wait_for_others();
  if (s.error) std::rethrow_exception(s.error);
}

int available_cores() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace megatron
