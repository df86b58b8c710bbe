#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace megatron {

// What the indices of a loop read, one behind the other: the weights of a GEMM with few rows, say.
struct ReadStream {
  const void* data = nullptr;
  int64_t bytes = 0;  // of an index
};

// The threads one rank may use for its CPU kernels. Ranks that share a process each get a pool of cores/ranks
// threads, so that they never oversubscribe; a pool of width 1 has no threads of its own. Idle threads sleep.
// Each thread begins with a share of the chunks that is its own, and takes those of others when it is
// through.
class CpuPool {
 public:
  explicit CpuPool(int width);
  ~CpuPool();
  CpuPool(const CpuPool&) = delete;
  CpuPool& operator=(const CpuPool&) = delete;

  int width() const { return width_; }

  // Runs body(begin, end) over [0, n) in chunks of at least `grain`, this thread helping; returns when all is
  // done. The chunks depend on n, grain and width alone, so per-chunk partial results can be combined in a
  // fixed order.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, Body&& body) {
    if (n <= 0) return;
    if (width_ == 1 || n <= grain) return static_cast<void>(body(int64_t{0}, n));
    run(n, grain, &call<std::remove_reference_t<Body>>, &body);
  }

  // The same where the indices read `stream`. The pool remembers which stream came behind which. A thread
  // that has to wait, for others or for work, first brings the beginning of its share of the stream to come
  // into its caches: kReadAhead bytes at most, and then it sleeps. It only prefetches, which memory that was
  // given back does not mind.
  template <class Body>
  void parallel_for(int64_t n, int64_t grain, const ReadStream& stream, Body&& body) {
    if (n <= 0) return;
    if (width_ == 1 || n <= grain) return static_cast<void>(body(int64_t{0}, n));
    run(n, grain, stream, &call<std::remove_reference_t<Body>>, &body);
  }
  static constexpr int64_t kReadAhead = int64_t{1} << 19;

  // How many chunks parallel_for makes of n.
  int64_t chunks(int64_t n, int64_t grain) const {
    return (n + chunk_size(n, grain) - 1) / chunk_size(n, grain);
  }
  int64_t chunk_size(int64_t n, int64_t grain) const {
    if (width_ == 1 || n <= grain) return std::max<int64_t>(n, 1);
    int64_t even = (n + 4 * width_ - 1) / (4 * width_);  // a few chunks per thread even out unequal speeds
    return std::max(grain, even);
  }

 private:
  template <class Body>
  static void call(void* body, int64_t begin, int64_t end) {
    (*static_cast<std::add_pointer_t<Body>>(body))(begin, end);
  }
  using Call = void (*)(void*, int64_t, int64_t);
  void run(int64_t n, int64_t grain, Call call, const void* body);
  void run(int64_t n, int64_t grain, const ReadStream& stream, Call call, const void* body);

  struct State;
  int width_;
  std::unique_ptr<State> state_;
};

int available_cores();  // those this process may run on

}  // namespace megatron
