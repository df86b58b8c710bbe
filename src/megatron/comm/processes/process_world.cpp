#include "megatron/comm/processes/process_world.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "megatron/comm/patience.h"
#include "megatron/comm/processes/frame.h"
#include "megatron/comm/processes/host_collectives.h"

namespace megatron {

std::string tell_group(const ProcessGroupState& group) {
  return fmt::format("group {} (ranks {})", *group.name, fmt::join(group.world_ranks, " "));
}

std::string tell_call(const CommRequest& request) {
  return fmt::format("{} at {}", describe(CommCall(request)), describe(request.where));
}

ProcessWorld::ProcessWorld(std::shared_ptr<Wire> wire, Generation generation, int ranks_here,
                           std::chrono::milliseconds timeout)
    : wire_(std::move(wire)),
      generation_(std::move(generation)),
      size_(generation_.world),
      first_rank_(generation_.first_rank),
      returned_from_(static_cast<size_t>(size_), 0) {
  for (int i = 0; i < ranks_here; ++i) ranks_.emplace_back().timeout = timeout;
  wire_->listen(generation_, {[this](int process, Frame frame) { receive(process, std::move(frame)); },
                              [this](int process, const std::string& why) { mark_lost(process, why); },
                              [this](int process, const std::string& why) { mark_silent(process, why); },
                              [this](const std::string& why) {
                                Lock lock(mutex_);
                                abort_locked(why, false);
                              }});
}

ProcessWorld::~ProcessWorld() {
  Lock lock(mutex_);
  const bool sound = !aborted_;
  lock.unlock();
  wire_->close(generation_, sound);
}

std::shared_ptr<ProcessGroupState> ProcessWorld::world_group(int rank) const {
  auto group = std::make_shared<ProcessGroupState>();
  group->name = std::make_shared<const std::string>("world");
  group->world_ranks.resize(static_cast<size_t>(size_));
  std::iota(group->world_ranks.begin(), group->world_ranks.end(), 0);
  group->rank = rank;
  return group;
}

std::vector<int> ProcessWorld::ranks_of(int process) const {
  const auto& all = generation_.processes;
  const auto place = std::find(all.begin(), all.end(), process);
  if (place == all.end()) return {};  // it waits in reserve
  std::vector<int> ranks(ranks_.size());
  std::iota(ranks.begin(), ranks.end(),
            static_cast<int>(place - all.begin()) * static_cast<int>(ranks.size()));
  return ranks;
}

void ProcessWorld::tell_all(FrameKind kind, int from, const std::string& text) {
  for (const int process : generation_.processes)
    if (process != wire_->process())
      wire_->send(process,
                  make_frame({.kind = kind, .from = from, .generation = generation_.number, .sequence = run_},
                             nullptr, text, wire_->pool()));
}

ProcessWorld::FrameKey ProcessWorld::key_of(const ProcessOp& op, int member) const {
  return {op.group->id, op.group->world_rank(), op.sequence, op.phase, world_rank(op, member)};
}

ProcessWorld::OpKey ProcessWorld::op_key(const ProcessOp& op) const {
  const bool message = is_message(op.request.kind);
  return {op.group->id, op.group->world_rank(), op.sequence, message ? world_rank(op, op.request.peer) : -1};
}

void ProcessWorld::send_part(const ProcessOp& op, int member, const void* data, size_t bytes) {
  Frame frame = make_frame({.kind = FrameKind::Data,
                            .phase = op.phase,
                            .from = op.group->world_rank(),
                            .to = world_rank(op, member),
                            .generation = generation_.number,
                            .group = op.group->id,
                            .sequence = op.sequence,
                            .signature = signature_of(op.request),
                            .payload = bytes},
                           data, tell_call(op.request), wire_->pool());
  const int to = world_rank(op, member);
  if (!is_here(to)) return wire_->send(process_of(to), std::move(frame));
  Lock lock(mutex_);
  store(std::move(frame), lock);
}

ProcessWorld::OpPtr ProcessWorld::begin(const std::shared_ptr<ProcessGroupState>& group,
                                        CommRequest request) {
  auto op = std::make_shared<ProcessOp>();
  op->group = group;
  const bool message = is_message(request.kind);
  op->sequence = !message                         ? group->next_sequence++
                 : request.kind == CommKind::Send ? group->sent[request.peer]++
                                                  : group->received[request.peer]++;
  op->request = std::move(request);
  op->phase = message ? kMessagePhase : 0;
  op->awaited = awaited_in_first_phase(op->request, group->rank, static_cast<int>(group->world_ranks.size()));
  {
    Lock lock(mutex_);
    if (aborted_) throw CommAborted(reason_);
    op->entry = here(group->world_rank()).recorder.begin(group->name, op->sequence, op->request);
  }
  for_each_part(op->request, group->rank, static_cast<int>(group->world_ranks.size()),
                [&](int member, const void* data, size_t bytes) { send_part(*op, member, data, bytes); });
  Lock lock(mutex_);
  if (op->request.kind == CommKind::Send) {
    op->done = true;  // the frame is a copy
    return op;
  }
  ops_[op_key(*op)] = op;
  carry_on(op, lock);
  return op;
}

void ProcessWorld::store(Frame frame, Lock& lock) {
  const FrameHead head = head_of(frame);
  inbox_[{head.group, head.to, head.sequence, head.phase, head.from}] = std::move(frame);
  const bool message = head.phase == kMessagePhase;
  const auto op = ops_.find({head.group, head.to, head.sequence, message ? head.from : -1});
  if (op == ops_.end()) return;
  const OpPtr kept = op->second;
  carry_on(kept, lock);
}

bool ProcessWorld::ready(const ProcessOp& op) const {
  return std::all_of(op.awaited.begin(), op.awaited.end(),
                     [&](int member) { return inbox_.count(key_of(op, member)) > 0; });
}

void ProcessWorld::carry_on(const OpPtr& op, Lock& lock) {
  while (!op->done && !op->running && !aborted_ && ready(*op)) {
    std::map<int, Frame> frames;
    for (int member : op->awaited) frames[member] = std::move(inbox_.extract(key_of(*op, member)).mapped());
    op->running = true;
    lock.unlock();
    std::string refused;
    bool last = false;
    try {
      for (const auto& [member, frame] : frames) check_frame(*op, member, frame);
      last = run_phase(*op, frames);
    } catch (const std::exception& error) {
      refused = error.what();
    }
    lock.lock();
    op->running = false;
    if (!refused.empty()) {
      abort_locked(refused, true);
    } else if (last) {
      op->done = true;
      ops_.erase(op_key(*op));
    }
    here(op->group->world_rank()).wake.notify_all();
  }
}

// The next phase of an all-reduce begins here: its parts go out before the phase counts as reached.
bool ProcessWorld::run_phase(ProcessOp& op, const std::map<int, Frame>& frames) {
  const int size = static_cast<int>(op.group->world_ranks.size());
  if (op.request.kind == CommKind::Split) {
    op.made = make_split_group(*op.group, op.sequence, op.request, frames);
    return true;
  }
  combine_phase(op.request, op.group->rank, size, op.phase, frames);
  if (op.phase > 0 || !needs_second_phase(op.request, size)) return true;
  Lock lock(mutex_);
  op.phase = 1;
  lock.unlock();
  for_each_second_part(op.request, op.group->rank, size, [&](int member, const void* data, size_t bytes) {
    send_part(op, member, data, bytes);
  });
  return false;
}

void ProcessWorld::check_frame(const ProcessOp& op, int member, const Frame& frame) const {
  const FrameHead head = head_of(frame);
  const size_t expected = expected_bytes(op.request, op.group->rank, member,
                                         static_cast<int>(op.group->world_ranks.size()), op.phase);
  const bool message = is_message(op.request.kind);
  if (head.signature != signature_of(op.request))
    throw CommError(fmt::format("comm mismatch on {}: {} #{}: rank {} called {}, but rank {} called {}",
                                tell_group(*op.group), message ? "message" : "operation", op.sequence,
                                world_rank(op, member), text_of(frame), op.group->world_rank(),
                                tell_call(op.request)));
  if (op.request.kind == CommKind::AllToAll && head.payload != expected) {
    const size_t width = size_of(op.request.input.dtype());
    throw CommError(fmt::format(
        "comm mismatch on {}: all_to_all #{}: rank {} sends {} elements to rank {} (its call: {}), which "
        "expects {} (at {})",
        tell_group(*op.group), op.sequence, world_rank(op, member), head.payload / width,
        op.group->world_rank(), text_of(frame), expected / width, describe(op.request.where)));
  }
}

void ProcessWorld::wait(const OpPtr& op) {
  Lock lock(mutex_);
  Rank& self = here(op->group->world_rank());
  const std::chrono::milliseconds timeout = self.timeout;
  Patience patience(timeout),
      before_asking(timeout - std::min<std::chrono::milliseconds>(kGrace, timeout / 2));
  Inquiry inquiry;
  bool asked = false;
  const WaitingFor<ProcessOp> waiting(self.waiting, op.get());
  while (!op->done) {
    if (aborted_) {
      self.wake.wait(lock, [&] { return !op->running; });
      ops_.erase(op_key(*op));
      if (op->done) break;
      throw CommAborted(reason_);
    }
    if (!op->running && (lacks_gone_rank(*op) || is_doomed())) {
      reject(*op, "cannot end: a rank is gone", inquiry, lock);
      continue;
    }
    if (op->running) {  // carry_on() notifies when it ends
      self.wake.wait(lock, [&] { return !op->running; });
      continue;
    }
    auto until = asked ? patience.next() : std::min(patience.next(), before_asking.next());
    if (first_death_) until = std::min(until, *first_death_ + kGraceAfterLoss);
    self.wake.wait_until(lock, until);
    if (op->done || op->running || aborted_) continue;
    // Those who do not answer are known when the time is over, and not waited for then.
    if (before_asking.over() && !std::exchange(asked, true)) inquire(*op, inquiry, &patience, lock);
    if (lacks_gone_rank(*op) || is_doomed()) continue;
    if (patience.over() && !op->done && !op->running && !aborted_)
      reject(*op, fmt::format("did not end within {:.1f} s", static_cast<double>(timeout.count()) / 1e3),
             inquiry, lock);
  }
  self.recorder.finish(op->entry);
  op->request.input = op->request.output = {};
}

bool ProcessWorld::done(const OpPtr& op) {
  Lock lock(mutex_);
  if (!op->done && aborted_) throw CommAborted(reason_);
  return op->done;
}

void ProcessWorld::withdraw(const OpPtr& op) noexcept {
  Lock lock(mutex_);
  if (op->done) return;
  abort_locked(fmt::format("rank {} left {} #{} on {} unfinished, begun at {}", op->group->world_rank(),
                           describe(CommCall(op->request)), op->sequence, tell_group(*op->group),
                           describe(op->request.where)),
               true);
  here(op->group->world_rank()).wake.wait(lock, [&] { return !op->running; });
  ops_.erase(op_key(*op));
}

void ProcessWorld::abort(const std::string& reason) {
  Lock lock(mutex_);
  abort_locked(reason, true);
}

void ProcessWorld::abort_locked(const std::string& reason, bool tell_others) {
  if (aborted_) return;
  aborted_ = true;
  reason_ = reason;
  notice();
  if (tell_others) tell_all(FrameKind::Abort, first_rank_, reason);
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void ProcessWorld::reject(const ProcessOp& op, const std::string& what, Inquiry& inquiry, Lock& lock) {
  const auto begun = std::chrono::steady_clock::now();
  const std::string reason = tell_missing(op, what, inquiry, lock);
  if (!aborted_ && (op.done || op.running)) return;  // meanwhile
  noticed_ = std::min(noticed_.value_or(begun), begun);
  if (aborted_) throw CommAborted(reason_);  // meanwhile, for an earlier reason
  abort_locked(reason, true);
  throw PeerLost(reason);
}

void ProcessWorld::set_timeout(int world_rank, std::chrono::milliseconds timeout) {
  Lock lock(mutex_);
  here(world_rank).timeout = timeout;
}

void ProcessWorld::begin_run() {
  Lock lock(mutex_);
  ++run_;
  died_.merge(died_between_runs_);
  if (!died_.empty()) note_death();
}

// The rank may return because the world was aborted by a process that died before all others heard of it.
void ProcessWorld::retire(int world_rank) {
  Lock lock(mutex_);
  tell_all(FrameKind::Returned, world_rank, reason_);
  returned_from_[static_cast<size_t>(world_rank)] = run_;
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

void ProcessWorld::mark_lost(int process, const std::string& why) {
  Lock lock(mutex_);
  for (const int rank : ranks_of(process)) {
    (has_ended(rank) ? died_between_runs_ : died_).insert(rank);
    answers_[rank] = {{}, why};
  }
  if (!died_.empty()) note_death();
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

// Nobody may be waiting for its ranks yet, and they cannot be asked.
void ProcessWorld::mark_silent(int process, const std::string& why) {
  Lock lock(mutex_);
  std::string text;
  for (const int rank : ranks_of(process)) {
    const bool ended = has_ended(rank), known = died_.count(rank) > 0;
    (ended ? died_between_runs_ : died_).insert(rank);
    answers_[rank] = {{}, why};
    if (ended || known) continue;
    text += fmt::format("; rank {}: {}", rank, last_heard(rank));
  }
  if (!text.empty()) abort_locked(fmt::format("process {} {}{}", process, why, text), true);
}

void ProcessWorld::receive(int process, Frame frame) {
  const FrameHead head = head_of(frame);
  Lock lock(mutex_);
  // A process that takes itself for a member may say so while others have gone on without it.
  if (ranks_of(process).empty() || (head.kind == FrameKind::Question && !is_here(head.to))) return;
  const std::string text(text_of(frame));
  switch (head.kind) {
    case FrameKind::Data:
      heard_[head.from] = {text, std::chrono::steady_clock::now()};
      return store(std::move(frame), lock);
    case FrameKind::Abort:
      return abort_locked(text, false);
    case FrameKind::Returned:
      returned_from_[static_cast<size_t>(head.from)] = head.sequence;
      if (!text.empty()) return abort_locked(text, false);
      break;
    case FrameKind::Question:
      return wire_->send(
          process, make_frame({.kind = FrameKind::Answer, .from = head.to, .generation = generation_.number},
                              nullptr, to_text(own_calls(head.to, text)), wire_->pool()));
    case FrameKind::Answer:
      answers_[head.from] = answer_from(text);
      break;
    default:  // the wire's own
      break;
  }
  for (Rank& rank : ranks_) rank.wake.notify_all();
}

uint64_t ProcessWorld::note_begin(const ProcessGroupState& group, uint64_t sequence,
                                  const CommRequest& request) {
  Lock lock(mutex_);
  if (aborted_) throw CommAborted(reason_);
  return here(group.world_rank()).recorder.begin(group.name, sequence, request);
}

void ProcessWorld::note_done(const ProcessGroupState& group, uint64_t entry) {
  Lock lock(mutex_);
  here(group.world_rank()).recorder.finish(entry);
}

std::optional<std::chrono::steady_clock::time_point> ProcessWorld::noticed() {
  Lock lock(mutex_);
  return noticed_;
}

void ProcessWorld::note_death() {
  notice();
  if (!first_death_) first_death_ = std::chrono::steady_clock::now();
}

void ProcessWorld::notice() {
  if (!noticed_) noticed_ = std::chrono::steady_clock::now();
}

std::string ProcessWorld::abort_reason() {
  Lock lock(mutex_);
  if (aborted_ || died_.empty()) return reason_;
  return fmt::format("the process of rank {} has died; {}", *died_.begin(), answers_[*died_.begin()].text);
}

std::string ProcessWorld::flight_record() {
  Lock lock(mutex_);
  std::string text;
  for (size_t i = 0; i < ranks_.size(); ++i)
    text += fmt::format("rank {}:\n{}", first_rank_ + static_cast<int>(i), ranks_[i].recorder.text());
  return text;
}

}  // namespace megatron
