#include "megatron/nn/sequence_batch.h"

#include <algorithm>
#include <set>

namespace megatron {
namespace {

template <class T>
Tensor row(RankContext& ctx, const std::vector<T>& values) {
  return ctx.from_vector(values, {static_cast<int64_t>(values.size())});
}

ConvolutionRows convolution_rows(RankContext& ctx, const StepInput& input, int64_t kept) {
  std::vector<int64_t> joined, fresh, last;
  std::vector<int32_t> cu = {0};
  const auto count = static_cast<int64_t>(input.sequences.size());
  int64_t token = count * kept;
  for (int64_t s = 0; s < count; ++s) {
    for (int64_t i = 0; i < kept; ++i) joined.push_back(s * kept + i);
    for (size_t i = 0; i < input.sequences[static_cast<size_t>(s)].tokens.size(); ++i) {
      fresh.push_back(static_cast<int64_t>(joined.size()));
      joined.push_back(token++);
    }
    const auto end = static_cast<int64_t>(joined.size());
    for (int64_t i = end - kept; i < end; ++i) last.push_back(i);
    cu.push_back(static_cast<int32_t>(end));
  }
  return {row(ctx, joined), row(ctx, cu), row(ctx, fresh), row(ctx, last)};
}

}  // namespace

int64_t StepInput::tokens() const {
  int64_t sum = 0;
  for (const Sequence& sequence : sequences) sum += std::ssize(sequence.tokens);
  return sum;
}

int64_t StepInput::logits() const {
  int64_t sum = 0;
  for (const Sequence& sequence : sequences) sum += sequence.logits;
  return sum;
}

std::vector<int64_t> StepInput::packed() const {
  std::vector<int64_t> numbers = {std::ssize(sequences)};
  for (const Sequence& s : sequences) {
    numbers.insert(numbers.end(),
                   {std::ssize(s.tokens), std::ssize(s.blocks), s.first, s.logits, s.slot, s.prompt});
    numbers.insert(numbers.end(), s.tokens.begin(), s.tokens.end());
    numbers.insert(numbers.end(), s.blocks.begin(), s.blocks.end());
  }
  return numbers;
}

StepInput StepInput::unpacked(const std::vector<int64_t>& numbers) {
  StepInput input;
  auto at = numbers.begin();
  const auto next = [&] {
    require(at != numbers.end(), "step: {} numbers end too early", numbers.size());
    return *at++;
  };
  const auto list = [&](int64_t count) {
    require(count >= 0 && count <= numbers.end() - at, "step: {} numbers end too early", numbers.size());
    at += count;
    return std::vector<int64_t>(at - count, at);
  };
  input.sequences.resize(static_cast<size_t>(next()));
  for (Sequence& s : input.sequences) {
    const int64_t tokens = next(), blocks = next();
    s.first = next(), s.logits = next(), s.slot = next(), s.prompt = next();
    s.tokens = list(tokens);
    s.blocks = list(blocks);
  }
  return input;
}

SequenceBatch::SequenceBatch(RankContext& ctx, const StepInput& input, const CacheShapes& shapes,
                             int64_t block_size)
    : count(std::ssize(input.sequences)), block_size(block_size) {
  std::vector<int64_t> token_ids, rows, logits, before, own;
  std::vector<int32_t> cu = {0}, lengths;
  int64_t most = 1;
  for (const StepInput::Sequence& s : input.sequences) most = std::max(most, std::ssize(s.blocks));
  std::vector<int32_t> table(static_cast<size_t>(count * most), 0);
  for (int64_t index = 0; index < count; ++index) {
    const StepInput::Sequence& s = input.sequences[static_cast<size_t>(index)];
    const int64_t queries = std::ssize(s.tokens), keys = s.first + queries;
    require(queries > 0 && std::ssize(s.blocks) * block_size >= keys && s.logits <= queries,
            "step: a sequence of {} + {} tokens has {} blocks of {}", s.first, queries, s.blocks.size(),
            block_size);
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t position = s.first + i;
      token_ids.push_back(s.tokens[static_cast<size_t>(i)]);
      host_positions.push_back(position);
      rope_lengths.push_back(std::max(s.prompt, position + 1));
      rows.push_back(s.blocks[static_cast<size_t>(position / block_size)] * block_size +
                     position % block_size);
      if (i >= queries - s.logits) logits.push_back(cu.back() + i);
    }
    std::copy(s.blocks.begin(), s.blocks.end(), table.begin() + index * most);
    cu.push_back(static_cast<int32_t>(cu.back() + queries));
    lengths.push_back(static_cast<int32_t>(keys));
    own.push_back(s.slot);
    before.push_back(s.first == 0 ? -1 : s.slot);
    max_queries = std::max(max_queries, queries);
    max_keys = std::max(max_keys, keys);
  }
  ids = row(ctx, token_ids);
  positions = row(ctx, host_positions);
  slots = row(ctx, rows);
  cu_queries = row(ctx, cu);
  key_lengths = row(ctx, lengths);
  blocks = ctx.from_vector(table, {count, most});
  wanted = row(ctx, logits);
  states = row(ctx, own);
  states_before = row(ctx, before);
  std::set<int64_t> widths;
  for (const auto& [layer, shape] : shapes)
    if (shape.kept > 0) widths.insert(shape.kept);
  for (int64_t kept : widths) convolutions.emplace(kept, convolution_rows(ctx, input, kept));
}

SequenceBatch::SequenceBatch(RankContext& ctx, int64_t sequences, int64_t max_blocks, int64_t block_size)
    : count(sequences), max_queries(1), max_keys(max_blocks * block_size), block_size(block_size) {
  const Tensor rows = ctx.empty({3, sequences}, DType::I64);
  ids = rows.select(0, 0);
  positions = rows.select(0, 1);
  slots = rows.select(0, 2);
  const Tensor numbers = ctx.empty({sequences * (1 + max_blocks)}, DType::I32);
  key_lengths = numbers.slice(0, 0, sequences);
  blocks = numbers.slice(0, sequences, numbers.numel()).view({sequences, max_blocks});
  std::vector<int32_t> cu;
  for (int64_t i = 0; i <= sequences; ++i) cu.push_back(static_cast<int32_t>(i));
  cu_queries = row(ctx, cu);
}

void SequenceBatch::refill(RankContext& ctx, const StepInput& input, int64_t spare_block) {
  const int64_t most = blocks.size(1), given = std::ssize(input.sequences);
  require(given <= count, "step: {} sequences, but there is room for {}", given, count);
  std::vector<int64_t> rows(static_cast<size_t>(3 * count), 0);
  std::vector<int32_t> numbers(static_cast<size_t>(count * (1 + most)), 0);
  for (int64_t i = 0; i < count; ++i) {
    const auto at = [&](int64_t part) { return static_cast<size_t>(part * count + i); };
    const auto table = numbers.begin() + count + i * most;
    if (i >= given) {
      rows[at(2)] = spare_block * block_size;
      numbers[at(0)] = 1;
      table[0] = static_cast<int32_t>(spare_block);
      continue;
    }
    const StepInput::Sequence& s = input.sequences[static_cast<size_t>(i)];
    require(s.tokens.size() == 1 && s.logits == 1 && std::ssize(s.blocks) <= most &&
                std::ssize(s.blocks) * block_size > s.first,
            "step: a sequence of {} + {} tokens with {} blocks of {} does not fit {} blocks", s.first,
            s.tokens.size(), s.blocks.size(), block_size, most);
    rows[at(0)] = s.tokens[0];
    rows[at(1)] = s.first;
    rows[at(2)] = s.blocks[static_cast<size_t>(s.first / block_size)] * block_size + s.first % block_size;
    numbers[at(0)] = static_cast<int32_t>(s.first + 1);
    std::copy(s.blocks.begin(), s.blocks.end(), table);
  }
  // `ids` and `key_lengths` stand first in the memory that they share with the others.
  ctx.runtime->copy_from_host(ids.raw(), rows.data(), rows.size() * sizeof(int64_t), ctx.stream.native());
  ctx.runtime->copy_from_host(key_lengths.raw(), numbers.data(), numbers.size() * sizeof(int32_t),
                              ctx.stream.native());
}

}  // namespace megatron
