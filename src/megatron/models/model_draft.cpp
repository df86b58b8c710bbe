#include <algorithm>

#include "megatron/models/gather_columns.h"
#include "megatron/models/model.h"
#include "megatron/models/whole_model.h"
#include "megatron/ops/index.h"

// Model's guesses by MTP layers.
namespace megatron {
namespace {

// What a depth reads: the tokens that follow, one further for each depth, and guesses where the text ends.
std::vector<int64_t> tokens_of_depth(const DraftInput& input, int64_t depth,
                                     const std::vector<std::vector<int64_t>>& guesses) {
  std::vector<int64_t> ids;
  size_t wanting = 0;
  for (size_t i = 0; i < input.step.sequences.size(); ++i) {
    const StepInput::Sequence& sequence = input.step.sequences[i];
    std::vector<int64_t> follow = sequence.tokens;
    follow.insert(follow.end(), input.known[i].begin(), input.known[i].end());
    if (sequence.logits > 0) {
      for (const std::vector<int64_t>& guess : guesses) follow.push_back(guess[wanting]);
      ++wanting;
    }
    // A text that goes on elsewhere in this step has tokens enough but at its very end.
    follow.resize(std::max(follow.size(), sequence.tokens.size() + static_cast<size_t>(depth)),
                  follow.back());
    const auto begin = follow.begin() + depth;
    ids.insert(ids.end(), begin, begin + std::ssize(sequence.tokens));
  }
  return ids;
}

}  // namespace

GptModel* Model::draft_chunk() const {
  for (const auto& chunk : chunks_)
    if (chunk->slice().mtp && chunk->slice().head) return chunk.get();
  return nullptr;
}

// Where they stand beside the head.
int64_t Model::draft_depths() const {
  return mtp_stage_ == shape_.pp * shape_.vpp - 1 ? config_.mtp_num_layers : 0;
}

CacheShapes Model::draft_shapes(int64_t depth) const {
  const GptModel* chunk = draft_chunk();
  return chunk ? chunk->mtp_cache_shapes(depth) : CacheShapes{};
}

std::vector<int64_t> Model::likeliest(RankContext& ctx, GptModel& head, const Tensor& hidden) {
  const Tensor all = gather_columns(ctx, head.logits(ctx, hidden), parallel_.tensor.group);
  Tensor single = ctx.empty({all.size(0), config_.vocab_size}, DType::F32);
  ctx.kernels->copy(ctx.kernel_context(), {all.slice(1, 0, config_.vocab_size), single});
  const std::vector<float> values = ctx.to_vector<float>(single);
  std::vector<int64_t> ids;
  for (auto row = values.begin(); row != values.end(); row += config_.vocab_size)
    ids.push_back(std::max_element(row, row + config_.vocab_size) - row);
  return ids;
}

std::vector<std::vector<int64_t>> Model::draft(RankContext& ctx, const DraftInput& input,
                                               std::span<const std::unique_ptr<PagedCache>> caches) {
  NoGrad no_grad(ctx);
  const int64_t wanted = input.step.logits(), depths = std::ssize(caches);
  std::vector<std::vector<int64_t>> guesses;
  if (GptModel* chunk = draft_chunk()) {
    require(decoded_.defined(), "draft: there was no step before it");
    const SequenceBatch batch(ctx, input.step, chunk->mtp_cache_shapes(0), caches[0]->block_size());
    SeqInfo seq = chunk->sequences(ctx, batch);
    std::vector<int64_t> rows;
    for (size_t i = 0; i < input.rows.size(); ++i)
      for (int64_t at = 0; at < std::ssize(input.step.sequences[i].tokens); ++at)
        rows.push_back(input.rows[i] + at);
    const auto count = static_cast<int64_t>(rows.size());
    Tensor hidden = ops::gather_rows(ctx, decoded_, ctx.from_vector(rows, {count}));
    for (int64_t depth = 0; depth < depths; ++depth) {
      seq.cache = caches[static_cast<size_t>(depth)].get();
      const Tensor ids = ctx.from_vector(tokens_of_depth(input, depth, guesses), {count});
      hidden = chunk->run_mtp_layer(ctx, depth, ids, hidden, seq);
      guesses.push_back(wanted > 0 ? likeliest(ctx, *chunk, ops::gather_rows(ctx, hidden, batch.wanted))
                                   : std::vector<int64_t>{});
    }
  }
  decoded_ = {};
  if (wanted == 0) return std::vector<std::vector<int64_t>>(static_cast<size_t>(depths));
  std::vector<int64_t> flat;
  for (const auto& guess : guesses) flat.insert(flat.end(), guess.begin(), guess.end());
  flat.resize(static_cast<size_t>(depths * wanted));
  Tensor all = ctx.from_vector(flat, {depths * wanted});
  stages_.broadcast(all, last_rank()).wait();
  flat = ctx.to_vector<int64_t>(all);
  guesses.clear();
  for (auto at = flat.begin(); at != flat.end(); at += wanted) guesses.emplace_back(at, at + wanted);
  return guesses;
}

}  // namespace megatron
