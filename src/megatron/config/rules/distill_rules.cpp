#include "megatron/config/rules/rules.h"

namespace megatron {
namespace {

// Which models learn from a teacher.
void teacher_goes_with(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const ModelConfig& model = config.model;
  if (!config.distill.has_teacher() || builder.purpose == Purpose::forward) return;
  const char* teacher = "distill.export_kd_teacher_load";
  if (model.masks_text())
    builder.reject(teacher, "decoders alone learn from a teacher", "leave it out, or use --model-type gpt");
  if (model.has_tower())
    builder.reject(teacher, "models with a vision tower do not learn from a teacher", "leave it out");
  if (model.output_logit_dtype == "fp32")
    builder.reject("model.output_logit_dtype",
                   "logits are compared with a teacher's in the model's own format", "leave it out");
  if (config.train.freeze_all_layers)
    builder.reject("train.freeze_all_layers", "nothing would be learned from the teacher", "leave it out");
}

constexpr Rule kDistillRules[] = {
    {"teacher_goes_with",
     "distill.export_kd_teacher_load model.model_type model.vision_tower model.output_logit_dtype "
     "train.freeze_all_layers",
     "decoders alone learn from a teacher, and learn", teacher_goes_with},
};

}  // namespace

std::span<const Rule> distill_rules() { return kDistillRules; }

}  // namespace megatron
