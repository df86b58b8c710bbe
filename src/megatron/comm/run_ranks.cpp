#include "megatron/comm/run_ranks.h"

#include <exception>
#include <mutex>
#include <thread>

#include "megatron/comm/threads/thread_group.h"

namespace megatron {
namespace {

// The error that the caller should see: the first that is not the echo of another rank's.
class FirstError {
 public:
  void note(std::exception_ptr error, bool echo) {
    std::lock_guard lock(mutex_);
    if (error_ && (echo || !echo_)) return;
    error_ = std::move(error);
    echo_ = echo;
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool echo_ = false;
};

void run_rank(const std::shared_ptr<ThreadWorld>& world, int rank,
              const std::function<void(int, ProcessGroup&)>& fn, FirstError& first) {
  try {
    ProcessGroup group = thread_group(world, rank);
    fn(rank, group);
    return world->retire(rank);
  } catch (const CommAborted&) {
    first.note(std::current_exception(), true);
  } catch (const std::exception& error) {
    first.note(std::current_exception(), false);
    world->abort(fmt::format("rank {} stopped: {}", rank, error.what()));
  } catch (...) {
    first.note(std::current_exception(), false);
    world->abort(fmt::format("rank {} stopped", rank));
  }
  world->retire(rank);
}

}  // namespace

void run_ranks(int ranks, const std::function<void(int, ProcessGroup&)>& fn, const RunOptions& options) {
  require(ranks >= 1, "run_ranks: {} ranks", ranks);
  const auto world = std::make_shared<ThreadWorld>(ranks, options.timeout);
  FirstError first;
  std::vector<std::thread> threads;
  try {
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] { run_rank(world, rank, fn, first); });
  } catch (const std::exception& error) {
    first.note(std::current_exception(), false);
    world->abort(
        fmt::format("only {} of {} ranks could be started: {}", threads.size(), ranks, error.what()));
  }
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

}  // namespace megatron
