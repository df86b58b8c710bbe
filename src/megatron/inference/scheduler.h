#pragma once

#include <memory>
#include <vector>

#include "megatron/inference/block_pool.h"
#include "megatron/inference/engine_options.h"
#include "megatron/inference/ngram_draft.h"
#include "megatron/inference/request.h"
#include "megatron/inference/sampling.h"
#include "megatron/nn/sequence_batch.h"

namespace megatron {

// A request that waits or runs, and what it has come to.
struct ActiveRequest {
  ActiveRequest(Request given, RequestListener told)
      : request(std::move(given)),
        listener(std::move(told)),
        sampler(request.sampling, request.prompt),
        text(request.prompt) {}

  RequestId id = 0;
  Request request;
  RequestListener listener;
  Sampler sampler;
  std::unique_ptr<ConstraintState> constraint;
  std::vector<int64_t> text;   // the prompt and what was generated
  int64_t computed = 0;        // tokens whose keys the cache holds
  int64_t cached_tokens = 0;   // of the prompt, that were found there when it was first admitted
  std::vector<int64_t> draft;  // what may follow the text, as guessed
  NgramDraft ngrams;
  std::vector<int32_t> experts;     // of the tokens that were read, where recorded
  std::vector<TokenChoice> prompt;  // log-probabilities of its prompt so far
  bool prompt_told = false;         // all of the prompt was read once, and the listener knows about it

  std::vector<int64_t> blocks;         // of the cache, in order; -1: given back, a window has passed it
  int64_t slot = -1;                   // of states; -1: it waits
  uint64_t prefix = BlockPool::kRoot;  // what its published blocks hold
  int64_t published = 0;               // blocks

  int64_t length() const { return static_cast<int64_t>(text.size()); }
  int64_t prompt_length() const { return static_cast<int64_t>(request.prompt.size()); }
  int64_t generated() const { return length() - prompt_length(); }
  bool wants_prompt_logprobs() const { return request.prompt_logprobs >= 0 && !prompt_told; }
};

// What the blocks of a model are like, whichever request has them.
struct CacheLimits {
  int64_t blocks = 0, block_size = 0;
  int64_t window = -1;     // of all layers: keys before it are never read again; -1: some layer reads all
  int64_t max_length = 0;  // tokens of a sequence that are read
  bool shares_prefixes = true;  // equal tokens at the beginning have equal keys, and nothing else is kept
};

// Chooses what each step reads: running requests first, one token each, then prompts under way, then new
// requests, by priority and arrival. A request that finds no block takes those of the last one, which is
// computed again later.
class Scheduler {
 public:
  Scheduler(const EngineOptions& options, const CacheLimits& cache);

  void add(std::unique_ptr<ActiveRequest> request);
  std::unique_ptr<ActiveRequest> remove(RequestId id);  // null: there is none

  // One step: requests, and how many tokens each of them reads.
  struct Turn {
    ActiveRequest* request;
    int64_t tokens;       // of its text
    int64_t drafted = 0;  // of its draft, behind them
  };
  std::vector<Turn> plan();
  // The turns as a model reads them.
  StepInput input(const std::vector<Turn>& turns) const;
  // The model has read what a turn says of the text.
  void finish_turn(const Turn& turn);
  // Counts a draft token that was accepted into the text.
  void accept_draft(ActiveRequest& request);

  // Nothing that the cache holds is of use any more: running requests wait again, and no prefix is known.
  void forget();

  bool idle() const { return running_.empty() && waiting_.empty(); }
  std::vector<RequestId> requests() const;
  void count(EngineStats& stats) const;

 private:
  using List = std::vector<std::unique_ptr<ActiveRequest>>;

  void insert(List& list, std::unique_ptr<ActiveRequest> request) const;
  bool grow(size_t index, int64_t tokens);
  int64_t draft_room(ActiveRequest& request, int64_t budget);
  int64_t blocks_for(int64_t tokens) const { return (tokens + cache_.block_size - 1) / cache_.block_size; }
  bool admit(int64_t budget, bool alone, std::vector<Turn>& turns);
  void find_prefix(ActiveRequest& request);
  void publish(ActiveRequest& request);
  void leave_window(ActiveRequest& request);
  void evict(size_t index);
  void give_back(ActiveRequest& request);

  EngineOptions options_;
  CacheLimits cache_;
  BlockPool pool_;
  std::vector<int64_t> slots_;  // free ones
  List running_, waiting_;      // each by priority, then by arrival
  bool evicted_ = false;        // in this step
  int64_t evictions_ = 0, prefix_queries_ = 0, prefix_hits_ = 0;
};

}  // namespace megatron
