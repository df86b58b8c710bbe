#include "megatron/transformer/output_stage.h"

#include "megatron/ops/elementwise.h"

namespace megatron {

OutputStage::OutputStage(const ModelConfig& config, const TensorParallel& tp)
    : multiplier_(config.output_multiplier.value_or(1)) {
  // Where each layer ends with a norm of the sum, there is none left to do.
  if (!config.layernorm_after_residual)
    norm_ = std::make_unique<Norm>("decoder.final_layernorm", config.hidden_size, config, tp);
  if (config.masked_lm_head) masked_lm_ = std::make_unique<MaskedLmHead>("lm_head", config, tp);
  if (config.model_type == ModelType::bert && config.bert_binary_head)
    binary_ = std::make_unique<BinaryHead>(config, tp);
}

Tensor OutputStage::forward(RankContext& ctx, Residual& residual, const SeqInfo* seq, Tensor* sentence) {
  Tensor x = norm_             ? norm_->forward(ctx, residual, seq ? seq->elastic.get() : nullptr)
             : residual.update ? ops::add(ctx, residual.hidden, residual.update)
                               : residual.hidden;
  if (binary_ && sentence) *sentence = binary_->forward(ctx, x, *seq);
  if (masked_lm_) x = masked_lm_->forward(ctx, x);
  return multiplier_ == 1 ? x : ops::scale(ctx, x, multiplier_);
}

void OutputStage::visit(const ParameterVisitor& visitor) {
  if (norm_) norm_->visit(visitor);
  if (masked_lm_) masked_lm_->visit(visitor);
  if (binary_) binary_->visit(visitor);
}

}  // namespace megatron
