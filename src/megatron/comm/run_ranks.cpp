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

void run_rank(const RankHost& host, int rank, const RankFunction& fn, FirstError& first) {
  try {
    ProcessGroup group = host.group(rank);
    group.detach();  // it may have served a run before
    fn(rank, group);
    return host.retire(rank);
  } catch (const CommAborted&) {
    first.note(std::current_exception(), true);
  } catch (const std::exception& error) {
    first.note(std::current_exception(), false);
    host.abort(fmt::format("rank {} stopped: {}", rank, error.what()));
  } catch (...) {
    first.note(std::current_exception(), false);
    host.abort(fmt::format("rank {} stopped", rank));
  }
  host.retire(rank);
}

}  // namespace

void run_rank_threads(const RankHost& host, int first_rank, int count, const RankFunction& fn) {
  FirstError first;
  std::vector<std::thread> threads;
  try {
    for (int rank = first_rank; rank < first_rank + count; ++rank)
      threads.emplace_back([&, rank] { run_rank(host, rank, fn, first); });
  } catch (const std::exception& error) {
    first.note(std::current_exception(), false);
    host.abort(fmt::format("only {} of {} ranks could be started: {}", threads.size(), count, error.what()));
  }
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

void run_ranks(int ranks, const RankFunction& fn, const RunOptions& options) {
  require(ranks >= 1, "run_ranks: {} ranks", ranks);
  const auto world = std::make_shared<ThreadWorld>(ranks, options.timeout);
  run_rank_threads(
      {[&](int rank) { return thread_group(world, rank); },
       [&](const std::string& reason) { world->abort(reason); }, [&](int rank) { world->retire(rank); }},
      0, ranks, fn);
}

}  // namespace megatron
