#include "megatron/comm/threads/thread_world.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "megatron/comm/gpu_mover.h"
#include "megatron/comm/patience.h"
#include "megatron/kernels/gpu_memory.h"

namespace megatron {
namespace {

// Below this the last rank to come does all the work: waking other threads would take longer.
constexpr size_t kSmallBytes = 64 << 10;

std::vector<int> all_members(const ThreadGroupState& group) {
  std::vector<int> members(group.world_ranks.size());
  std::iota(members.begin(), members.end(), 0);
  return members;
}

std::shared_ptr<ThreadGroupState> make_group(std::string name, std::vector<int> world_ranks) {
  auto group = std::make_shared<ThreadGroupState>();
  group->name = std::make_shared<const std::string>(std::move(name));
  group->next_sequence.assign(world_ranks.size(), 0);
  group->world_ranks = std::move(world_ranks);
  return group;
}

std::string tell_group(const ThreadGroupState& group) {
  return fmt::format("group {} (ranks {})", *group.name, fmt::join(group.world_ranks, " "));
}

bool on_gpu(const CommRequest& request) {
  return request.tensor().defined() && request.tensor().device().is_cuda();
}

void move_all(const ThreadOp& op, const Mover& mover) {
  const CommKind kind = op.requests[0].kind;
  if (kind == CommKind::Send || kind == CommKind::Recv)
    return copy_message(op.requests[0], op.requests[1], mover);
  for (size_t part = 0; part < op.members.size(); ++part)
    run_part(op.requests, static_cast<int>(part), mover);
}

// Queues the operation behind what its ranks had queued before they began it.
void queue_on_gpu(ThreadOp& op, const RankQueue& queue) {
  std::optional<Stream>& stream = op.group->stream;
  if (!stream) stream.emplace(queue.runtime);
  std::vector<int> gpus;
  for (const CommRequest& request : op.requests) gpus.push_back(request.tensor().device().index);
  if (std::count(gpus.begin(), gpus.end(), gpus[0]) != static_cast<std::ptrdiff_t>(gpus.size()))
    let_gpus_reach_each_other(gpus);
  for (const Event& event : op.ready) event.wait(*stream);
  move_all(op, GpuMover(*stream));
  op.carried_out.emplace(queue.runtime);
  op.carried_out->record(*stream);
}

}  // namespace

ThreadOp::ThreadOp(ThreadGroupState& group, uint64_t sequence, std::vector<int> members)
    : group(&group), sequence(sequence), members(std::move(members)) {
  requests.resize(this->members.size());
  arrived.resize(this->members.size());
  taken.resize(this->members.size());
}

ThreadWorld::ThreadWorld(int size, std::chrono::milliseconds timeout) {
  std::vector<int> everyone(static_cast<size_t>(size));
  std::iota(everyone.begin(), everyone.end(), 0);
  for (int i = 0; i < size; ++i) ranks_.emplace_back().timeout = timeout;
  world_group_ = make_group("world", std::move(everyone));
}

std::vector<ThreadWorld::Ticket> ThreadWorld::begin(const std::shared_ptr<ThreadGroupState>& group, int rank,
                                                    std::span<CommRequest> requests,
                                                    const std::shared_ptr<RankQueue>& queue) {
  for (const CommRequest& request : requests)
    if (on_gpu(request)) queue->of(request);  // refuses before anybody waits for this rank
  std::vector<Ticket> tickets;
  Lock lock(mutex_);
  for (CommRequest& request : requests) {
    if (aborted_) throw CommAborted(reason_);
    auto [op, member] = is_message(request.kind) ? place_message(group, rank, request)
                                                 : place_collective(group, rank, request);
    Rank& self = rank_of(*op, member);
    tickets.push_back({group, op, member, self.recorder.begin(group->name, op->sequence, request), queue});
    if (on_gpu(request)) {
      op->on_gpu = true;
      Event& event = op->ready.emplace_back(queue->runtime);
      event.record(queue->of(request));
    }
    op->requests[member] = std::move(request);
    op->arrived[member] = 1;
    ++op->arrivals;
  }
  // Only now: every message of an exchange stands before any of them is carried out.
  for (const Ticket& ticket : tickets)
    if (ticket.op->complete()) settle(ticket.op, *queue, lock);
  return tickets;
}

std::pair<std::shared_ptr<ThreadOp>, size_t> ThreadWorld::place_collective(
    const std::shared_ptr<ThreadGroupState>& group, int rank, const CommRequest& request) {
  const size_t member = static_cast<size_t>(rank);
  const uint64_t sequence = group->next_sequence[member]++;
  std::shared_ptr<ThreadOp>& op = group->open[sequence];
  if (!op) op = std::make_shared<ThreadOp>(*group, sequence, all_members(*group));
  check_same_call(*op, member, request);
  const std::shared_ptr<ThreadOp> result = op;
  if (op->arrivals + 1 == op->members.size()) group->open.erase(sequence);
  return {result, member};
}

std::pair<std::shared_ptr<ThreadOp>, size_t> ThreadWorld::place_message(
    const std::shared_ptr<ThreadGroupState>& group, int rank, const CommRequest& request) {
  const bool send = request.kind == CommKind::Send;
  const size_t member = send ? 0 : 1;
  const int from = send ? rank : request.peer, to = send ? request.peer : rank;
  ThreadGroupState::Channel& channel = group->channels[{from, to}];
  const uint64_t sequence = send ? channel.sent++ : channel.received++;
  if (channel.open.empty() || channel.open.front()->arrived[member]) {
    channel.open.push_back(std::make_shared<ThreadOp>(*group, sequence, std::vector<int>{from, to}));
    return {channel.open.back(), member};
  }
  const std::shared_ptr<ThreadOp> op = channel.open.front();
  channel.open.pop_front();
  const Tensor &sent = send ? request.input : op->requests[0].input,
               &received = send ? op->requests[1].output : request.output;
  if (sent.dtype() != received.dtype() || sent.numel() != received.numel() ||
      sent.device().type != received.device().type) {
    const CommRequest &sender = send ? request : op->requests[0],
                      &receiver = send ? op->requests[1] : request;
    reject(fmt::format(
        "comm mismatch on {}: message #{}: rank {} called {} at {}, but rank {} called {} at {}",
        tell_group(*group), sequence, group->world_ranks[static_cast<size_t>(from)],
        describe(CommCall(sender)), describe(sender.where), group->world_ranks[static_cast<size_t>(to)],
        describe(CommCall(receiver)), describe(receiver.where)));
  }
  return {op, member};
}

void ThreadWorld::check_same_call(const ThreadOp& op, size_t member, const CommRequest& request) {
  const auto other = std::find(op.arrived.begin(), op.arrived.end(), 1);
  if (other == op.arrived.end()) return;
  const size_t first = static_cast<size_t>(other - op.arrived.begin());
  const CommRequest& expected = op.requests[first];
  bool same = expected.kind == request.kind && expected.op == request.op && expected.peer == request.peer &&
              expected.name == request.name;
  if (same && expected.tensor().defined()) {
    const auto numel = [](const Tensor& tensor) { return tensor.defined() ? tensor.numel() : 0; };
    same = expected.tensor().dtype() == request.tensor().dtype() &&
           expected.tensor().device().type == request.tensor().device().type &&
           (request.kind == CommKind::AllToAll || numel(expected.input) == numel(request.input));
  }
  if (same) return;
  const auto world = [&](size_t index) { return op.group->world_ranks[index]; };
  reject(fmt::format(
      "comm mismatch on {}: operation #{}: rank {} called {} at {}, but rank {} called {} at {}",
      tell_group(*op.group), op.sequence, world(member), describe(CommCall(request)), describe(request.where),
      world(first), describe(CommCall(expected)), describe(expected.where)));
}

// What only all requests together can show.
void ThreadWorld::check_complete(const ThreadOp& op) {
  if (op.requests[0].kind != CommKind::AllToAll) return;
  for (size_t from = 0; from < op.members.size(); ++from)
    for (size_t to = 0; to < op.members.size(); ++to) {
      const int64_t sent = op.requests[from].send_elements[to],
                    received = op.requests[to].recv_elements[from];
      if (sent != received)
        reject(fmt::format(
            "comm mismatch on {}: all_to_all #{}: rank {} sends {} elements to rank {} (at {}), which "
            "expects {} (at {})",
            tell_group(*op.group), op.sequence, op.group->world_ranks[from], sent, op.group->world_ranks[to],
            describe(op.requests[from].where), received, describe(op.requests[to].where)));
    }
}

// Every request is here: finish small operations at once, call other threads for large ones.
void ThreadWorld::settle(const std::shared_ptr<ThreadOp>& op, const RankQueue& queue, Lock& lock) {
  if (op->settled || aborted_) return;  // by the other end of a message; some rank's memory may be gone
  op->settled = true;
  check_complete(*op);
  const CommKind kind = op->requests[0].kind;
  if (kind == CommKind::Split) {
    make_groups(*op);
    return finish(*op);
  }
  if (kind == CommKind::Barrier) return finish(*op);
  if (op->on_gpu) {  // under the lock: operations of a group are queued in one order
    try {
      queue_on_gpu(*op, queue);
    } catch (const std::exception& error) {
      reject(fmt::format("{} #{} on {}: {}", describe(CommCall(op->requests[0])), op->sequence,
                         tell_group(*op->group), error.what()));
    }
    if (op->dropped) op->group->stream->synchronize();
    return finish(*op);
  }
  if (!is_message(kind) && bytes_moved(op->requests) > kSmallBytes) return wake_members(*op);
  std::fill(op->taken.begin(), op->taken.end(), 1);
  ++op->running;
  lock.unlock();
  move_all(*op, HostMover());
  lock.lock();
  --op->running;
  finish(*op);
}

// Carries out one part that nobody has taken, the rank's own first. False where none is left.
bool ThreadWorld::help(ThreadOp& op, size_t member, Lock& lock) {
  size_t part = member;
  if (op.taken[part])
    part = static_cast<size_t>(std::find(op.taken.begin(), op.taken.end(), 0) - op.taken.begin());
  if (part == op.taken.size()) return false;
  op.taken[part] = 1;
  ++op.running;
  lock.unlock();
  run_part(op.requests, static_cast<int>(part), HostMover());
  lock.lock();
  --op.running;
  if (++op.finished == op.members.size())
    finish(op);
  else if (aborted_)
    wake_members(op);  // those who leave wait until nobody touches their memory
  return true;
}

void ThreadWorld::finish(ThreadOp& op) {
  op.done = true;
  wake_members(op);
}

void ThreadWorld::wait(const Ticket& ticket) {
  ThreadOp& op = *ticket.op;
  Lock lock(mutex_);
  Rank& self = rank_of(op, ticket.member);
  const std::chrono::milliseconds timeout = self.timeout;
  Patience patience(timeout);
  std::optional<WaitingFor<ThreadOp>> waiting(std::in_place, self.waiting, &op);
  while (!op.done) {
    if (aborted_) {
      self.wake.wait(lock, [&] { return op.running == 0; });
      if (op.done) break;
      throw CommAborted(reason_);
    }
    if (op.complete()) {
      if (!op.settled || !help(op, ticket.member, lock)) self.wake.wait(lock);
      continue;
    }
    if (misses_retired(op)) reject(tell_missing(op, "cannot end: a rank has returned"));
    self.wake.wait_until(lock, patience.next());
    if (patience.over() && !op.complete() && !aborted_)
      reject(tell_missing(
          op, fmt::format("did not end within {:.1f} s", static_cast<double>(timeout.count()) / 1e3)));
  }
  waiting.reset();
  if (op.carried_out) op.carried_out->wait(*ticket.queue->stream);
  self.recorder.finish(ticket.entry);
  const CommRequest released = std::move(op.requests[ticket.member]);
  lock.unlock();  // the tensors go outside it
}

bool ThreadWorld::done(const Ticket& ticket) {
  Lock lock(mutex_);
  ThreadOp& op = *ticket.op;
  if (!op.done && aborted_) throw CommAborted(reason_);
  if (!op.done && op.settled)
    help(op, ticket.member, lock);  // a rank that only asks must not hold up the rest
  return op.done && (!op.carried_out || op.carried_out->done());
}

void ThreadWorld::withdraw(const Ticket& ticket) noexcept {
  Lock lock(mutex_);
  ThreadOp& op = *ticket.op;
  if (op.carried_out) op.carried_out->wait(*ticket.queue->stream);
  if (op.done) return;
  abort_locked(fmt::format("rank {} left {} #{} on {} unfinished, begun at {}",
                           op.group->world_ranks[static_cast<size_t>(op.members[ticket.member])],
                           describe(CommCall(op.requests[ticket.member])), op.sequence, tell_group(*op.group),
                           describe(op.requests[ticket.member].where)));
  rank_of(op, ticket.member).wake.wait(lock, [&] { return op.running == 0; });
}

void ThreadWorld::drop(const Ticket& ticket) noexcept {
  Lock lock(mutex_);
  ThreadOp& op = *ticket.op;
  if (op.carried_out)
    op.carried_out->wait(*ticket.queue->stream);  // reuse of the memory is ordered by that stream
  else
    op.dropped = true;
}

void ThreadWorld::abort(const std::string& reason) {
  Lock lock(mutex_);
  abort_locked(reason);
}

void ThreadWorld::retire(int world_rank) {
  Lock lock(mutex_);
  ranks_[static_cast<size_t>(world_rank)].retired = true;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void ThreadWorld::set_timeout(int world_rank, std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  ranks_[static_cast<size_t>(world_rank)].timeout = timeout;
}

void ThreadWorld::abort_locked(const std::string& reason) {
  if (aborted_) return;
  aborted_ = true;
  reason_ = reason;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void ThreadWorld::reject(const std::string& reason) {
  abort_locked(reason);
  throw CommError(reason);
}

ThreadWorld::Rank& ThreadWorld::rank_of(const ThreadOp& op, size_t member) {
  return ranks_[static_cast<size_t>(op.group->world_ranks[static_cast<size_t>(op.members[member])])];
}

void ThreadWorld::wake_members(ThreadOp& op) {
  for (size_t member = 0; member < op.members.size(); ++member) rank_of(op, member).wake.notify_all();
}

bool ThreadWorld::misses_retired(const ThreadOp& op) {
  for (size_t member = 0; member < op.members.size(); ++member)
    if (!op.arrived[member] && rank_of(op, member).retired) return true;
  return false;
}

// Ranks that an operation waits for and that wait for nobody themselves, other ranks between them or not.
std::set<int> ThreadWorld::culprits_of(const ThreadOp& op) {
  std::set<int> seen, culprits;
  std::vector<const ThreadOp*> left = {&op};
  while (!left.empty()) {
    const ThreadOp& next = *left.back();
    left.pop_back();
    for (size_t member = 0; member < next.members.size(); ++member) {
      const int rank = next.group->world_ranks[static_cast<size_t>(next.members[member])];
      if (next.arrived[member] || !seen.insert(rank).second) continue;
      const std::vector<const ThreadOp*>& waiting = ranks_[static_cast<size_t>(rank)].waiting;
      if (waiting.empty()) culprits.insert(rank);
      left.insert(left.end(), waiting.begin(), waiting.end());
    }
  }
  return culprits;
}

std::string ThreadWorld::tell_missing(const ThreadOp& op, const std::string& what) {
  std::string text;
  std::vector<int> absent;
  const CommRequest* example = nullptr;
  for (size_t member = 0; member < op.members.size(); ++member) {
    const int world_rank = op.group->world_ranks[static_cast<size_t>(op.members[member])];
    const Rank& rank = rank_of(op, member);
    if (op.arrived[member]) {
      example = &op.requests[member];
      text += fmt::format("\n  rank {} called {} at {}", world_rank, describe(CommCall(*example)),
                          describe(example->where));
    } else {
      absent.push_back(world_rank);
      text += fmt::format("\n  rank {} did not come{}; its last call here: {}; its last call anywhere: {}",
                          world_rank, rank.retired ? ", it has returned" : "",
                          rank.recorder.last_in(*op.group->name), rank.recorder.last());
    }
  }
  const std::set<int> culprits = culprits_of(op);
  for (const int rank : culprits)
    if (std::find(absent.begin(), absent.end(), rank) == absent.end())
      text += fmt::format("\n  rank {} waits for nobody; its last call anywhere: {}", rank,
                          ranks_[static_cast<size_t>(rank)].recorder.last());
  return fmt::format("{} #{} on {} {}: missing ranks {}{}", describe(CommCall(*example)), op.sequence,
                     tell_group(*op.group), what, tell_ranks(absent, culprits), text);
}

void ThreadWorld::make_groups(ThreadOp& op) {
  std::map<int, std::vector<size_t>> by_color;
  for (size_t member = 0; member < op.members.size(); ++member)
    if (op.requests[member].color >= 0) by_color[op.requests[member].color].push_back(member);
  op.made.resize(op.members.size());
  for (auto& [color, members] : by_color) {
    std::stable_sort(members.begin(), members.end(),
                     [&](size_t a, size_t b) { return op.requests[a].key < op.requests[b].key; });
    std::vector<int> world_ranks;
    for (size_t member : members) world_ranks.push_back(op.group->world_ranks[member]);
    const auto group = make_group(op.requests[members[0]].name, std::move(world_ranks));
    for (size_t member : members) op.made[member] = group;
  }
}

uint64_t ThreadWorld::note_begin(const ThreadGroupState& group, int rank, uint64_t sequence,
                                 const CommRequest& request) {
  Lock lock(mutex_);
  if (aborted_) throw CommAborted(reason_);
  return rank_of(group, rank).recorder.begin(group.name, sequence, request);
}

void ThreadWorld::note_done(const ThreadGroupState& group, int rank, uint64_t entry) {
  Lock lock(mutex_);
  rank_of(group, rank).recorder.finish(entry);
}

std::string ThreadWorld::last_calls(const ThreadGroupState& group, int rank) {
  Lock lock(mutex_);
  const Rank& other = rank_of(group, rank);
  return fmt::format("{}its last call here: {}; its last call anywhere: {}",
                     other.retired ? "it has returned; " : "", other.recorder.last_in(*group.name),
                     other.recorder.last());
}

std::string ThreadWorld::abort_reason() {
  Lock lock(mutex_);
  return aborted_ ? reason_ : "";
}

std::string ThreadWorld::flight_record() {
  Lock lock(mutex_);
  std::string text;
  for (size_t rank = 0; rank < ranks_.size(); ++rank)
    text += fmt::format("rank {}:\n{}", rank, ranks_[rank].recorder.text());
  return text;
}

}  // namespace megatron
