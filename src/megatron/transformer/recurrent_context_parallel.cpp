#include "megatron/transformer/recurrent_context_parallel.h"

#include "megatron/ops/shape.h"
#include "megatron/parallel/context/attention.h"
#include "megatron/transformer/token_mixer.h"

namespace megatron {

RecurrentContextParallel::RecurrentContextParallel(const char* layer, const ContextParallel& context,
                                                   std::vector<Part> parts)
    : context_(context), parts_(std::move(parts)) {
  const int64_t ranks = context.size();
  for (const Part& part : parts_)
    require(part.heads % ranks == 0 || (part.shared && ranks % part.heads == 0),
            "{}: {} heads cannot be shared by {} context-parallel ranks", layer, part.heads, ranks);
}

RecurrentContextParallel::Heads RecurrentContextParallel::heads_of(const Part& part, int rank) const {
  const int64_t ranks = context_.size();
  if (part.heads % ranks == 0) return {rank * part.heads / ranks, (rank + 1) * part.heads / ranks};
  const int64_t head = rank * part.heads / ranks;
  return {head, head + 1};
}

int64_t RecurrentContextParallel::heads(size_t part) const {
  const Heads own = heads_of(parts_[part], context_.rank());
  return own.end - own.begin;
}

SequenceRows RecurrentContextParallel::rows(const SeqInfo& seq) const {
  if (context_.size() == 1) return sequence_rows(seq);
  return {.count = seq.context.slice.sequences, .cu = seq.context.cu_whole};
}

std::vector<Tensor> RecurrentContextParallel::whole(RankContext& ctx, const std::vector<Tensor>& matrices,
                                                    const SeqInfo& seq) const {
  if (context_.size() == 1) return matrices;
  std::vector<Tensor> columns;       // of each part
  std::vector<int64_t> own_columns;  // of each matrix, for this rank
  for (const Tensor& matrix : matrices) {
    std::vector<int64_t> sizes;
    int64_t all = 0, own = 0;
    for (size_t i = columns.size(); i < parts_.size() && all < matrix.size(1); ++i) {
      sizes.push_back(parts_[i].heads * parts_[i].width);
      all += sizes.back();
      own += heads(i) * parts_[i].width;
    }
    for (Tensor& part : ops::split(ctx, matrix, sizes, 1)) columns.push_back(std::move(part));
    own_columns.push_back(own);
  }
  // Rank by rank, so that what goes to one lies together and travels at once.
  std::vector<Tensor> pieces;
  for (int rank = 0; rank < context_.size(); ++rank)
    for (size_t i = 0; i < parts_.size(); ++i) {
      const Heads heads = heads_of(parts_[i], rank);
      pieces.push_back(
          ops::slice(ctx, columns[i], 1, heads.begin * parts_[i].width, heads.end * parts_[i].width));
    }
  const Tensor by_rank = ops::concat(ctx, pieces, 1);
  const int64_t width = by_rank.size(1) / context_.size();
  const Tensor whole =
      tokens_for_heads(ctx, ops::view(ctx, by_rank, {by_rank.size(0), context_.size(), width}),
                       context_.group, seq.context.whole);
  return ops::split(ctx, ops::view(ctx, whole, {whole.size(0), width}), own_columns, 1);
}

Tensor RecurrentContextParallel::held(RankContext& ctx, const Tensor& y, const SeqInfo& seq) const {
  if (context_.size() == 1) return y;
  const Tensor held =
      heads_for_tokens(ctx, ops::view(ctx, y, {y.size(0), 1, y.size(1)}), context_.group, seq.context.whole);
  return ops::view(ctx, held, {held.size(0), held.size(1) * held.size(2)});
}

Weight RecurrentContextParallel::weight(RankContext& ctx, Parameter& parameter, size_t first, size_t count,
                                        bool per_head) const {
  if (context_.size() == 1) return parameter.get(ctx);
  std::vector<ops::RowRange> ranges;
  int64_t begin = 0;
  for (size_t i = first; i < first + count; ++i) {
    const int64_t width = per_head ? 1 : parts_[i].width;
    const Heads heads = heads_of(parts_[i], context_.rank());
    ranges.push_back({begin + heads.begin * width, begin + heads.end * width});
    begin += parts_[i].heads * width;
  }
  return ops::weight_rows(ctx, parameter.get(ctx), ranges);
}

}  // namespace megatron
