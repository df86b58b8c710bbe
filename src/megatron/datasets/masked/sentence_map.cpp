#include "megatron/datasets/masked/sentence_map.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <random>

#include "megatron/base/error.h"
#include "megatron/datasets/random/mt19937.h"

namespace megatron {
namespace {

constexpr int32_t kLongSentence = 512;  // a document with a longer one is left out

class TargetLengths {
 public:
  explicit TargetLengths(const SentenceMapOptions& options)
      : bits_(options.seed),
        max_(static_cast<uint32_t>(options.max_length)),
        ratio_(options.short_probability > 0
                   ? static_cast<uint32_t>(std::lround(1.0 / options.short_probability))
                   : 0) {}

  uint32_t next() {
    if (ratio_ == 0) return max_;
    const uint32_t random = bits_.next32();
    return random % ratio_ == 0 ? 2 + random % (max_ - 1) : max_;
  }

 private:
  Mt19937 bits_;
  uint32_t max_, ratio_;
};

// Calls add(first, end, target) for each row in order; whole epochs until there are enough.
template <class Add>
void pack_sentences(PackedArray<int64_t> ends, IndexRange documents, PackedArray<int32_t> lengths,
                    std::string_view name, const SentenceMapOptions& options, Add add) {
  TargetLengths targets(options);
  int64_t rows = 0;
  for (int64_t epoch = 0; options.max_epochs == 0 || epoch < options.max_epochs; ++epoch) {
    if (rows >= options.max_samples) break;
    const int64_t before = rows;
    for (int64_t d = documents.begin; d < documents.end; ++d) {
      const int64_t first = ends[d], end = ends[d + 1];
      require(first >= 0 && first <= end && end <= lengths.size(),
              "{}: document {} holds sentences {} to {} of {}", name, d, first, end, lengths.size());
      if (end - first < options.min_sentences) continue;
      bool too_long = false;
      if (end - first > 1)
        for (int64_t s = first; s < end && !too_long; ++s) too_long = lengths[s] > kLongSentence;
      if (too_long) continue;
      uint32_t target = targets.next();
      int64_t start = first, length = 0;
      for (int64_t s = first; s < end; ++s) {
        length += lengths[s];
        const int64_t left = end - s - 1;
        const bool full = length >= target && left > 1 && s + 1 - start >= options.min_sentences;
        if (!full && left > 0) continue;
        add(start, s + 1, target);
        ++rows;
        start = s + 1;
        target = targets.next();
        length = 0;
      }
    }
    if (rows == before)
      throw ConfigError(fmt::format("{}: no document of the split has {} sentences of at most {} tokens",
                                    name, options.min_sentences, kLongSentence));
  }
}

}  // namespace

IndexArray build_sentence_map(PackedArray<int64_t> ends, IndexRange documents, PackedArray<int32_t> lengths,
                              std::string_view name, const SentenceMapOptions& options,
                              const std::string& path) {
  require(options.max_length >= 2 && options.max_length <= std::numeric_limits<int32_t>::max(),
          "{}: samples of {} tokens, expected at least 2", name, options.max_length);
  require(lengths.size() <= std::numeric_limits<uint32_t>::max(), "{}: {} sentences, at most 2^32-1", name,
          lengths.size());
  int64_t count = 0;
  pack_sentences(ends, documents, lengths, name, options, [&](int64_t, int64_t, uint32_t) { ++count; });
  IndexArrayBuilder builder(path, IndexType::u4, {count, 3});
  const std::span<uint32_t> rows = builder.values<uint32_t>();
  size_t at = 0;
  pack_sentences(ends, documents, lengths, name, options, [&](int64_t first, int64_t end, uint32_t target) {
    rows[at++] = static_cast<uint32_t>(first);
    rows[at++] = static_cast<uint32_t>(end);
    rows[at++] = target;
  });
  std::mt19937_64 bits(uint64_t{options.seed} + 1);
  for (int64_t i = count - 1; i > 0; --i) {
    const auto j = static_cast<int64_t>(bits() % static_cast<uint64_t>(i + 1));
    std::swap_ranges(rows.begin() + 3 * i, rows.begin() + 3 * i + 3, rows.begin() + 3 * j);
  }
  return builder.finish();
}

IndexArray load_or_build_sentence_map(PackedArray<int64_t> ends, IndexRange documents,
                                      PackedArray<int32_t> lengths, std::string_view name,
                                      const SentenceMapOptions& options, const IndexCache& cache) {
  Json facts = Json::object();
  facts["sentences"] = lengths.size();
  int64_t tokens = 0;
  for (int64_t i = 0; i < lengths.size(); ++i) tokens += lengths[i];
  facts["tokens"] = tokens;
  facts["first_document"] = documents.begin;
  facts["last_document"] = documents.end;
  const std::string path = cache.path("sample_index.npy");
  if (cache && std::filesystem::exists(path) && cache.compare(facts) != IndexCache::Facts::different) {
    try {
      const IndexArray map = open_npy(path);
      if (map.columns() == 3) {
        cache.remember(facts);
        return map;
      }
    } catch (const Error&) {
      // Damaged: built again.
    }
  }
  cache.prepare();
  IndexArray map = build_sentence_map(ends, documents, lengths, name, options, path);
  cache.publish(facts);
  return map;
}

}  // namespace megatron
