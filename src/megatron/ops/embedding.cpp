#include "megatron/ops/embedding.h"

#include "megatron/kernels/narrow_weight.h"
#include "megatron/ops/check.h"
#include "megatron/ops/quantize.h"

namespace megatron::ops {
namespace {

class EmbeddingNode final : public Node {
 public:
  EmbeddingNode(RankContext& ctx, const Weight& table, const Tensor& ids, int64_t first)
      : table_(table), ids_(ctx, ids), first_(first) {
    table_.accumulator->expect_use();
  }
  const char* name() const override { return "embedding"; }

  void backward_data(RankContext& ctx, Tape& tape) override {
    Tensor dy = tape.take_grad(output());
    ctx.kernels->scatter_add_rows(ctx.kernel_context(), {.source = dy,
                                                         .ids = ids_.get(ctx),
                                                         .out = table_.accumulator->target(ctx),
                                                         .first = first_,
                                                         .accumulate = table_.accumulator->has_value()});
    ctx.trace("embedding", Phase::BackwardData, static_cast<double>(dy.numel()),
              2.0 * static_cast<double>(dy.bytes()));
    ids_.reset();
    table_.accumulator->contribute(ctx);
  }

 private:
  Weight table_;
  Saved ids_;
  int64_t first_;
};

void check_table(const RankContext& ctx, const Tensor& table, const Tensor& ids) {
  check_input(ctx, "embedding", "table", table);
  check_input(ctx, "embedding", "ids", ids);
  require(table.rank() == 2, "embedding: the table is {}, but it must be [rows, hidden]", table);
  require(ids.rank() == 1 && ids.is_contiguous(), "embedding: ids are {}, but they must be [tokens]", ids);
  check_dtype("embedding", "ids", ids, DType::I64);
}

Tensor look_up(RankContext& ctx, const Weight& table, const Tensor& ids, int64_t first) {
  Tensor y = ctx.empty({ids.size(0), table.value.size(1)}, table.value.dtype());
  ctx.kernels->gather_rows(ctx.kernel_context(), {table.value, ids, y, first});
  if (table.scale) {
    Tensor scale = ctx.empty({ids.size(0), table.scale.size(1)}, table.scale.dtype());
    ctx.kernels->gather_rows(ctx.kernel_context(), {table.scale, ids, scale, first});
    return dequantize(ctx, {y, scale, 1, scale_columns(y.dtype())}, table.wide);
  }
  ctx.trace("embedding", Phase::Forward, 0, 2.0 * static_cast<double>(y.bytes()));
  if (needs_grad(ctx, {}, {&table})) record(ctx, std::make_unique<EmbeddingNode>(ctx, table, ids, first), y);
  return y;
}

}  // namespace

Tensor embedding(RankContext& ctx, const Weight& table, const Tensor& ids, int64_t first,
                 int64_t vocab_size) {
  check_table(ctx, table.value, ids);
  require(first == 0 || vocab_size > 0,
          "embedding: the table {} begins at {} of the vocabulary, so vocab_size must say how large that is",
          table.value, first);
  check_range(ctx, "embedding", "id", ids, vocab_size ? vocab_size : table.value.size(0), "a vocabulary");
  return look_up(ctx, table, ids, first);
}

Tensor embedding_or_zeros(RankContext& ctx, const Weight& table, const Tensor& ids) {
  check_table(ctx, table.value, ids);
  check_range(ctx, "embedding", "id", ids, table.value.size(0), "a table", -1);
  return look_up(ctx, table, ids, 0);
}

}  // namespace megatron::ops
