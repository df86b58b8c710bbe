#include "megatron/comm/nccl/nccl_watch.h"

#include <fmt/ranges.h>

namespace megatron {

void check_nccl(ncclResult_t result, const char* doing) {
  if (result == ncclSuccess || result == ncclInProgress) return;
  throw CommError(fmt::format("NCCL: {} failed: {} ({}); set NCCL_DEBUG=INFO to see more", doing,
                              ncclGetErrorString(result), ncclGetLastError(nullptr)));
}

NcclWatch::NcclWatch(std::shared_ptr<GroupBackend> world, std::chrono::milliseconds timeout)
    : world_(std::move(world)), timeout_(timeout) {
  thread_ = std::thread([this] { watch(); });
}

NcclWatch::~NcclWatch() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::shared_ptr<NcclComm> NcclWatch::adopt(ncclComm_t native) {
  std::lock_guard lock(mutex_);
  comms_.insert(native);
  return {new NcclComm{native}, [this](NcclComm* comm) {
            release(comm->native);
            delete comm;
          }};
}

void NcclWatch::release(ncclComm_t native) {
  std::lock_guard lock(mutex_);
  if (comms_.erase(native) > 0) ncclCommDestroy(native);
}

void NcclWatch::add(std::shared_ptr<NcclOp> op) {
  {
    std::lock_guard lock(mutex_);
    under_way_.push_back(std::move(op));
  }
  wake_.notify_all();
}

void NcclWatch::require_running() {
  const std::string reason = world_->abort_reason();
  if (!reason.empty()) throw CommAborted(reason);
}

void NcclWatch::watch() {
  constexpr auto pause = std::chrono::milliseconds(50);
  std::unique_lock lock(mutex_);
  while (!closing_) {
    if (under_way_.empty() && !stopped_ && comms_.empty())
      wake_.wait(lock);
    else
      wake_.wait_for(lock, pause);
    if (stopped_ || closing_) {
      if (stopped_) under_way_.clear();
      continue;
    }
    const std::string problem = problem_locked(lock);
    if (problem.empty()) continue;
    world_->abort(problem);  // the first reason stays, and every rank learns it
    stop_locked();
  }
}

// What should end the world; "" where all is well. Forgets operations that have ended.
std::string NcclWatch::problem_locked(std::unique_lock<std::mutex>& lock) {
  if (std::string reason = world_->abort_reason(); !reason.empty()) return reason;
  for (ncclComm_t comm : comms_) {
    ncclResult_t state = ncclSuccess;
    ncclCommGetAsyncError(comm, &state);
    if (state != ncclSuccess && state != ncclInProgress)
      return fmt::format("NCCL found a fault: {} ({})", ncclGetErrorString(state), ncclGetLastError(comm));
  }
  const auto now = std::chrono::steady_clock::now();
  for (auto op = under_way_.begin(); op != under_way_.end();) {
    if ((*op)->finished.done()) {
      (*op)->control->note_done((*op)->entry);
      op = under_way_.erase(op);
      continue;
    }
    if (now - (*op)->begun > timeout_) {
      const std::shared_ptr<NcclOp> late = *op;
      lock.unlock();  // asking the others takes a while
      std::string text = tell_late(*late);
      lock.lock();
      return text;
    }
    ++op;
  }
  return {};
}

// Which ranks have begun it is told by the others' flight records.
std::string NcclWatch::tell_late(NcclOp& op) const {
  const std::vector<int>& ranks = op.control->world_ranks();
  const CommRequest& request = op.requests.front();
  std::string text = fmt::format(
      "{} #{} on group {} (ranks {}) did not end within {:.1f} s on the GPU of rank {}, called at {}",
      describe(CommCall(request)), op.sequence, op.control->name(), fmt::join(ranks, " "),
      static_cast<double>(timeout_.count()) / 1e3, ranks[static_cast<size_t>(op.control->rank())],
      describe(request.where));
  for (size_t member = 0; member < ranks.size(); ++member)
    text += fmt::format("\n  rank {}: {}", ranks[member], op.control->last_calls(static_cast<int>(member)));
  return text;
}

void NcclWatch::stop_locked() {
  stopped_ = true;
  for (ncclComm_t comm : comms_) ncclCommAbort(comm);
  comms_.clear();
  under_way_.clear();
}

}  // namespace megatron
