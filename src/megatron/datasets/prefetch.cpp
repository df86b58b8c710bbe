#include "megatron/datasets/prefetch.h"

#include <condition_variable>
#include <deque>
#include <future>
#include <map>
#include <mutex>
#include <thread>

namespace megatron {
namespace {

using Batches = std::shared_ptr<const std::vector<Batch>>;

// A request that owns its shares.
struct WantedStep {
  int64_t iteration, consumed, samples;
  std::vector<Share> shares;

  bool same_step(const WantedStep& other) const {
    return iteration == other.iteration && consumed == other.consumed && shares == other.shares;
  }
  StepRequest request() const { return {iteration, consumed, shares, samples}; }
};

// A step that is made, or being made, or waiting for a thread.
struct PreparedStep {
  WantedStep wanted;
  std::promise<Batches> promise;
  std::shared_future<Batches> result{promise.get_future()};
  bool begun = false;
};
using Prepared = std::shared_ptr<PreparedStep>;

class PrefetchedSource final : public BatchSource {
 public:
  PrefetchedSource(std::shared_ptr<const BatchSource> source, int depth, int threads)
      : source_(std::move(source)), depth_(depth) {
    for (int i = 0; i < threads; ++i) threads_.emplace_back([this] { work(); });
  }
  ~PrefetchedSource() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  int64_t length() const override { return source_->length(); }
  int64_t samples() const override { return source_->samples(); }

  std::vector<Batch> step(const StepRequest& request) const override { return *shared_step(request); }

  Batches shared_step(const StepRequest& request) const override {
    Prepared step;
    bool own = false;   // whether this thread makes it: nobody has begun
    bool more = false;  // whether there is something to do ahead
    {
      const std::lock_guard lock(mutex_);
      Replica& replica = replicas_[request.shares.empty() ? 0 : request.shares[0].first];
      WantedStep wanted{request.iteration,
                        request.consumed,
                        request.samples,
                        {request.shares.begin(), request.shares.end()}};
      step = prepare(replica, wanted);
      own = !step->begun;
      step->begun = true;
      foresee(replica, std::move(wanted));
      more = !queue_.empty();
    }
    if (more) wake_.notify_all();
    if (own) make(*step);
    return step->result.get();
  }

 private:
  struct Replica {
    std::deque<Prepared> steps;  // oldest first; those of the ranks behind the newest one are kept
    int64_t iteration = -1, consumed = 0, stride = 0;
  };

  Prepared prepare(Replica& replica, const WantedStep& wanted) const {
    for (const Prepared& step : replica.steps)
      if (step->wanted.same_step(wanted)) return step;
    replica.steps.push_back(std::make_shared<PreparedStep>(PreparedStep{.wanted = wanted}));
    if (replica.steps.size() > static_cast<size_t>(depth_) + 3) replica.steps.pop_front();
    return replica.steps.back();
  }

  // Queues the steps behind the newest one. Samples of a global batch are known, or what two steps lie apart.
  void foresee(Replica& replica, WantedStep step) const {
    if (step.iteration <= replica.iteration) return;
    if (step.iteration == replica.iteration + 1) replica.stride = step.consumed - replica.consumed;
    replica.iteration = step.iteration;
    replica.consumed = step.consumed;
    const int64_t stride = step.samples > 0 ? step.samples : replica.stride;
    for (int i = 0; i < depth_ && stride > 0; ++i) {
      ++step.iteration;
      step.consumed += stride;
      if (source_->samples() >= 0 && step.consumed + stride > source_->samples()) return;
      if (Prepared next = prepare(replica, step); !next->begun) queue_.push_back(std::move(next));
    }
  }

  void make(PreparedStep& step) const {
    try {
      step.promise.set_value(
          std::make_shared<const std::vector<Batch>>(source_->step(step.wanted.request())));
    } catch (...) {
      step.promise.set_exception(std::current_exception());
    }
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (ends_) return;
      const Prepared step = std::move(queue_.front());
      queue_.pop_front();
      if (step->begun) continue;
      step->begun = true;
      lock.unlock();
      make(*step);
      lock.lock();
    }
  }

  std::shared_ptr<const BatchSource> source_;
  int depth_;
  mutable std::mutex mutex_;
  mutable std::condition_variable wake_;
  mutable std::map<int64_t, Replica> replicas_;  // by the first sample of their share
  mutable std::deque<Prepared> queue_;
  bool ends_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

std::shared_ptr<const BatchSource> prefetched(std::shared_ptr<const BatchSource> source, int depth,
                                              int threads) {
  if (!source || depth <= 0 || threads <= 0) return source;
  return std::make_shared<const PrefetchedSource>(std::move(source), depth, threads);
}

}  // namespace megatron
