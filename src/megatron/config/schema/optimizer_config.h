#pragma once

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class OptimizerKind { adam, sgd, muon, dist_muon, lion, soap, adaptive_muon };
constexpr auto names(OptimizerKind) {
  return std::array{"adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"};
}

enum class MuonScale { spectral, unit_rms_norm, shape_scaling };
constexpr auto names(MuonScale) { return std::array{"spectral", "unit_rms_norm", "shape_scaling"}; }
enum class MuonCoefficients { simple, quintic, polar_express, cans, aol, deepseekv4, cubic5 };
constexpr auto names(MuonCoefficients) {
  return std::array{"simple", "quintic", "polar_express", "cans", "aol", "deepseekv4", "cubic5"};
}
enum class SecondMoment { adamuon, normuon };
constexpr auto names(SecondMoment) { return std::array{"adamuon", "normuon"}; }
enum class MuonTpMode { blockwise, duplicated, distributed };
constexpr auto names(MuonTpMode) { return std::array{"blockwise", "duplicated", "distributed"}; }
enum class MuonScalarOptimizer { adam, lion };
constexpr auto names(MuonScalarOptimizer) { return std::array{"adam", "lion"}; }

struct OptimizerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/optimizer.def"
#undef SETTING

  bool is_muon() const {
    return optimizer == OptimizerKind::muon || optimizer == OptimizerKind::dist_muon ||
           optimizer == OptimizerKind::adaptive_muon;
  }
  bool is_soap() const { return optimizer == OptimizerKind::soap; }
};

enum class LrDecay { constant, linear, cosine, inverse_square_root, wsd };
constexpr auto names(LrDecay) {
  return std::array{"constant", "linear", "cosine", "inverse-square-root", "WSD"};
}
enum class WsdDecay { exponential, linear, cosine, minus_sqrt };
constexpr auto names(WsdDecay) { return std::array{"exponential", "linear", "cosine", "minus_sqrt"}; }
enum class WeightDecayGrowth { constant, linear, cosine };
constexpr auto names(WeightDecayGrowth) { return std::array{"constant", "linear", "cosine"}; }

enum class WeightDecayCondition { none, apply_wd_to_qk_layernorm, qwen3_next };
constexpr auto names(WeightDecayCondition) {
  return std::array{"none", "apply_wd_to_qk_layernorm", "qwen3_next"};
}

struct SchedulerConfig {
  static const Schema& rows();
#define SETTING(type, name, value, ...) type name = value;
#include "megatron/config/settings/scheduler.def"
#undef SETTING
};

}  // namespace megatron
