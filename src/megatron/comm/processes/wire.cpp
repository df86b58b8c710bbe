#include "megatron/comm/processes/wire.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>

namespace megatron {
namespace {

constexpr auto kServePatience = std::chrono::milliseconds(200);
constexpr auto kStuckGrace = std::chrono::seconds(20);       // for ranks of a process that was left out
constexpr auto kLeaveGrace = std::chrono::seconds(2);        // for goodbyes after a world was stopped
constexpr auto kAgreement = std::chrono::milliseconds(500);  // for all to notice the same
constexpr auto kStopped = std::chrono::milliseconds(300);    // until others meet without a stopped process
constexpr int kStarved = 4;  // heartbeat time-outs for a process of this machine that is not stopped
constexpr const char* kAfterFault = "after a fault";  // what a goodbye says then

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

Wire::Wire(std::unique_ptr<Transport> transport, std::chrono::milliseconds timeout, bool newcomer)
    : transport_(std::move(transport)),
      timeout_(timeout),
      heard_(static_cast<size_t>(transport_->processes()), Clock::now()),
      newcomer_(newcomer) {
  std::vector<int>& all = decided_[0];
  all.resize(static_cast<size_t>(processes()));
  std::iota(all.begin(), all.end(), 0);
  if (newcomer) tell_all(FrameKind::Join, 0, "");  // it has reached all that it can reach
  server_ = std::thread([this] { serve(); });
}

Wire::~Wire() {
  {
    Lock lock(mutex_);
    tell_all(FrameKind::Goodbye, 0, sound_ ? "" : kAfterFault);
    leaving_ = true;
  }
  server_.join();
}

void Wire::watch(const HeartbeatOptions& heartbeat) {
  Lock lock(mutex_);
  heartbeat_ = heartbeat;
  std::fill(heard_.begin(), heard_.end(), Clock::now());
}

void Wire::expect_no_goodbye(int process) {
  Lock lock(mutex_);
  mute_.insert(process);
}

void Wire::serve() {
  const Transport::Receiver receiver{[this](int process, Frame frame) { receive(process, std::move(frame)); },
                                     [this](int process, const std::string& why) { lose(process, why); },
                                     [this](int process) { welcome(process); }};
  std::optional<Clock::time_point> end;
  while (true) {
    auto patience = kServePatience;
    {
      Lock lock(mutex_);
      if (heartbeat_.interval.count() > 0)
        patience = std::clamp(heartbeat_.interval, std::chrono::milliseconds(1), kServePatience);
    }
    try {
      transport_->poll(patience, receiver);
      beat();
    } catch (const std::exception& error) {
      {
        std::lock_guard delivering(delivering_);
        if (listener_)
          listener_->broken(
              fmt::format("the ranks of process {} cannot be reached any more: {}", process(), error.what()));
      }
      Lock lock(mutex_);
      if (leaving_) return;
      lock.unlock();
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (may_leave(end)) return;
  }
}

// Everybody of the last world has said goodbye, or nothing comes any more.
bool Wire::may_leave(std::optional<Clock::time_point>& end) {
  Lock lock(mutex_);
  if (!leaving_) return false;
  const auto now = Clock::now();
  if (!end) end = now + (sound_ ? timeout_ : std::chrono::milliseconds(kLeaveGrace));
  const std::vector<int>& members = decided_.rbegin()->second;
  const bool alone = std::all_of(members.begin(), members.end(), [&](int other) {
    return other == process() || left_.count(other) > 0 || lost_.count(other) > 0 || mute_.count(other) > 0;
  });
  // A process that has stopped takes nothing any more.
  if (alone) end = std::min(*end, now + kLeaveGrace);
  return (alone && transport_->idle()) || now > *end;
}

// A process that was only silent hears it too, once it goes on; where the connection is gone, the transport
// drops it.
void Wire::tell(int other, FrameKind kind, uint32_t generation, const std::string& text) {
  if (other == process() || left_.count(other) > 0) return;
  transport_->send(other, make_frame({.kind = kind, .from = process(), .to = other, .generation = generation},
                                     nullptr, text, pool()));
}

void Wire::tell_all(FrameKind kind, uint32_t generation, const std::string& text) {
  for (int other = 0; other < processes(); ++other) tell(other, kind, generation, text);
}

void Wire::receive(int from, Frame frame) {
  const FrameHead head = head_of(frame);
  {
    Lock lock(mutex_);
    heard_[static_cast<size_t>(from)] = Clock::now();
    mute_.erase(from);
  }
  if (head.kind == FrameKind::Heartbeat) return;
  if (head.kind == FrameKind::Join || head.kind == FrameKind::Members || head.kind == FrameKind::Goodbye)
    return handle(from, head, std::string(text_of(frame)));
  std::lock_guard delivering(delivering_);
  if (listener_ && head.generation == open_) return listener_->frame(from, std::move(frame));
  if (head.generation < next_) return;
  Lock lock(mutex_);
  waiting_[head.generation].emplace_back(from, std::move(frame));
}

void Wire::handle(int from, const FrameHead& head, const std::string& text) {
  std::string left_out;
  {
    Lock lock(mutex_);
    const std::vector<int> numbers = numbers_in(text);
    if (head.kind == FrameKind::Goodbye) {
      left_[from] = text.empty();
    } else if (head.kind == FrameKind::Join) {
      joined_[from] = {head.generation, {numbers.begin(), numbers.end()}};
    } else {
      taken_[from] = {head.generation, numbers};
      if (decided_.count(head.generation) == 0) {
        decide(head.generation, numbers);
        if (!contains(numbers, process()))
          left_out = fmt::format("process {} was left out of generation {}", process(), head.generation);
      }
    }
    changed_.notify_all();
  }
  if (left_out.empty()) return;
  std::lock_guard delivering(delivering_);
  if (!listener_ || open_ >= head.generation) return;
  listener_->broken(left_out);
  left_out_ = Clock::now();
}

// Everybody hears of it from everybody, also those who cannot reach the one that decided.
void Wire::decide(uint32_t generation, const std::vector<int>& members) {
  decided_[generation] = members;
  for (const int member : members) returned_.erase(member);
  tell_all(FrameKind::Members, generation, fmt::format("{}", fmt::join(members, " ")));
}

// What is known of the process that was lost does not hold for the one that takes its place.
void Wire::welcome(int other) {
  Lock lock(mutex_);
  lost_.erase(other);
  left_.erase(other);
  joined_.erase(other);
  taken_.erase(other);
  mute_.erase(other);
  heard_[static_cast<size_t>(other)] = Clock::now();
  returned_.insert(other);
  changed_.notify_all();
}

bool Wire::has_newcomer() {
  Lock lock(mutex_);
  return std::any_of(returned_.begin(), returned_.end(), [&](int other) {
    return joined_.count(other) > 0 && lost_.count(other) == 0 && left_.count(other) == 0;
  });
}

void Wire::lose(int other, const std::string& why) {
  {
    Lock lock(mutex_);
    returned_.erase(other);
    if (left_.count(other) > 0 || !lost_.emplace(other, why).second) {
      changed_.notify_all();
      return;
    }
    changed_.notify_all();
  }
  std::lock_guard delivering(delivering_);
  if (listener_) listener_->lost(other, why);
}

void Wire::beat() {
  std::vector<std::pair<int, std::string>> silent;
  {
    Lock lock(mutex_);
    const auto now = Clock::now();
    if (heartbeat_.interval.count() == 0) return;
    if (now - last_beat_ >= heartbeat_.interval) {
      last_beat_ = now;
      for (const int other : decided_.rbegin()->second) tell(other, FrameKind::Heartbeat, 0, "");
      for (const int other : returned_) tell(other, FrameKind::Heartbeat, 0, "");
    }
    // This process itself may have been stopped: then the others were not silent.
    if (now - std::exchange(last_look_, now) > heartbeat_.timeout / 2)
      std::fill(heard_.begin(), heard_.end(), now);
    for (const int other : decided_.rbegin()->second) {
      const std::chrono::duration<double> quiet = now - heard_[static_cast<size_t>(other)];
      if (other == process() || quiet < heartbeat_.timeout || left_.count(other) > 0) continue;
      // On a machine that has too much to do, a process that is seen to run will beat again.
      if (quiet < kStarved * heartbeat_.timeout && transport_->state_of(other) == PeerState::Runs) continue;
      const std::string why = fmt::format("has not been heard of for {:.1f} s", quiet.count());
      if (lost_.emplace(other, why).second) silent.emplace_back(other, why);
    }
    if (!silent.empty()) changed_.notify_all();
  }
  std::lock_guard delivering(delivering_);
  if (!listener_) return;
  for (const auto& [other, why] : silent) listener_->silent(other, why);
  // A rank that is stuck keeps its world open. Nobody needs this process any more, and it cannot be tidied
  // up.
  if (left_out_ && Clock::now() - *left_out_ > kStuckGrace) {
    std::fputs("megatron: the others go on without this process, and a rank of it is stuck\n", stderr);
    std::_Exit(PeerLost("").exit_code());
  }
}

void Wire::listen(const Generation& generation, Listener listener) {
  std::lock_guard delivering(delivering_);
  open_ = generation.number;
  next_ = open_ + 1;
  listener_ = std::move(listener);
  std::vector<std::pair<int, Frame>> frames;
  std::map<int, std::string> lost;
  {
    Lock lock(mutex_);
    sound_ = true;
    if (const auto own = waiting_.find(open_); own != waiting_.end()) frames = std::move(own->second);
    waiting_.erase(waiting_.begin(), waiting_.upper_bound(open_));
    for (const int other : generation.processes)
      if (lost_.count(other) > 0) lost[other] = lost_[other];
  }
  for (auto& [from, frame] : frames) listener_->frame(from, std::move(frame));
  for (const auto& [other, why] : lost) listener_->lost(other, why);
}

void Wire::close(const Generation& generation, bool sound) {
  std::lock_guard delivering(delivering_);
  if (!listener_ || open_ != generation.number) return;
  listener_.reset();
  left_out_.reset();
  Lock lock(mutex_);
  sound_ = sound;
}

std::set<int> Wire::unreachable(const std::set<int>& given_up) const {
  std::set<int> out = given_up;
  for (const auto& [other, why] : lost_) out.insert(other);
  for (const auto& [other, sound] : left_) out.insert(other);
  // Who was left out before does not come back, but by a process that takes its place. This process need not
  // have noticed itself that it was silent.
  for (int other = 0; other < processes(); ++other)
    if (other != process() && !contains(decided_.rbegin()->second, other) && returned_.count(other) == 0)
      out.insert(other);
  return out;
}

// No process before this one is there for anybody who has come.
bool Wire::leads(uint32_t generation, const std::set<int>& out) const {
  for (int lower = 0; lower < process(); ++lower) {
    if (out.count(lower) == 0) return false;
    for (const auto& [other, joined] : joined_)
      if (joined.generation == generation && out.count(other) == 0 && joined.unreachable.count(lower) == 0)
        return false;
  }
  return true;
}

bool Wire::all_joined(uint32_t generation, const std::set<int>& out) const {
  for (int other = 0; other < processes(); ++other) {
    if (other == process() || out.count(other) > 0) continue;
    const auto joined = joined_.find(other);
    if (joined == joined_.end() || joined->second.generation != generation) return false;
  }
  return true;
}

std::vector<int> Wire::chosen(const std::set<int>& out) const {
  std::vector<int> members;
  for (int other = 0; other < processes(); ++other) {
    if (out.count(other) > 0) continue;
    const auto reach = [&](int from, int to) {
      const auto joined = joined_.find(from);
      return from == process() || joined == joined_.end() || joined->second.unreachable.count(to) == 0;
    };
    if (std::all_of(members.begin(), members.end(),
                    [&](int member) { return reach(member, other) && reach(other, member); }))
      members.push_back(other);
  }
  return members;
}

// All members have taken what this process took, or cannot any more: then its world will notice that. False
// where some have not said so yet. Who took another decision goes on without this process.
bool Wire::is_made(uint32_t generation) {
  const std::vector<int>& members = decided_.at(generation);
  bool waits = false, all = true;
  for (const int other : members) {
    if (other == process()) continue;
    const auto taken = taken_.find(other);
    if (taken == taken_.end() || taken->second.first < generation) {
      all = false;
      waits = waits || (lost_.count(other) == 0 && left_.count(other) == 0);
    } else if (taken->second != std::pair(generation, members)) {
      throw PeerLost(fmt::format("process {} was left out of generation {}: process {} makes it up with {}",
                                 process(), taken->second.first, other,
                                 fmt::join(taken->second.second, " ")));
    }
  }
  if (all) made_ = generation;
  return !waits;
}

// A quorum decides: more than half of the last generation that was made, without those that have left, or the
// half that has its lowest process.
bool Wire::may_go_on(const std::vector<int>& members) const {
  std::vector<int> before;
  for (const int other : decided_.at(made_))
    if (left_.count(other) == 0) before.push_back(other);
  const auto there =
      std::count_if(before.begin(), before.end(), [&](int other) { return contains(members, other); });
  const auto all = static_cast<std::ptrdiff_t>(before.size());
  return 2 * there > all || (2 * there == all && contains(members, before.front()));
}

// A process of this machine that is stopped does not come, which need not wait for its heartbeats to be
// missed. `since`: of each that is seen to be, from the first look on.
void Wire::lose_stopped(std::map<int, Patience>& since) {
  if (heartbeat_.interval.count() == 0) return;
  for (const int other : decided_.rbegin()->second) {
    if (other == process() || lost_.count(other) > 0 || left_.count(other) > 0) continue;
    if (transport_->state_of(other) != PeerState::Stopped)
      since.erase(other);
    else if (since.try_emplace(other, kStopped).first->second.over())
      lost_.emplace(other, "is stopped");
  }
}

std::vector<int> Wire::meet(uint32_t generation, std::chrono::milliseconds grace) {
  Lock lock(mutex_);
  Patience for_others(grace), for_all(3 * grace);
  std::set<int> given_up;
  std::optional<std::set<int>> told;
  std::map<int, Patience> stopped;
  std::optional<Patience> for_agreement;
  while (true) {
    lose_stopped(stopped);
    const auto& [newest, decided] = *decided_.rbegin();
    if (newest >= generation && (newest > generation || !contains(decided, process())))
      throw PeerLost(fmt::format("process {} was left out of generation {}: the others go on without it",
                                 process(), newest));
    const bool taken = newest == generation;
    if (taken && is_made(generation)) {
      newcomer_ = false;
      return decided;
    }
    std::set<int> out = unreachable(given_up);
    if (!taken && told != out) {
      tell_all(FrameKind::Join, generation, fmt::format("{}", fmt::join(out, " ")));
      told = out;
    }
    if (!taken && all_joined(generation, out) && leads(generation, out)) {
      const std::vector<int> members = chosen(out);
      // Where some cannot reach each other, one of them may have died, which this process will notice too.
      const bool agreed = members.size() + out.size() == static_cast<size_t>(processes());
      if (!agreed && !for_agreement) for_agreement.emplace(std::max(kAgreement, 2 * heartbeat_.interval));
      if (agreed || for_agreement->over()) {
        if (!may_go_on(members))
          throw PeerLost(fmt::format(
              "generation {}: {} of {} processes are left, and the others may go on without them; start the "
              "job again",
              generation, members.size(), decided_.at(made_).size()));
        decide(generation, members);
        continue;
      }
    }
    if (!taken && for_others.over())
      for (int other = 0; other < processes(); ++other)
        if (const auto joined = joined_.find(other);
            other != process() && (joined == joined_.end() || joined->second.generation < generation))
          given_up.insert(other);
    if (for_all.over())
      throw PeerLost(fmt::format("generation {}: the processes that are left did not agree within {:.1f} s",
                                 generation, std::chrono::duration<double>(3 * grace).count()));
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

uint32_t Wire::called_for() const {
  uint32_t newest = 0;
  for (const auto& [other, joined] : joined_) newest = std::max(newest, joined.generation);
  return newest;
}

uint32_t Wire::next_generation(const Generation& generation) {
  Lock lock(mutex_);
  return newcomer_ ? called_for() : generation.number + 1;
}

// A newcomer hears of no generation but those that are met for later, and of lost ones no goodbye.
bool Wire::wait_for_call(const Generation& generation) {
  Lock lock(mutex_);
  while (true) {
    if (called_for() > (newcomer_ ? decided_.rbegin()->first : generation.number)) return true;
    const std::vector<int>& training = generation.processes;
    const auto gone = [&](int other) {
      return left_.count(other) > 0 || (newcomer_ && lost_.count(other) > 0);
    };
    if (std::all_of(training.begin(), training.end(), gone)) {
      const auto sound = [&](const auto& left) { return left.second || !contains(training, left.first); };
      if (!left_.empty() && std::all_of(left_.begin(), left_.end(), sound)) return false;
      throw PeerLost(
          fmt::format("process {} waited in reserve, and those that trained ended after a fault", process()));
    }
    if (!newcomer_ && std::any_of(training.begin(), training.end(),
                                  [&](int other) { return lost_.count(other) > 0 && !gone(other); }))
      return true;
    changed_.wait_for(lock, std::chrono::milliseconds(200));
  }
}

}  // namespace megatron
