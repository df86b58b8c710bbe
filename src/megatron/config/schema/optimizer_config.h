#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "megatron/config/schema/setting.h"

namespace megatron {

enum class OptimizerKind { adam, sgd, muon, dist_muon, lion, soap, adaptive_muon };
constexpr auto names(OptimizerKind) {
  return std::array{"adam", "sgd", "muon", "dist_muon", "lion", "soap", "adaptive_muon"};
}
enum class MuonScale { spectral, unit_rms_norm, shape_scaling };
constexpr auto names(MuonScale) { return std::array{"spectral", "unit_rms_norm", "shape_scaling"}; }
enum class MuonTpMode { blockwise, duplicated, distributed };
constexpr auto names(MuonTpMode) { return std::array{"blockwise", "duplicated", "distributed"}; }
enum class MuonScalarOptimizer { adam, lion };
constexpr auto names(MuonScalarOptimizer) { return std::array{"adam", "lion"}; }
enum class AdaptiveMuonMoment { adamuon, normuon };
constexpr auto names(AdaptiveMuonMoment) { return std::array{"adamuon", "normuon"}; }

struct OptimizerConfig {
  OptimizerKind optimizer = OptimizerKind::adam;
  std::optional<double> lr;
  double min_lr = 0;
  std::optional<double> decoupled_lr;
  std::optional<double> decoupled_min_lr;
  double weight_decay = 0.01;
  bool decoupled_weight_decay = true;
  bool apply_wd_to_qk_layernorm = false;
  double clip_grad = 1;
  std::optional<double> grad_norm_skip_threshold;
  double adam_beta1 = 0.9;
  double adam_beta2 = 0.999;
  double adam_eps = 1e-8;
  double sgd_momentum = 0.9;
  double muon_momentum = 0.95;
  bool muon_nesterov = false;
  bool muon_split_qkv = true;
  MuonScale muon_scale_mode = MuonScale::spectral;
  std::string muon_coefficient_type = "quintic";
  int64_t muon_num_ns_steps = 5;
  MuonTpMode muon_tp_mode = MuonTpMode::duplicated;
  double muon_extra_scale_factor = 1;
  MuonScalarOptimizer muon_scalar_optimizer = MuonScalarOptimizer::adam;
  double lion_beta1 = 0.95;
  double lion_beta2 = 0.98;
  double soap_shampoo_beta = 0.95;
  bool soap_use_kl_shampoo = true;
  AdaptiveMuonMoment adaptive_muon_moment2_method = AdaptiveMuonMoment::adamuon;
  double adaptive_muon_beta2 = 0.95;
  double adaptive_muon_eps = 1e-8;
  std::optional<double> loss_scale;
  double initial_loss_scale = 4294967296;
  double min_loss_scale = 1;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool use_precision_aware_optimizer = false;
  bool store_param_remainders = true;
  std::string main_grads_dtype = "fp32";
  std::string main_params_dtype = "fp32";
  std::string exp_avg_dtype = "fp32";
  std::string exp_avg_sq_dtype = "fp32";
  bool optimizer_cpu_offload = false;
  double optimizer_offload_fraction = 1;
  bool overlap_cpu_optimizer_d2h_h2d = false;
  bool optimizer_cuda_graph = false;
  bool use_layer_wise_distributed_optimizer = false;
};

template <>
const Schema& schema<OptimizerConfig>();

enum class LrDecay { constant, linear, cosine, inverse_square_root, wsd };
constexpr auto names(LrDecay) {
  return std::array{"constant", "linear", "cosine", "inverse-square-root", "WSD"};
}
enum class WsdDecay { exponential, linear, cosine, minus_sqrt };
constexpr auto names(WsdDecay) { return std::array{"exponential", "linear", "cosine", "minus_sqrt"}; }
enum class WeightDecayGrowth { constant, linear, cosine };
constexpr auto names(WeightDecayGrowth) { return std::array{"constant", "linear", "cosine"}; }

struct SchedulerConfig {
  LrDecay lr_decay_style = LrDecay::linear;
  WsdDecay lr_wsd_decay_style = WsdDecay::exponential;
  int64_t lr_decay_iters = 0;
  int64_t lr_decay_samples = 0;
  int64_t lr_wsd_decay_iters = 0;
  int64_t lr_wsd_decay_samples = 0;
  std::optional<double> lr_warmup_fraction;
  int64_t lr_warmup_iters = 0;
  int64_t lr_warmup_samples = 0;
  double lr_warmup_init = 0;
  std::optional<double> start_weight_decay;
  std::optional<double> end_weight_decay;
  WeightDecayGrowth weight_decay_incr_style = WeightDecayGrowth::constant;
  bool override_opt_param_scheduler = false;
  bool use_checkpoint_opt_param_scheduler = false;
};

template <>
const Schema& schema<SchedulerConfig>();

}  // namespace megatron
