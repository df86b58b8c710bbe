// Who holds an operation up: ranks ask each other's processes what they wait for.
#include <fmt/ranges.h>

#include <algorithm>

#include "megatron/comm/processes/frame.h"
#include "megatron/comm/processes/process_world.h"

namespace megatron {

std::string ProcessWorld::last_heard(int world_rank) const {
  const auto heard = heard_.find(world_rank);
  if (heard == heard_.end()) return "no call of it is known";
  const std::chrono::duration<double> ago = std::chrono::steady_clock::now() - heard->second.when;
  return fmt::format("its last call that is known: {}, {:.1f} s ago", heard->second.call, ago.count());
}

bool ProcessWorld::is_stopped(int world_rank) const {
  return !is_here(world_rank) && wire_->state_of(process_of(world_rank)) == PeerState::Stopped;
}

bool ProcessWorld::lacks_gone_rank(const ProcessOp& op) const {
  return std::any_of(op.awaited.begin(), op.awaited.end(), [&](int member) {
    return is_gone(world_rank(op, member)) && !inbox_.count(key_of(op, member));
  });
}

std::string ProcessWorld::to_text(const Answer& answer) {
  return fmt::format("{}\n{}", fmt::join(answer.waits_for, " "), answer.text);
}

ProcessWorld::Answer ProcessWorld::answer_from(const std::string& text) {
  const size_t end = std::min(text.find('\n'), text.size());
  return {numbers_in(std::string_view(text).substr(0, end)), text.substr(std::min(end + 1, text.size()))};
}

std::vector<int> ProcessWorld::missing_of(const ProcessOp& op) const {
  std::vector<int> missing;
  for (int member : op.awaited)
    if (!inbox_.count(key_of(op, member))) missing.push_back(world_rank(op, member));
  return missing;
}

ProcessWorld::Answer ProcessWorld::own_calls(int world_rank, const std::string& group) {
  const Rank& rank = here(world_rank);
  Answer answer;
  for (const ProcessOp* op : rank.waiting)
    for (const int other : missing_of(*op)) answer.waits_for.push_back(other);
  answer.text = fmt::format("its last call here: {}; its last call anywhere: {}",
                            rank.recorder.last_in(group), rank.recorder.last());
  return answer;
}

// Asks the rank's process, which answers even while the rank itself is stuck.
void ProcessWorld::ask(int world_rank, const std::string& group) {
  if (is_here(world_rank) || died_.count(world_rank) > 0) return;
  answers_.erase(world_rank);
  wire_->send(process_of(world_rank),
              make_frame({.kind = FrameKind::Question, .to = world_rank, .generation = generation_.number},
                         nullptr, group, wire_->pool()));
}

bool ProcessWorld::has_answered(int world_rank) const {
  return is_here(world_rank) || answers_.count(world_rank) > 0;
}

// The words of a rank whose process has not answered say whether it can.
ProcessWorld::Answer ProcessWorld::answer_of(int world_rank, const std::string& group, bool in_haste) {
  if (is_here(world_rank)) return own_calls(world_rank, group);
  const auto answer = answers_.find(world_rank);
  if (answer != answers_.end()) return answer->second;
  const char* why = is_stopped(world_rank) ? "is stopped"
                    : in_haste             ? "was not waited for"
                                           : "does not answer";
  return {{}, fmt::format("its process {}; {}", why, last_heard(world_rank))};
}

// Where a missing rank waits for another one, that one is asked too, up to ranks that wait for nobody. Ends
// where the operation does, or with the patience for all answers; without one, each round of questions has
// its own. Processes that are stopped are not waited for. Where a rank is gone the world ends anyway, and
// others should meet soon: whoever asks ahead of a time-out leaves off, and the rest wait only as long as
// processes that are well take to answer.
void ProcessWorld::inquire(const ProcessOp& op, Inquiry& inquiry, Patience* all, Lock& lock) {
  inquiry.answers.clear();
  std::optional<Patience> haste;
  const auto hurries = [&] {
    if (!haste && (lacks_gone_rank(op) || is_doomed())) haste.emplace(kGraceAfterLoss);
    return haste.has_value();
  };
  const auto ends = [&] { return aborted_ || op.done || (hurries() && (all || haste->over())); };
  std::vector<int> level = missing_of(op);
  std::set<int> seen(level.begin(), level.end());
  while (!level.empty() && !ends() && !(all && all->over())) {
    const auto answers = [&](int rank) {
      return inquiry.silent.count(rank) > 0 || has_answered(rank) || is_stopped(rank);
    };
    for (const int rank : level)
      if (inquiry.silent.count(rank) == 0) ask(rank, *op.group->name);
    Patience each(kGrace), &patience = all ? *all : each, enough(kGrace / 2);
    bool waited = false;  // for long enough: the time of an operation may end just after somebody was asked
    while (!std::all_of(level.begin(), level.end(), answers) && !ends() && !patience.over()) {
      here(op.group->world_rank())
          .wake.wait_until(lock, haste ? std::min(patience.next(), haste->next()) : patience.next());
      waited = enough.over();
    }
    std::vector<int> further;
    for (const int rank : level) {
      if (!has_answered(rank) && (waited || is_stopped(rank))) inquiry.silent.insert(rank);
      Answer answer = answer_of(rank, *op.group->name, haste.has_value());
      for (const int other : answer.waits_for)
        if (seen.insert(other).second) further.push_back(other);
      inquiry.answers.emplace_back(rank, std::move(answer));
    }
    level = std::move(further);
  }
  inquiry.in_haste = haste.has_value();
  for (const int rank : inquiry.silent) wire_->expect_no_goodbye(process_of(rank));
}

// A rank is to blame that waits for nobody. One that was not waited for may do so.
bool ProcessWorld::is_culprit(int world_rank, const Answer& answer, const Inquiry& inquiry) const {
  if (!answer.waits_for.empty()) return false;
  return !inquiry.in_haste || is_gone(world_rank) || has_answered(world_rank) ||
         inquiry.silent.count(world_rank) > 0;
}

std::string ProcessWorld::tell_missing(const ProcessOp& op, const std::string& what, Inquiry& inquiry,
                                       Lock& lock) {
  const std::vector<int> missing = missing_of(op);
  inquire(op, inquiry, nullptr, lock);
  std::string text;
  std::set<int> culprits;
  for (const auto& [rank, answer] : inquiry.answers) {
    const bool culprit = is_culprit(rank, answer, inquiry);
    if (culprit) culprits.insert(rank);
    if (std::find(missing.begin(), missing.end(), rank) != missing.end())
      text += fmt::format("\n  rank {} did not come{}; {}", rank,
                          died_.count(rank) ? ", its process has died"
                          : is_gone(rank)   ? ", it has returned"
                                            : "",
                          answer.text);
    else if (culprit)
      text += fmt::format("\n  rank {} waits for nobody; {}", rank, answer.text);
  }
  for (const int rank : died_)
    if (std::find(missing.begin(), missing.end(), rank) == missing.end())
      text += fmt::format("\n  the process of rank {} has died; {}", rank, answers_[rank].text);
  return fmt::format("{} #{} on {} {}: missing ranks {}\n  rank {} called {}{}",
                     describe(CommCall(op.request)), op.sequence, tell_group(*op.group), what,
                     tell_ranks(missing, culprits), op.group->world_rank(), tell_call(op.request), text);
}

std::string ProcessWorld::last_calls(const ProcessGroupState& group, int rank) {
  Lock lock(mutex_);
  const int world_rank = group.world_ranks[static_cast<size_t>(rank)];
  ask(world_rank, *group.name);
  Patience patience(kGrace);
  while (!has_answered(world_rank) && !is_stopped(world_rank) && !aborted_ && !patience.over())
    ranks_.front().wake.wait_until(lock, patience.next());
  return answer_of(world_rank, *group.name, aborted_).text;
}

}  // namespace megatron
