#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class Fp8Format { none, e4m3, hybrid };
constexpr auto names(Fp8Format) { return std::array{"none", "e4m3", "hybrid"}; }
enum class Fp8Recipe { delayed, tensorwise, mxfp8, blockwise, custom };
constexpr auto names(Fp8Recipe) {
  return std::array{"delayed", "tensorwise", "mxfp8", "blockwise", "custom"};
}
enum class AmaxAlgorithm { most_recent, max };
constexpr auto names(AmaxAlgorithm) { return std::array{"most_recent", "max"}; }
enum class Fp4Format { none, e2m1 };
constexpr auto names(Fp4Format) { return std::array{"none", "e2m1"}; }
enum class Fp4Recipe { nvfp4, custom };
constexpr auto names(Fp4Recipe) { return std::array{"nvfp4", "custom"}; }

struct PrecisionConfig {
  // Number formats
  bool fp16 = false;
  bool bf16 = false;
  std::string params_dtype = "fp32";
  std::string pipeline_dtype = "fp32";
  std::string output_logit_dtype;
  bool fp16_lm_cross_entropy = false;
  bool disable_bf16_reduced_precision_matmul = false;
  bool deterministic_mode = false;

  // fp8
  Fp8Format fp8 = Fp8Format::none;
  Fp8Recipe fp8_recipe = Fp8Recipe::delayed;
  bool fp8_param = false;
  int64_t fp8_margin = 0;
  int64_t fp8_interval = 1;
  int64_t fp8_amax_history_len = 1;
  AmaxAlgorithm fp8_amax_compute_algo = AmaxAlgorithm::most_recent;
  bool fp8_wgrad = true;
  bool fp8_output_proj = false;
  bool fp8_dot_product_attention = false;
  bool fp8_multi_head_attention = false;
  bool tp_only_amax_red = false;
  bool first_last_layers_bf16 = false;
  int64_t num_layers_at_start_in_bf16 = 1;
  int64_t num_layers_at_end_in_bf16 = 1;
  bool reuse_grad_buf_for_mxfp8_param_ag = false;
  bool keep_fp8_transpose_cache = false;
  // The layers at either end that fp8 leaves in bf16.
  int64_t bf16_at_start() const { return first_last_layers_bf16 ? num_layers_at_start_in_bf16 : 0; }
  int64_t bf16_at_end() const { return first_last_layers_bf16 ? num_layers_at_end_in_bf16 : 0; }
  bool every_layer_in_fp8() const { return fp8 != Fp8Format::none && bf16_at_start() + bf16_at_end() == 0; }

  // fp4
  Fp4Format fp4 = Fp4Format::none;
  Fp4Recipe fp4_recipe = Fp4Recipe::nvfp4;
  bool fp4_param = false;
  std::string te_precision_config_file;
};

template <>
const Schema& schema<PrecisionConfig>();

}  // namespace megatron
