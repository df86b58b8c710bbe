#include "megatron/datasets/gpt/gpt_indices.h"

#include <cmath>
#include <filesystem>
#include <limits>
#include <numeric>

#include "megatron/base/error.h"
#include "megatron/datasets/random/numpy_random.h"

namespace megatron {
namespace {

constexpr int64_t kBlock = int64_t{1} << 16;  // documents that one thread takes at a time

int64_t count_tokens(PackedArray<int32_t> lengths, IndexRange range, std::string_view name) {
  int64_t total = 0;
  for (int64_t i = range.begin; i < range.end; ++i) {
    const int32_t length = lengths[i];
    require(length >= 0, "{}: sequence {} has {} tokens; its index is damaged", name, i, length);
    total += length;
  }
  return total;
}

// `epochs` copies of the range, shuffled together.
void fill_documents(std::span<int32_t> out, IndexRange range, RandomState& random) {
  const auto count = static_cast<size_t>(range.size());
  for (size_t begin = 0; begin < out.size(); begin += count)
    std::iota(out.begin() + begin, out.begin() + begin + count, static_cast<int32_t>(range.begin));
  random.shuffle(out);
}

// Sample j > 0 begins at token j·L of all documents end to end. With an extra token that is the place of the
// token itself, so behind a document's last one stands the next document's first; without, it is the place
// behind token j·L - 1. Blocks of documents are independent once the tokens before each are known.
template <class T>
void fill_samples(std::span<T> rows, const IndexArray& documents, PackedArray<int32_t> lengths,
                  const GptIndexOptions& options, const EpochPlan& plan, CpuPool& pool) {
  const int64_t extra = options.extra_token ? 1 : 0, back = 1 - extra, step = options.seq_length;
  const int64_t count = documents.rows(), blocks = (count + kBlock - 1) / kBlock;
  std::vector<int64_t> before(static_cast<size_t>(blocks) + 1, 0);
  auto for_blocks = [&](auto body) {
    pool.parallel_for(blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t b = first; b < last; ++b) body(b, b * kBlock, std::min(count, (b + 1) * kBlock));
    });
  };
  for_blocks([&](int64_t block, int64_t begin, int64_t end) {
    int64_t tokens = 0;
    for (int64_t d = begin; d < end; ++d) tokens += lengths[documents[d]];
    before[static_cast<size_t>(block) + 1] = tokens;
  });
  std::partial_sum(before.begin(), before.end(), before.begin());
  rows[0] = rows[1] = 0;
  for_blocks([&](int64_t block, int64_t begin, int64_t end) {
    int64_t at = before[static_cast<size_t>(block)];
    int64_t row = std::max<int64_t>(1, (at + back + step - 1) / step);
    for (int64_t d = begin; d < end; ++d) {
      const int64_t next = at + lengths[documents[d]];
      for (; row <= plan.samples && row * step - back < next; ++row) {
        rows[static_cast<size_t>(2 * row)] = static_cast<T>(d);
        rows[static_cast<size_t>(2 * row + 1)] = static_cast<T>(row * step - at);
      }
      at = next;
    }
  });
  // A last sample that the tokens do not fill ends with them.
  const int64_t total = plan.epochs * plan.tokens_per_epoch;
  for (int64_t row = plan.samples; row > 0 && row * step > total - extra; --row) {
    rows[static_cast<size_t>(2 * row)] = static_cast<T>(count - 1);
    rows[static_cast<size_t>(2 * row + 1)] = static_cast<T>(lengths[documents[count - 1]] - extra);
  }
}

IndexArray build_samples(std::string path, const IndexArray& documents, PackedArray<int32_t> lengths,
                         const GptIndexOptions& options, const EpochPlan& plan, CpuPool& pool) {
  const bool wide = documents.rows() > std::numeric_limits<int32_t>::max();
  IndexArrayBuilder builder(std::move(path), wide ? IndexType::i8 : IndexType::i4, {plan.samples + 1, 2});
  if (wide) {
    fill_samples(builder.values<int64_t>(), documents, lengths, options, plan, pool);
  } else {
    fill_samples(builder.values<int32_t>(), documents, lengths, options, plan, pool);
  }
  return builder.finish();
}

template <class T>
void fill_shuffle(std::span<T> out, const EpochPlan& plan, RandomState& random) {
  std::iota(out.begin(), out.end(), T{0});
  const size_t first = plan.separate_last ? static_cast<size_t>(plan.samples_before_last) : out.size();
  random.shuffle(out.first(first));
  random.shuffle(out.subspan(first));
}

IndexArray build_shuffle(std::string path, const EpochPlan& plan, RandomState& random) {
  const bool wide = plan.samples >= int64_t{0xffffffff} - 1;
  IndexArrayBuilder builder(std::move(path), wide ? IndexType::i8 : IndexType::u4, {plan.samples});
  if (wide) {
    fill_shuffle(builder.values<int64_t>(), plan, random);
  } else {
    fill_shuffle(builder.values<uint32_t>(), plan, random);
  }
  return builder.finish();
}

GptIndices build(PackedArray<int32_t> lengths, IndexRange range, const GptIndexOptions& options,
                 const EpochPlan& plan, const IndexCache& cache, CpuPool& pool) {
  RandomState random(options.seed);
  GptIndices indices;
  {
    IndexArrayBuilder builder(cache.path("document_index.npy"), IndexType::i4, {plan.epochs * range.size()});
    const std::span<int32_t> out = builder.values<int32_t>();
    const auto last = static_cast<size_t>(plan.separate_last ? range.size() : 0);
    fill_documents(out.first(out.size() - last), range, random);
    fill_documents(out.last(last), range, random);
    indices.documents = builder.finish();
  }
  indices.samples =
      build_samples(cache.path("sample_index.npy"), indices.documents, lengths, options, plan, pool);
  indices.shuffle = build_shuffle(cache.path("shuffle_index.npy"), plan, random);
  return indices;
}

std::optional<GptIndices> open(const IndexCache& cache) {
  if (!cache) return std::nullopt;
  for (const char* file : {"description.txt", "document_index.npy", "sample_index.npy", "shuffle_index.npy"})
    if (!std::filesystem::exists(cache.path(file))) return std::nullopt;
  GptIndices indices;
  try {
    indices = {open_npy(cache.path("document_index.npy")), open_npy(cache.path("sample_index.npy")),
               open_npy(cache.path("shuffle_index.npy"))};
  } catch (const Error&) {
    return std::nullopt;  // damaged: built again
  }
  const bool fits = indices.documents.columns() == 1 && indices.samples.columns() == 2 &&
                    indices.shuffle.columns() == 1 && indices.samples.rows() == indices.shuffle.rows() + 1;
  return fits ? std::optional(indices) : std::nullopt;
}

// Whether indices of unknown options are those that would be built: everything but the order is compared.
bool fits(const GptIndices& indices, PackedArray<int32_t> lengths, IndexRange range,
          const GptIndexOptions& options, const EpochPlan& plan, CpuPool& pool) {
  if (indices.documents.rows() != plan.epochs * range.size() || indices.shuffle.rows() != plan.samples)
    return false;
  for (int64_t i = 0; i < indices.documents.rows(); ++i) {
    const int64_t sequence = indices.documents[i];
    if (sequence < range.begin || sequence >= range.end) return false;
  }
  for (int64_t i = 0; i < plan.samples; ++i) {
    const int64_t sample = indices.shuffle[i];
    if (sample < 0 || sample >= plan.samples) return false;
  }
  const IndexArray samples = build_samples("", indices.documents, lengths, options, plan, pool);
  return samples.type() == indices.samples.type() &&
         std::ranges::equal(samples.bytes(), indices.samples.bytes());
}

}  // namespace

EpochPlan plan_epochs(int64_t tokens, const GptIndexOptions& options, std::string_view name) {
  const int64_t extra = options.extra_token ? 1 : 0, length = options.seq_length;
  require(length > 0, "{}: sequence length {}, expected at least 1", name, length);
  EpochPlan plan{.tokens_per_epoch = tokens};
  if (options.num_samples) {
    const int64_t wanted = *options.num_samples * length + extra;
    if (tokens == 0 && wanted > 0)
      throw ConfigError(
          fmt::format("{}: {} samples were asked of a split without tokens; change --split or the data", name,
                      *options.num_samples));
    plan.epochs = std::max<int64_t>(1, (wanted + tokens - 1) / std::max<int64_t>(tokens, 1));
  }
  const int64_t total = plan.epochs * tokens - extra;
  if (plan.epochs > 1) {
    const int64_t before = ((plan.epochs - 1) * tokens - extra) / length;
    const int64_t per_epoch = (tokens - extra) / length;
    plan.separate_last =
        *options.num_samples - before < static_cast<int64_t>(0.80 * static_cast<double>(per_epoch));
    plan.samples_before_last = plan.separate_last ? before : 0;
  }
  if (total <= 0) return plan;
  plan.samples =
      options.drop_last_partial
          ? total / length
          : static_cast<int64_t>(std::ceil(static_cast<float>(total) / static_cast<float>(length)));
  return plan;
}

GptIndices load_or_build_gpt_indices(PackedArray<int32_t> lengths, IndexRange range, std::string_view name,
                                     const GptIndexOptions& options, const IndexCache& cache, CpuPool& pool,
                                     int64_t stated_tokens) {
  require(range.begin >= 0 && range.begin <= range.end && range.end <= lengths.size() &&
              range.end <= std::numeric_limits<int32_t>::max(),
          "{}: sequences {} to {} of {} (at most 2^31-1)", name, range.begin, range.end, lengths.size());
  Json facts = Json::object();
  facts["extra_token"] = options.extra_token;
  facts["drop_last_partial"] = options.drop_last_partial;
  facts["first_sequence"] = range.begin;
  facts["last_sequence"] = range.end;
  facts["sequences"] = lengths.size();
  const int64_t tokens = stated_tokens >= 0 ? stated_tokens : count_tokens(lengths, range, name);
  facts["tokens"] = tokens;
  const std::optional<GptIndices> cached = open(cache);
  const IndexCache::Facts known = cached ? cache.compare(facts) : IndexCache::Facts::different;
  if (known == IndexCache::Facts::same) return *cached;
  const int64_t counted = stated_tokens >= 0 ? count_tokens(lengths, range, name) : tokens;
  require(counted == tokens,
          "{}: its sequences have {} tokens by their lengths and {} by their offsets; the "
          "index is damaged",
          name, counted, tokens);
  const EpochPlan plan = plan_epochs(tokens, options, name);
  if (known == IndexCache::Facts::absent && fits(*cached, lengths, range, options, plan, pool)) {
    cache.remember(facts);
    return *cached;
  }
  cache.prepare();
  GptIndices indices = build(lengths, range, options, plan, cache, pool);
  cache.publish(facts);
  return indices;
}

}  // namespace megatron
