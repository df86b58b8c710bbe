#include <fmt/ranges.h>

#include "megatron/config/resolve/quant_cfg.h"
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

// Those of ModelOpt that look at sample inputs first are not built.
void quant_cfg_is_built(ConfigBuilder& builder) {
  const DistillConfig& distill = builder.config.distill;
  if (!distill.rounds()) return;
  const char* key = "distill.export_quant_cfg";
  const std::string& name = distill.export_quant_cfg;
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  if (builder.purpose == Purpose::forward)
    return builder.reject(key, "linears are rounded in training and its evaluations alone",
                          "leave it out, or use --quantization int8");
  if (quant_cfg(name)) return;
  if (has("SMOOTHQUANT"))
    return builder.reject(key, "inputs are not smoothed: that needs calibration, which is not built",
                          "use INT8_DEFAULT_CFG");
  if (has("AWQ"))
    return builder.reject(key, "the scales of AWQ are found by calibration, which is not built",
                          has("NVFP4") ? "use NVFP4_DEFAULT_CFG" : "use INT4_BLOCKWISE_WEIGHT_ONLY_CFG");
  builder.reject(key, "no such configuration is built", fmt::format("use {}", fmt::join(kQuantCfgs, ", ")));
}

void rounds_once(ConfigBuilder& builder) {
  const PrecisionConfig& p = builder.config.precision;
  if (!builder.config.distill.rounds() || builder.purpose == Purpose::forward) return;
  if (p.fp8 != Fp8Format::none)
    builder.reject("model.fp8", "--export-quant-cfg rounds what linears multiply",
                   "leave out --fp8-format or --export-quant-cfg");
  else if (!p.te_precision_config_file.empty())
    builder.reject("model.te_precision_config_file", "--export-quant-cfg rounds what linears multiply",
                   "leave out --te-precision-config-file or --export-quant-cfg");
}

void mtp_layers_learn(ConfigBuilder& builder) {
  if (builder.config.distill.qad_train_target == TrainTarget::mtp && builder.config.model.mtp_num_layers == 0)
    builder.reject("distill.qad_train_target", "the model has no MTP layers",
                   "add --mtp-num-layers 1, or leave it out");
}

// What a recording is of, and who learns from one.
void recording_goes_with(ConfigBuilder& builder) {
  const Config& config = builder.config;
  const DistillConfig& distill = config.distill;
  if ((!distill.records() && !distill.learns_from_recording()) || builder.purpose == Purpose::forward) return;
  const char *save = "distill.logits_save_dir", *load = "distill.logits_load_dir";
  const char* key = distill.records() ? save : load;
  if (config.model.masks_text())
    builder.reject(key, "predictions of decoders alone are recorded",
                   "leave it out, or use --model-type gpt");
  if (config.model.has_tower())
    builder.reject(key, "predictions of models with a vision tower are not recorded", "leave it out");
  if (distill.records() && distill.learns_from_recording())
    return builder.reject(load, "the run records predictions (--logits-save-dir)", "leave one of them out");
  if (distill.records() && distill.logits_save_top_k == 0)
    builder.reject(save, "how many tokens are recorded is not said", "add --logits-save-top-k 64");
  if (distill.records() && !config.train.freeze_all_layers)
    builder.reject(save, "the model would change while it is recorded", "add --freeze-all-layers");
  if (!distill.learns_from_recording()) return;
  if (distill.has_teacher())
    builder.reject(load, "the run has a teacher (--export-kd-teacher-load)", "leave one of them out");
  if (config.train.freeze_all_layers)
    builder.reject("train.freeze_all_layers", "nothing would be learned from the recording", "leave it out");
}

constexpr Rule kDistillRules[] = {
    {"teacher_goes_with",
     "distill.export_kd_teacher_load model.model_type model.vision_tower model.output_logit_dtype "
     "train.freeze_all_layers",
     "decoders alone learn from a teacher, and learn", teacher_goes_with},
    {"recording_goes_with",
     "distill.logits_save_dir distill.logits_save_top_k distill.logits_load_dir "
     "distill.export_kd_teacher_load "
     "model.model_type model.vision_tower train.freeze_all_layers",
     "decoders that stay as they are are recorded, and others learn from that", recording_goes_with},
    {"quant_cfg_is_built", "distill.export_quant_cfg",
     "configurations of quantisation are those that need no calibration", quant_cfg_is_built},
    {"rounds_once", "distill.export_quant_cfg model.fp8 model.te_precision_config_file",
     "linears are rounded or in fp8, not both", rounds_once},
    {"mtp_layers_learn", "distill.qad_train_target model.mtp_num_layers",
     "MTP layers learn alone where there are any", mtp_layers_learn},
};

}  // namespace

std::span<const Rule> distill_rules() { return kDistillRules; }

}  // namespace megatron
