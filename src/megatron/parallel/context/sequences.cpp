#include "megatron/parallel/context/sequences.h"

#include <algorithm>
#include <numeric>

namespace megatron {
namespace {

RowOrder row_order(RankContext& ctx, const std::vector<int64_t>& from, const std::vector<int64_t>& to) {
  if (from == to) return {};
  auto n = static_cast<int64_t>(from.size());
  std::vector<int64_t> place(static_cast<size_t>(*std::max_element(from.begin(), from.end()) + 1));
  for (size_t i = 0; i < from.size(); ++i) place[static_cast<size_t>(from[i])] = static_cast<int64_t>(i);
  std::vector<int64_t> forward, inverse(from.size());
  for (int64_t token : to) forward.push_back(place[static_cast<size_t>(token)]);
  for (size_t i = 0; i < forward.size(); ++i)
    inverse[static_cast<size_t>(forward[i])] = static_cast<int64_t>(i);
  return {ctx.from_vector(forward, {n}), ctx.from_vector(inverse, {n})};
}

Tensor cumulated(RankContext& ctx, std::span<const int64_t> lengths, int64_t divisor) {
  std::vector<int32_t> ends = {0};
  for (int64_t length : lengths) ends.push_back(ends.back() + static_cast<int32_t>(length / divisor));
  return ctx.from_vector(ends, {static_cast<int64_t>(ends.size())});
}

ZigzagSlice zigzag_slice(RankContext& ctx, std::span<const int64_t> lengths, bool packed, int rank,
                         int ranks) {
  ZigzagSlice slice;
  slice.sequences = static_cast<int64_t>(lengths.size());
  slice.max_chunk = *std::max_element(lengths.begin(), lengths.end()) / (2 * ranks);
  if (packed) slice.cu_chunks = cumulated(ctx, lengths, 2 * ranks);
  std::vector<int64_t> held = zigzag_tokens(lengths, rank, ranks), first, second;
  for (size_t at = 0, i = 0; i < lengths.size(); ++i) {
    auto chunk = static_cast<size_t>(lengths[i] / (2 * ranks));
    for (size_t half = 0; half < 2; ++half, at += chunk) {
      auto begin = held.begin() + static_cast<std::ptrdiff_t>(at);
      auto& target = half ? second : first;
      target.insert(target.end(), begin, begin + static_cast<std::ptrdiff_t>(chunk));
    }
  }
  first.insert(first.end(), second.begin(), second.end());
  slice.chunk_major = row_order(ctx, held, first);
  return slice;
}

// The tokens of ranks [first, first + count) of `ranks`, one rank after the other.
std::vector<int64_t> tokens_of_ranks(std::span<const int64_t> lengths, int first, int count, int ranks) {
  std::vector<int64_t> all;
  for (int rank = first; rank < first + count; ++rank) {
    std::vector<int64_t> held = zigzag_tokens(lengths, rank, ranks);
    all.insert(all.end(), held.begin(), held.end());
  }
  return all;
}

}  // namespace

std::vector<int64_t> TokenRows::sequences() const {
  return documents.empty() ? std::vector<int64_t>(static_cast<size_t>(rows), length) : documents;
}

std::vector<int64_t> zigzag_tokens(std::span<const int64_t> lengths, int rank, int ranks) {
  std::vector<int64_t> tokens;
  int64_t start = 0;
  for (int64_t length : lengths) {
    require(
        length > 0 && (ranks == 1 || length % (2 * ranks) == 0),
        "context parallelism: a sequence of {} tokens cannot be cut into {} chunks for {} ranks; pad it to a "
        "multiple of {}",
        length, 2 * ranks, ranks, 2 * ranks);
    if (ranks == 1) {
      for (int64_t i = 0; i < length; ++i) tokens.push_back(start + i);
    } else {
      int64_t chunk = length / (2 * ranks);
      for (int64_t index : {rank, 2 * ranks - 1 - rank})
        for (int64_t i = 0; i < chunk; ++i) tokens.push_back(start + index * chunk + i);
    }
    start += length;
  }
  return tokens;
}

std::vector<int64_t> held_tokens(const TokenRows& rows, const ContextParallel& context) {
  return zigzag_tokens(rows.sequences(), context.rank(), context.size());
}

std::vector<int64_t> held_positions(const TokenRows& rows, const ContextParallel& context) {
  std::vector<int64_t> positions = rows.positions;
  if (positions.empty())
    for (int64_t length : rows.sequences())
      for (int64_t i = 0; i < length; ++i) positions.push_back(rows.first + i);
  std::vector<int64_t> held = held_tokens(rows, context);
  for (int64_t& token : held) token = positions[static_cast<size_t>(token)];
  return held;
}

SeqInfo held_sequences(RankContext& ctx, const TokenRows& rows, const ContextParallel& context) {
  std::vector<int64_t> lengths = rows.sequences();
  int ranks = context.size();
  bool packed = !rows.documents.empty();
  int64_t total = std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
  require(total == rows.rows * rows.length, "packed documents have {} tokens, but {} rows of {} have {}",
          total, rows.rows, rows.length, rows.rows * rows.length);
  std::vector<int64_t> held = held_tokens(rows, context);
  auto tokens = static_cast<int64_t>(held.size());
  SeqInfo seq;
  seq.batch = rows.rows;
  seq.length = rows.length / ranks;
  seq.row_length = rows.length;
  seq.positions = ctx.from_vector(held_positions(rows, context), {tokens});
  if (packed) {
    seq.cu_seqlens = cumulated(ctx, lengths, ranks);
    seq.max_length = *std::max_element(lengths.begin(), lengths.end()) / ranks;
  }
  if (ranks == 1) return seq;
  seq.token_index = ctx.from_vector(held, {tokens});
  std::vector<int64_t> all(static_cast<size_t>(total));
  std::iota(all.begin(), all.end(), int64_t{0});
  int inner = context.inner.size(), outer_rank = context.outer.rank(), outer = context.outer.size();
  ContextSlices& slices = seq.context;
  slices.slice = zigzag_slice(ctx, lengths, packed, context.rank(), ranks);
  slices.whole = row_order(ctx, tokens_of_ranks(lengths, 0, ranks, ranks), all);
  slices.max_whole = *std::max_element(lengths.begin(), lengths.end());
  if (packed) slices.cu_whole = cumulated(ctx, lengths, 1);
  if (inner * outer == ranks) {
    slices.outer_slice = zigzag_slice(ctx, lengths, packed, outer_rank, outer);
    slices.inner = row_order(ctx, tokens_of_ranks(lengths, outer_rank * inner, inner, ranks),
                             zigzag_tokens(lengths, outer_rank, outer));
  }
  return seq;
}

namespace {

// What is added to the score of a hidden key. Not an infinity: a block of keys that is hidden whole must
// still have a largest score.
double hidden_score(DType dtype) { return dtype == DType::F16 ? -6e4 : -1e30; }

}  // namespace

Tensor mask_bias(RankContext& ctx, const Tensor& mask, int64_t queries, DType dtype) {
  auto kernels = ctx.kernel_context();
  const Shape shape = mask.shape();
  Tensor seen = ctx.empty(shape, DType::F32), hidden = ctx.empty(shape, DType::Bool);
  Tensor bias = ctx.empty(shape, dtype);
  ctx.kernels->copy(kernels, {mask, seen});
  ctx.kernels->compare(kernels,
                       {Comparison::Less, seen, ctx.full({1, 1}, DType::F32, 1).expand(shape), hidden});
  ctx.kernels->where(kernels, {hidden, ctx.full({1, 1}, dtype, hidden_score(dtype)).expand(shape),
                               ctx.full({1, 1}, dtype, 0).expand(shape), bias});
  return bias.view({shape[0], 1, 1, shape[1]}).expand({shape[0], 1, queries, shape[1]});
}

Tensor padding_mask(RankContext& ctx, std::span<const int64_t> lengths, int64_t keys) {
  std::vector<int64_t> seen;
  for (int64_t length : lengths)
    for (int64_t key = 0; key < keys; ++key) seen.push_back(key < length ? 1 : 0);
  return ctx.from_vector(seen, {static_cast<int64_t>(lengths.size()), keys});
}

}  // namespace megatron
