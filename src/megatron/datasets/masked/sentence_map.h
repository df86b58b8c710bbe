#pragma once

#include <optional>

#include "megatron/datasets/gpt/split.h"
#include "megatron/datasets/index/index_array.h"
#include "megatron/datasets/index/index_cache.h"
#include "megatron/datasets/indexed/sequence_store.h"

namespace megatron {

struct SentenceMapOptions {
  int64_t max_samples = 0;  // epochs are added until there are as many
  int64_t max_epochs = 0;   // 0: as many as it takes
  int64_t max_length = 0;   // tokens of a sample
  double short_probability = 0;
  uint32_t seed = 1234;
  int64_t min_sentences = 1;
};

// Sentences packed into samples for BERT and T5: rows of (first sentence, last + 1, tokens to aim for),
// shuffled, as Megatron-LM packs them. `ends` bound the documents: document d holds the sentences ends[d] to
// ends[d + 1].
IndexArray build_sentence_map(PackedArray<int64_t> ends, IndexRange documents, PackedArray<int32_t> lengths,
                              std::string_view name, const SentenceMapOptions& options,
                              const std::string& path);

// Reads the cached map, or builds and caches it.
IndexArray load_or_build_sentence_map(PackedArray<int64_t> ends, IndexRange documents,
                                      PackedArray<int32_t> lengths, std::string_view name,
                                      const SentenceMapOptions& options, const IndexCache& cache);

}  // namespace megatron
