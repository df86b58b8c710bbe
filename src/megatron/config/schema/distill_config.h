#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class KvCacheQuant { none, fp8, fp8_affine, nvfp4, nvfp4_affine, nvfp4_rotate };
constexpr auto names(KvCacheQuant) {
  return std::array{"none", "fp8", "fp8_affine", "nvfp4", "nvfp4_affine", "nvfp4_rotate"};
}
enum class RealQuant { none, fp8_real_quant, fp8_blockwise_real_quant };
constexpr auto names(RealQuant) { return std::array{"none", "fp8_real_quant", "fp8_blockwise_real_quant"}; }
enum class QadTarget { none, base, mtp, both };
constexpr auto names(QadTarget) { return std::array{"none", "base", "mtp", "both"}; }
enum class ExportModel { gpt, hybrid, mamba };
constexpr auto names(ExportModel) { return std::array{"GPTModel", "HybridModel", "MambaModel"}; }

struct DistillConfig {
  std::optional<int64_t> logits_save_top_k;
  std::optional<double> logits_save_top_p;
  int64_t logits_save_top_p_min_k = 1;
  std::string logits_save_dir;
  std::string logits_save_dtype = "fp16";
  std::string logits_load_dir;
  int64_t logits_load_decode_threads = 4;
  int64_t logits_load_prefetch_factor = 3;
  double logits_load_kd_loss_alpha = 1;
  bool logits_load_ignore_errors = false;
  ExportModel export_model_type = ExportModel::gpt;
  std::string export_quant_cfg;
  RealQuant export_real_quant_cfg = RealQuant::none;
  KvCacheQuant export_kv_cache_quant = KvCacheQuant::none;
  std::string export_kd_teacher_load;
  std::string export_kd_teacher_model_config;
  std::string export_kd_teacher_ckpt_format;
  std::string export_kd_cfg;
  QadTarget qad_train_target = QadTarget::none;
};

template <>
const Schema& schema<DistillConfig>();

}  // namespace megatron
