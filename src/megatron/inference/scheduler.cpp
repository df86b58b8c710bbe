#include "megatron/inference/scheduler.h"

#include <algorithm>

#include "megatron/base/error.h"

namespace megatron {

Scheduler::Scheduler(const EngineOptions& options, const CacheLimits& cache)
    : options_(options), cache_(cache), pool_(cache.blocks, options.eviction == PrefixEviction::lru) {
  for (int64_t slot = options.max_requests - 1; slot >= 0; --slot) slots_.push_back(slot);
}

// By priority, then by arrival: also one that was evicted goes back to where it stood.
void Scheduler::insert(List& list, std::unique_ptr<ActiveRequest> request) const {
  const auto before = [](const auto& a, const auto& b) {
    return std::pair(a->request.priority, a->id) < std::pair(b->request.priority, b->id);
  };
  const auto place = std::upper_bound(list.begin(), list.end(), request, before);
  list.insert(place, std::move(request));
}

void Scheduler::add(std::unique_ptr<ActiveRequest> request) { insert(waiting_, std::move(request)); }

std::unique_ptr<ActiveRequest> Scheduler::remove(RequestId id) {
  for (List* list : {&running_, &waiting_}) {
    const auto found = std::ranges::find(*list, id, [](const auto& request) { return request->id; });
    if (found == list->end()) continue;
    std::unique_ptr<ActiveRequest> request = std::move(*found);
    list->erase(found);
    give_back(*request);
    return request;
  }
  return nullptr;
}

std::vector<RequestId> Scheduler::requests() const {
  std::vector<RequestId> ids;
  for (const List* list : {&running_, &waiting_})
    for (const auto& request : *list) ids.push_back(request->id);
  return ids;
}

std::vector<Scheduler::Turn> Scheduler::plan() {
  std::vector<Turn> turns;
  int64_t budget = options_.max_tokens;
  evicted_ = false;
  const auto run = [&](bool decodes) {
    for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
      ActiveRequest* request = running_[i].get();
      const int64_t left = request->length() - request->computed;
      if ((left == 1) != decodes) continue;
      const int64_t tokens = options_.chunked_prefill ? std::min(left, budget) : left;
      if (!grow(i, tokens)) continue;
      turns.push_back({request, tokens});
      budget -= tokens;
      if (decodes) budget -= turns.back().drafted = draft_room(*request, budget);
    }
  };
  run(true);
  // Prompts take blocks from requests that have no turn yet, and these stand behind them.
  run(false);
  while (!evicted_ && budget > 0 && admit(budget, turns.empty(), turns)) budget -= turns.back().tokens;
  return turns;
}

// How many tokens of its draft a request reads in this turn. They cost nobody else's blocks, and as many as
// the request may still write behind the token that it writes anyway.
int64_t Scheduler::draft_room(ActiveRequest& request, int64_t budget) {
  const int64_t read = request.computed + 1;
  const int64_t room = std::min({std::ssize(request.draft), budget, cache_.max_length - read,
                                 request.request.max_tokens - request.generated() - 1});
  for (int64_t count = 0; count < room; ++count)
    if (blocks_for(read + count + 1) > std::ssize(request.blocks)) {
      // Requests that run will soon want another block each.
      const bool spare = pool_.available() > std::ssize(running_);
      const std::optional<int64_t> block = spare ? pool_.allocate() : std::nullopt;
      if (!block) return count;
      request.blocks.push_back(*block);
    }
  return std::max<int64_t>(0, room);
}

// Blocks for further tokens of a running request. Where none is left, the last request that has no turn yet
// gives up its own, at worst this one.
bool Scheduler::grow(size_t index, int64_t tokens) {
  ActiveRequest& request = *running_[index];
  const int64_t needed = blocks_for(request.computed + tokens);
  while (std::ssize(request.blocks) < needed) {
    if (const std::optional<int64_t> block = pool_.allocate()) {
      request.blocks.push_back(*block);
      continue;
    }
    size_t victim = running_.size() - 1;
    const bool decodes = request.length() - request.computed == 1;
    if (!decodes)  // those that decode have their turn already
      while (victim > index && running_[victim]->length() - running_[victim]->computed == 1) --victim;
    if (victim == index && !decodes && running_.size() > 1) return false;  // it waits with what it has
    evict(victim);
    if (victim == index) return false;
  }
  return true;
}

bool Scheduler::admit(int64_t budget, bool alone, std::vector<Turn>& turns) {
  if (waiting_.empty() || slots_.empty()) return false;
  ActiveRequest& request = *waiting_.front();
  find_prefix(request);
  const int64_t left = request.length() - request.computed;
  const int64_t needed = blocks_for(request.length()) - std::ssize(request.blocks);
  // Requests that run will soon want another block each.
  const int64_t reserve = std::ssize(running_);
  const bool whole = options_.chunked_prefill || left <= budget || alone;
  if (needed + reserve > pool_.available() && !(running_.empty() && needed <= pool_.available())) {
    give_back(request);
    return false;
  }
  if (!whole) {
    give_back(request);
    return false;
  }
  request.slot = slots_.back();
  slots_.pop_back();
  if (request.generated() == 0) request.cached_tokens = request.computed;
  if (options_.prefix_caching) prefix_queries_ += request.length();
  prefix_hits_ += request.computed;
  const int64_t tokens = options_.chunked_prefill ? std::min(left, budget) : left;
  turns.push_back({&request, tokens});
  std::unique_ptr<ActiveRequest> admitted = std::move(waiting_.front());
  waiting_.erase(waiting_.begin());
  insert(running_, std::move(admitted));
  const auto place = std::ranges::find(running_, &request, [](const auto& running) { return running.get(); });
  return grow(static_cast<size_t>(place - running_.begin()), tokens);
}

// Shares the blocks that hold the beginning of the text. At least one token is left, whose logits are wanted.
void Scheduler::find_prefix(ActiveRequest& request) {
  if (!options_.prefix_caching || !cache_.shares_prefixes || request.wants_prompt_logprobs()) return;
  const std::span<const int64_t> text = request.text;
  while (request.computed + cache_.block_size < request.length()) {
    const auto found = pool_.find(request.prefix, text.subspan(static_cast<size_t>(request.computed),
                                                               static_cast<size_t>(cache_.block_size)));
    if (!found) return;
    pool_.share(found->block);
    request.blocks.push_back(found->block);
    request.prefix = found->serial;
    request.computed += cache_.block_size;
    ++request.published;
  }
}

StepInput Scheduler::input(const std::vector<Turn>& turns) const {
  StepInput input;
  for (const auto& [request, tokens, drafted] : turns) {
    const auto begin = request->text.begin() + request->computed;
    StepInput::Sequence& sequence = input.sequences.emplace_back();
    sequence.tokens = {begin, begin + tokens};
    sequence.tokens.insert(sequence.tokens.end(), request->draft.begin(), request->draft.begin() + drafted);
    sequence.first = request->computed;
    sequence.logits = request->wants_prompt_logprobs()                  ? tokens
                      : request->computed + tokens == request->length() ? 1 + drafted
                                                                        : 0;
    sequence.slot = request->slot;
    sequence.prompt = request->prompt_length();
    for (int64_t block : request->blocks) sequence.blocks.push_back(std::max<int64_t>(0, block));
  }
  return input;
}

void Scheduler::finish_turn(const Turn& turn) {
  turn.request->computed += turn.tokens;
  publish(*turn.request);
  leave_window(*turn.request);
}

void Scheduler::accept_draft(ActiveRequest& request) {
  ++request.computed;
  publish(request);
  leave_window(request);
}

void Scheduler::publish(ActiveRequest& request) {
  if (!options_.prefix_caching || !cache_.shares_prefixes) return;
  const std::span<const int64_t> text = request.text;
  for (; (request.published + 1) * cache_.block_size <= request.computed; ++request.published) {
    const auto size = static_cast<size_t>(cache_.block_size),
               begin = static_cast<size_t>(request.published) * size;
    request.prefix = pool_.publish(request.blocks[static_cast<size_t>(request.published)], request.prefix,
                                   text.subspan(begin, size));
  }
}

// Gives back blocks of which no layer will read a key again.
void Scheduler::leave_window(ActiveRequest& request) {
  if (cache_.window < 0) return;
  const int64_t passed = std::max<int64_t>(0, request.computed - cache_.window) / cache_.block_size;
  for (int64_t i = passed - 1; i >= 0 && request.blocks[static_cast<size_t>(i)] >= 0; --i) {
    pool_.release(request.blocks[static_cast<size_t>(i)]);
    request.blocks[static_cast<size_t>(i)] = -1;
  }
}

void Scheduler::evict(size_t index) {
  std::unique_ptr<ActiveRequest> request = std::move(running_[index]);
  running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(index));
  give_back(*request);
  insert(waiting_, std::move(request));
  evicted_ = true;
  ++evictions_;
}

void Scheduler::forget() {
  while (!running_.empty()) {
    evict(running_.size() - 1);
    --evictions_;  // that is for want of memory
  }
  pool_.forget_unused();
}

// From the last block on, so that of a prefix the end is forgotten first.
void Scheduler::give_back(ActiveRequest& request) {
  for (auto block = request.blocks.rbegin(); block != request.blocks.rend(); ++block)
    if (*block >= 0) pool_.release(*block);
  request.blocks.clear();
  request.draft.clear();
  request.computed = request.published = 0;
  request.prefix = BlockPool::kRoot;
  if (request.wants_prompt_logprobs()) request.prompt.clear();
  if (request.slot >= 0) slots_.push_back(request.slot);
  request.slot = -1;
}

void Scheduler::count(EngineStats& stats) const {
  stats.running = std::ssize(running_);
  stats.waiting = std::ssize(waiting_);
  stats.used_blocks = pool_.used();
  stats.total_blocks = pool_.total();
  stats.cached_blocks = pool_.cached();
  stats.evictions = evictions_;
  stats.prefix_queries = prefix_queries_;
  stats.prefix_hits = prefix_hits_;
}

}  // namespace megatron
