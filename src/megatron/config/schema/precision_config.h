#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class Fp8Format { none, e4m3, hybrid };
constexpr auto names(Fp8Format) { return std::array{"none", "e4m3", "hybrid"}; }
enum class Fp8Recipe { delayed, tensorwise, mxfp8, blockwise, custom };
constexpr auto names(Fp8Recipe) {
  return std::array{"delayed", "tensorwise", "mxfp8", "blockwise", "custom"};
}
enum class Fp4Format { none, e2m1 };
constexpr auto names(Fp4Format) { return std::array{"none", "e2m1"}; }
enum class AmaxAlgorithm { most_recent, max };
constexpr auto names(AmaxAlgorithm) { return std::array{"most_recent", "max"}; }

struct PrecisionConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/precision.def"
#undef SETTING

  // The layers at either end that fp8 leaves in bf16.
  int64_t bf16_at_start() const { return first_last_layers_bf16 ? num_layers_at_start_in_bf16 : 0; }
  int64_t bf16_at_end() const { return first_last_layers_bf16 ? num_layers_at_end_in_bf16 : 0; }
  bool every_layer_in_fp8() const { return fp8 != Fp8Format::none && bf16_at_start() + bf16_at_end() == 0; }
};

}  // namespace megatron
