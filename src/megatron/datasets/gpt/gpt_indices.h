#pragma once

#include <optional>
#include <string_view>

#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/index/index_array.h"
#include "megatron/datasets/index/index_cache.h"
#include "megatron/datasets/indexed/sequence_store.h"
#include "megatron/device/cpu_pool.h"

namespace megatron {

struct GptIndexOptions {
  int64_t seq_length = 0;
  std::optional<int64_t> num_samples;  // none: one epoch
  uint32_t seed = 1234;
  bool extra_token = true;        // a sample holds one token more than it trains on, the last label
  bool drop_last_partial = true;  // whether the rest of the last epoch that fills no sample is left out
};

// How often the documents are read, and whether the last epoch is shuffled apart from the others.
struct EpochPlan {
  int64_t tokens_per_epoch = 0, epochs = 1;
  bool separate_last = false;
  int64_t samples_before_last = 0;  // where it is separate
  int64_t samples = 0;              // rows of the sample index less one
};
// A ConfigError, which names `name`, where samples are asked of no tokens.
EpochPlan plan_epochs(int64_t tokens_per_epoch, const GptIndexOptions& options, std::string_view name);

// The order of a GPT dataset's samples, equal to Megatron-LM's to the bit.
struct GptIndices {
  IndexArray documents;  // sequence numbers, epochs end to end, shuffled
  IndexArray samples;    // [samples + 1, 2]: where each begins, as place in `documents` and token
  IndexArray shuffle;    // the order in which samples are read
};

// Reads the cached indices, or builds and caches them. A cache that Megatron-LM wrote is taken once it is
// found to fit these options, which its name does not hold. With `stated_tokens`, the sequences' tokens as
// the store knows them, a cache is opened without reading all lengths; -1: they are added up.
GptIndices load_or_build_gpt_indices(PackedArray<int32_t> lengths, IndexRange sequences,
                                     std::string_view name, const GptIndexOptions& options,
                                     const IndexCache& cache, CpuPool& pool, int64_t stated_tokens = -1);

}  // namespace megatron
