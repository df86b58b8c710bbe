#include <gtest/gtest.h>

#include "parity/cases.h"

// What is recomputed, or waits on the host, changes nothing but memory: against one rank that keeps
// everything.
namespace megatron::testing {
namespace {

using Change = void (*)(Config&);

template <RecomputeMethod method, int layers>
void full(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::full;
  config.execution.recompute_method = method;
  config.execution.recompute_num_layers = layers;
}
constexpr Change uniform1 = full<RecomputeMethod::uniform, 1>, uniform2 = full<RecomputeMethod::uniform, 2>,
                 block1 = full<RecomputeMethod::block, 1>;

void selective(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"core_attn", "layernorm", "mlp"};
}
void norms(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"layernorm"};
}
void activations(Config& config) {
  config.execution.recompute_granularity = RecomputeGranularity::selective;
  config.execution.recompute_modules = {"mlp_act"};
}
void overlapped_activations(Config& config) {
  activations(config);
  config.parallel.tp_comm_overlap = true;
}
void spread(Config& config) {
  uniform1(config);
  config.execution.distribute_saved_activations = true;
}
void offload(Config& config) {
  config.execution.cpu_offloading = true;
  config.execution.cpu_offloading_num_layers = 3;
}
void offload_modules(Config& config) {
  config.execution.fine_grained_activation_offloading = true;
  config.execution.offload_modules = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"};
  config.execution.min_offloaded_tensor_size = 0;
}

template <PipelineSchedule kind, Change change>
void with(Config& config) {
  config.parallel.pipeline_schedule = kind;
  change(config);
}

const Layout kLayouts[] = {
    {.name = "uniform1", .change = uniform1},
    {.name = "uniform2", .change = uniform2},
    {.name = "block1", .change = block1},
    {.name = "selective", .change = selective},
    {.name = "norms", .change = norms},
    {.name = "offload", .change = offload},
    {.name = "offload_modules", .change = offload_modules},
    {.name = "tp2_uniform1", .tp = 2, .change = uniform1},
    {.name = "tp2_spread", .tp = 2, .change = spread},
    {.name = "tp2_sp_uniform2", .tp = 2, .sp = true, .change = uniform2},
    {.name = "tp2_sp_selective", .tp = 2, .sp = true, .change = selective},
    {.name = "tp2_sp_norms", .tp = 2, .sp = true, .change = norms},
    {.name = "tp2_norms", .tp = 2, .change = norms},
    {.name = "tp2_sp_offload", .tp = 2, .sp = true, .change = offload_modules},
    {.name = "pp2_vpp2_block1", .pp = 2, .vpp = 2, .change = block1},
    {.name = "gpipe_uniform1", .pp = 2, .change = with<PipelineSchedule::gpipe, uniform1>},
    {.name = "zb_h1_uniform2", .pp = 2, .change = with<PipelineSchedule::zb_h1, uniform2>},
    {.name = "zb_h1_selective", .pp = 4, .change = with<PipelineSchedule::zb_h1, selective>},
    {.name = "zb_v_norms", .pp = 2, .vpp = 2, .change = with<PipelineSchedule::zb_v, norms>},
    {.name = "zb_v_offload", .pp = 2, .vpp = 2, .change = with<PipelineSchedule::zb_v, offload_modules>},
    {.name = "tp2_sp_zb_h1_norms",
     .tp = 2,
     .pp = 2,
     .sp = true,
     .change = with<PipelineSchedule::zb_h1, norms>},
    {.name = "tp2_zb_v_spread", .tp = 2, .pp = 2, .vpp = 2, .change = with<PipelineSchedule::zb_v, spread>},
    {.name = "dp2_selective", .dp = 2, .change = selective},
    {.name = "cp2_selective", .cp = 2, .change = selective},
    {.name = "cp2_tp2_sp_uniform2", .tp = 2, .cp = 2, .sp = true, .change = uniform2},
};

// Gated, as the modules of the last two must be.
const Layout kGated[] = {
    {.name = "activations", .change = activations},
    {.name = "tp2_activations", .tp = 2, .change = activations},
    {.name = "tp2_sp_overlapped", .tp = 2, .sp = true, .change = overlapped_activations},
    {.name = "tp2_sp_zb_h1_overlapped",
     .tp = 2,
     .pp = 2,
     .sp = true,
     .change = with<PipelineSchedule::zb_h1, overlapped_activations>},
};

TEST(RecomputeParity, GatedActivations) { check_layouts(small_gpt(), kGated); }
TEST(RecomputeParity, Dropout) { check_layouts(with_dropout(), kLayouts); }
TEST(RecomputeParity, LayerNormBiasUntied) {
  check_layouts(with_biases_and_layernorm(), std::span(kLayouts).first(14));
}

TEST(CudaRecomputeParity, OneRank) {
  if (cuda_device_count() == 0) GTEST_SKIP() << "no usable GPU";
  Config config = with_dropout();
  auto batches = batches_for(config, kSteps);
  Trained kept = train(config, {}, batches);
  for (const Layout& layout : std::span(kLayouts).first(7)) {
    SCOPED_TRACE(layout.name);
    Device gpu{DeviceType::Cuda, 0};
    expect_equal(kept, train(apply(config, layout), {}, batches, DType::F64, {}, gpu), kTolerance);
  }
}

}  // namespace
}  // namespace megatron::testing
