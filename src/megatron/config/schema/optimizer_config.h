#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class OptimizerKind { adam, sgd, muon, dist_muon, lion, soap, adaptive_muon };
constexpr auto names(OptimizerKind) {
  return std::array{"adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"};
}

struct OptimizerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/optimizer.def"
#undef SETTING
};

enum class LrDecay { constant, linear, cosine, inverse_square_root, wsd };
constexpr auto names(LrDecay) {
  return std::array{"constant", "linear", "cosine", "inverse-square-root", "WSD"};
}
enum class WsdDecay { exponential, linear, cosine, minus_sqrt };
constexpr auto names(WsdDecay) { return std::array{"exponential", "linear", "cosine", "minus_sqrt"}; }
enum class WeightDecayGrowth { constant, linear, cosine };
constexpr auto names(WeightDecayGrowth) { return std::array{"constant", "linear", "cosine"}; }

struct SchedulerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/scheduler.def"
#undef SETTING
};

}  // namespace megatron
