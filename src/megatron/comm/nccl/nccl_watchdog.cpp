#include "megatron/comm/nccl/nccl_watchdog.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <span>

#include "megatron/comm/processes/frame.h"

namespace megatron {

bool failed(ncclResult_t result) { return result != ncclSuccess && result != ncclInProgress; }

namespace {

constexpr auto kPause = std::chrono::milliseconds(50);
constexpr auto kToTell = std::chrono::seconds(10);     // what asking every rank takes at most
constexpr auto kWithinNccl = std::chrono::seconds(5);  // what a call takes at most that is not stuck
constexpr auto kToEnd = std::chrono::seconds(20);      // what ending communicators takes at most

ncclResult_t state_of(ncclComm_t comm) {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm, &state);
  return failed(asked) ? asked : state;
}

std::string tell_failure(ncclResult_t result, const std::string& doing) {
  return fmt::format("NCCL: {} failed: {} ({}); set NCCL_DEBUG=INFO to see more", doing,
                     ncclGetErrorString(result), ncclGetLastError(nullptr));
}

// At once: what one of them frees waits for the kernels of all.
void abort_all(const std::vector<ncclComm_t>& comms) {
  std::vector<std::thread> threads;
  for (ncclComm_t comm : comms) threads.emplace_back([comm] { ncclCommAbort(comm); });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

void check_nccl(ncclResult_t result, const char* doing) {
  if (failed(result)) throw CommError(tell_failure(result, doing));
}

void NcclOp::compare(GroupBackend& calls, const CommRequest& request) {
  own.signature = signature_of(request);
  const std::string text = fmt::format("{} at {}", describe(call), describe(call.where));
  std::copy_n(text.data(), std::min(text.size(), sizeof own.text - 1), own.text);
  const int size = static_cast<int>(calls.world_ranks().size()), rank = calls.rank();
  CommRequest messages[] = {{.kind = CommKind::Send,
                             .input = Tensor::wrap(&own, {sizeof own}, DType::U8),
                             .peer = (rank + 1) % size,
                             .where = request.where},
                            {.kind = CommKind::Recv,
                             .output = Tensor::wrap(&other, {sizeof other}, DType::U8),
                             .peer = (rank + size - 1) % size,
                             .where = request.where}};
  comparison = calls.start(messages);
}

std::string NcclOp::mismatch() {
  if (!comparison || !comparison->done()) return {};
  comparison->wait();
  comparison.reset();
  if (own.signature == other.signature) return {};
  const std::vector<int>& ranks = control->world_ranks();
  const auto self = static_cast<size_t>(control->rank());
  return fmt::format(
      "comm mismatch on group {} (ranks {}): operation #{}: rank {} called {}, but rank {} called {}",
      control->name(), fmt::join(ranks, " "), sequence, ranks[(self + ranks.size() - 1) % ranks.size()],
      other.text, ranks[self], own.text);
}

NcclWatchdog::NcclWatchdog(std::shared_ptr<GroupBackend> world, std::chrono::milliseconds timeout)
    : world_(std::move(world)), timeout_(timeout), patience_(timeout) {
  watching_ = std::thread([this] { watchdog(); });
  finding_ = std::thread([this] { find_ended(); });
}

NcclWatchdog::~NcclWatchdog() {
  {
    std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_.notify_all();
  watching_.join();
  finding_.join();
  if (!stopped_) finish();
}

std::shared_ptr<NcclCommunicator> NcclWatchdog::connect(const ProcessGroup& control,
                                                        const std::shared_ptr<DeviceRuntime>& runtime) {
  ncclUniqueId id{};
  if (control.rank() == 0) check_nccl(ncclGetUniqueId(&id), "making an id");
  control.broadcast(Tensor::wrap(&id, {sizeof id}, DType::U8), 0).wait();
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  const auto communicator = std::make_shared<NcclCommunicator>(runtime);
  {
    std::lock_guard calls(calls_);
    if (running()) {
      check_nccl(ncclCommInitRankConfig(&communicator->comm, control.size(), id, control.rank(), &config),
                 "connecting the GPUs");
      std::lock_guard lock(mutex_);
      channels_.push_back(communicator);
    }
  }
  wake_.notify_all();
  settle(communicator->comm, fmt::format("connecting the GPUs of group {}", control.name()), timeout_);
  return communicator;
}

void NcclWatchdog::add(std::shared_ptr<NcclOp> op) {
  {
    std::lock_guard lock(mutex_);
    under_way_.push_back(std::move(op));
  }
  wake_.notify_all();
}

void NcclWatchdog::require_running() {
  if (const std::string reason = world_->abort_reason(); !reason.empty()) leave(reason);
}

void NcclWatchdog::leave(const std::string& reason) {
  world_->abort(reason);  // the first reason stays
  std::unique_lock lock(mutex_);
  wake_.notify_all();
  wake_.wait_for(lock, kToEnd, [&] { return ended_ || (stopped_ && captures_ > 0); });
  throw CommAborted(world_->abort_reason());
}

void NcclWatchdog::call(NcclCommunicator& communicator, const char* doing,
                        const std::function<ncclResult_t()>& fn) {
  ncclResult_t result = ncclSuccess;
  {
    std::lock_guard calls(calls_);
    if (running()) result = fn();
  }
  if (failed(result)) leave(tell_failure(result, doing));
  // Where others do not come, the watchdog stops the world and tells more.
  settle(communicator.comm, doing, timeout_ + kToTell);
}

void NcclWatchdog::unless_stopped(const std::function<void()>& fn) {
  {
    std::lock_guard calls(calls_);
    if (running()) fn();
  }
  require_running();
}

void NcclWatchdog::hold_capture() {
  std::lock_guard lock(mutex_);
  ++captures_;
}

void NcclWatchdog::drop_capture() {
  std::lock_guard lock(mutex_);
  --captures_;
}

// NCCL goes on in a thread of its own, until it has met the others. What it fails at is told by the watchdog,
// which asks the others what they do.
void NcclWatchdog::settle(ncclComm_t comm, const std::string& doing, std::chrono::milliseconds patience) {
  const auto deadline = Clock::now() + patience;
  auto pause = std::chrono::microseconds(10);
  while (true) {
    require_running();
    ncclResult_t state = ncclInProgress;
    {
      std::lock_guard lock(mutex_);
      if (running()) state = state_of(comm);  // where it does not, the communicator may be gone
    }
    if (state == ncclSuccess) return;
    if (Clock::now() > deadline)
      leave(failed(state)
                ? tell_failure(state, doing)
                : fmt::format("NCCL: {} did not end within {:.1f} s: can the GPUs reach each other? "
                              "NCCL_DEBUG=INFO tells more",
                              doing, static_cast<double>(patience.count()) / 1e3));
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 3 / 2, std::chrono::microseconds(1000));
  }
}

void NcclWatchdog::watchdog() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !stopped_) {
    if (channels_.empty())
      wake_.wait(lock);
    else
      wake_.wait_for(lock, kPause);
    if (closing_) return;
    std::string problem;
    try {
      problem = problem_locked(lock);
    } catch (const std::exception& error) {  // of the world that the GPUs met through
      problem = error.what();
      if (!lock) lock.lock();
    }
    if (problem.empty()) continue;
    world_->abort(problem);  // the first reason stays, and every rank learns it
    stop(lock);
  }
}

void NcclWatchdog::find_ended() {
  std::unique_lock lock(mutex_);
  while (!closing_ && !stopped_) {
    if (under_way_.empty())
      wake_.wait(lock);
    else
      wake_.wait_for(lock, kPause);
    std::vector<std::shared_ptr<NcclOp>> asked, over;
    for (const auto& op : under_way_)
      if (op->queued && !op->ended) asked.push_back(op);
    lock.unlock();
    std::string trouble;
    try {
      std::erase_if(asked, [](const auto& op) { return !op->finished.done(); });
    } catch (const std::exception& error) {  // the GPU itself is in trouble
      trouble = error.what();
      asked.clear();
    }
    lock.lock();
    trouble_ = trouble;
    for (const auto& op : asked) op->ended = true;
    for (auto op = under_way_.begin(); op != under_way_.end();) {
      const bool done = (*op)->ended && !(*op)->comparison;
      if (done) over.push_back(*op);
      op = done ? under_way_.erase(op) : std::next(op);
    }
    lock.unlock();
    for (const auto& op : over) op->control->note_done(op->entry);
    asked.clear();
    over.clear();  // their events are CUDA's
    lock.lock();
  }
}

// What should end the world; "" where all is well.
std::string NcclWatchdog::problem_locked(std::unique_lock<std::mutex>& lock) {
  if (std::string reason = world_->abort_reason(); !reason.empty()) return reason;
  if (std::unique_lock calls(calls_, std::try_to_lock); calls)  // asking changes what a call works on
    for (ncclComm_t comm : comms())
      if (const ncclResult_t state = state_of(comm); failed(state)) {
        calls.unlock();
        return tell_first(lock, fmt::format("NCCL found a fault, {} ({})", ncclGetErrorString(state),
                                            ncclGetLastError(comm)));
      }
  if (!trouble_.empty()) return tell_first(lock, trouble_);
  const auto now = Clock::now();
  for (auto op = under_way_.begin(); op != under_way_.end(); ++op) {
    if (std::string text = (*op)->mismatch(); !text.empty()) return text;
    const std::chrono::milliseconds patience = patience_;
    if (now - (*op)->begun <= patience || ((*op)->ended && !(*op)->comparison)) continue;
    under_way_.splice(under_way_.begin(), under_way_, op);
    return tell_first(
        lock, fmt::format("it did not end within {:.1f} s", static_cast<double>(patience.count()) / 1e3));
  }
  return {};
}

// What went wrong, with the first operation that is under way here.
std::string NcclWatchdog::tell_first(std::unique_lock<std::mutex>& lock, const std::string& what) {
  const int self = world_->world_ranks()[static_cast<size_t>(world_->rank())];
  if (under_way_.empty()) return fmt::format("rank {}: {}", self, what);
  const std::shared_ptr<NcclOp> op = under_way_.front();
  lock.unlock();  // asking the others takes a while
  std::string text = tell(*op, what);
  lock.lock();
  return text;
}

// Which ranks have begun it is told by the others' flight records; where many are silent, not all are asked.
std::string NcclWatchdog::tell(NcclOp& op, const std::string& what) const {
  const std::vector<int>& ranks = op.control->world_ranks();
  std::string text =
      fmt::format("{} #{} on group {} (ranks {}) cannot end on the GPU of rank {}, which called it at {}: {}",
                  describe(op.call), op.sequence, op.control->name(), fmt::join(ranks, " "),
                  ranks[static_cast<size_t>(op.control->rank())], describe(op.call.where), what);
  const auto deadline = Clock::now() + kToTell;
  for (size_t member = 0; member < ranks.size(); ++member) {
    if (Clock::now() > deadline)
      return text + fmt::format("\n  ranks {}: not asked", fmt::join(std::span(ranks).subspan(member), " "));
    text += fmt::format("\n  rank {}: {}", ranks[member], op.control->last_calls(static_cast<int>(member)));
  }
  return text;
}

// The rank may be within NCCL: it is let out first, unless it is stuck there, and nothing but this helps it.
void NcclWatchdog::stop(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::unique_lock calls(calls_, kWithinNccl);
  lock.lock();
  stopped_ = true;
  const std::vector<ncclComm_t> all = comms();
  wake_.notify_all();
  lock.unlock();
  abort_all(all);
  lock.lock();
  ended_ = true;
  wake_.notify_all();
}

std::vector<ncclComm_t> NcclWatchdog::comms() const {
  std::vector<ncclComm_t> result;
  for (const auto& communicator : channels_) result.push_back(communicator->comm);
  return result;
}

// At the end of the rank, by itself: what is under way ends, and all communicators with it; none of that
// where something went wrong, here or elsewhere.
void NcclWatchdog::finish() {
  const auto deadline = Clock::now() + timeout_;
  bool sound = std::uncaught_exceptions() == 0;
  if (!sound)  // the others have to know before communicators can end
    world_->abort(fmt::format("rank {} left", world_->world_ranks()[static_cast<size_t>(world_->rank())]));
  for (const auto& op : under_way_) {
    if (!op->comparison) continue;
    try {
      if (sound) op->comparison->wait();
    } catch (const std::exception&) {
      sound = false;
    }
  }
  const std::vector<ncclComm_t> all = comms();
  const auto going_on = [&] { return sound && running() && Clock::now() < deadline; };
  if (going_on())
    for (ncclComm_t comm : all) sound = sound && !failed(ncclCommFinalize(comm));
  for (ncclComm_t comm : all) {
    while (going_on() && state_of(comm) == ncclInProgress)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    sound = sound && state_of(comm) == ncclSuccess;
  }
  if (!going_on()) return abort_all(all);
  for (ncclComm_t comm : all) ncclCommDestroy(comm);
}

}  // namespace megatron
