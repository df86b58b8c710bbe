#include "megatron/config/schema/distill_config.h"

namespace megatron {
namespace {

Schema distill_config_schema() {
  using C = DistillConfig;
  Schema s("distill", "Distillation and export");
  s.field<&C::logits_save_top_k>("logits_save_top_k", "save this many of each position's largest logits")
      .min(1);
  s.field<&C::logits_save_top_p>("logits_save_top_p", "or as many as make up this probability")
      .above(0)
      .max(1);
  s.field<&C::logits_save_top_p_min_k>("logits_save_top_p_min_k", "but at least this many").min(1);
  s.field<&C::logits_save_dir>("logits_save_dir", "folder for saved logits");
  s.field<&C::logits_save_dtype>("logits_save_dtype", "number format of saved logits")
      .dtype({"fp16", "bf16", "fp32"});
  s.field<&C::logits_load_dir>("logits_load_dir", "folder with a teacher's saved logits");
  s.field<&C::logits_load_decode_threads>("logits_load_decode_threads", "threads that read them").min(1);
  s.field<&C::logits_load_prefetch_factor>("logits_load_prefetch_factor", "batches read ahead").min(1);
  s.field<&C::logits_load_kd_loss_alpha>("logits_load_kd_loss_alpha",
                                         "weight of the teacher against the text")
      .min(0)
      .max(1);
  s.field<&C::logits_load_ignore_errors>("logits_load_ignore_errors",
                                         "go on without logits that cannot be read");
  s.field<&C::export_model_type>("export_model_type", "kind of model to export");
  s.field<&C::export_quant_cfg>("export_quant_cfg", "quantisation to calibrate");
  s.field<&C::export_real_quant_cfg>("export_real_quant_cfg", "write quantised weights");
  s.field<&C::export_kv_cache_quant>("export_kv_cache_quant", "quantise keys and values");
  s.field<&C::export_kd_teacher_load>("export_kd_teacher_load", "checkpoint of a teacher in the same run");
  s.field<&C::export_kd_teacher_model_config>("export_kd_teacher_model_config", "its model settings");
  s.field<&C::export_kd_teacher_ckpt_format>("export_kd_teacher_ckpt_format", "its layout");
  s.field<&C::export_kd_cfg>("export_kd_cfg", "YAML file of the distillation losses");
  s.field<&C::qad_train_target>("qad_train_target", "what is trained after quantisation");
  return s;
}

}  // namespace

template <>
const Schema& schema<DistillConfig>() {
  static const Schema rows = distill_config_schema();
  return rows;
}

}  // namespace megatron
