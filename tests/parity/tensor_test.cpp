#include <gtest/gtest.h>

#include <fstream>

#include "parity/cases.h"
#include "support/temp_dir.h"

// Tensor parallelism beyond the plain split: fewer KV heads than ranks, communication beside GEMMs.
namespace megatron::testing {
namespace {

Config with_groups(int64_t groups) {
  Config config = small_gpt();
  config.model.num_query_groups = groups;
  config.model.qk_layernorm = true;
  config.model.add_qkv_bias = true;
  config.train.global_batch_size = 8;
  return config;
}

const Layout kManyRanks[] = {
    {.name = "tp2", .tp = 2},
    {.name = "tp4", .tp = 4},
    {.name = "tp4_sp", .tp = 4, .sp = true},
    {.name = "tp4_sp_cp2", .tp = 4, .cp = 2, .sp = true},
    {.name = "tp4_pp2", .tp = 4, .pp = 2},
};

TEST(TensorParity, TwoKeyHeads) { check_layouts(with_groups(2), kManyRanks); }
TEST(TensorParity, OneKeyHead) { check_layouts(with_groups(1), kManyRanks); }

// Norms without weights, and weights that start by the size of the whole matrix.
TEST(TensorParity, NormsWithoutWeights) {
  Config config = with_groups(2);
  config.model.qk_layernorm = false;
  config.model.qk_l2_norm = config.model.init_method_xavier_uniform = true;
  check_layouts(config, kManyRanks);
}

void overlap(Config& config) { config.parallel.tp_comm_overlap = true; }
void overlap_gradients(Config& config) {
  config.parallel.tp_comm_overlap = config.parallel.tp_comm_overlap_rs_dgrad = true;
}
void overlap_some(Config& config) {
  config.parallel.tp_comm_overlap = config.parallel.tp_comm_overlap_disable_qkv = true;
  config.parallel.tp_comm_overlap_rs = config.parallel.tp_comm_bulk_wgrad = false;
}
void overlap_others(Config& config) {
  config.parallel.tp_comm_overlap = config.parallel.tp_comm_overlap_disable_fc1 = true;
  config.parallel.tp_comm_overlap_ag = config.parallel.tp_comm_bulk_dgrad = false;
}

// A file that gives each of four linears another way.
void overlap_by_file(Config& config) {
  static const TempDir folder;
  static const std::string path = [] {
    std::ofstream(folder / "overlap.yaml") << "qkv_fprop: {method: ring_exchange, aggregate: 1}\n"
                                              "qkv_dgrad: {method: pipeline, num_splits: 2, num_sm: 4}\n"
                                              "qkv_wgrad: {method: none}\n"
                                              "proj_fprop: {method: pipeline, num_splits: 3}\n"
                                              "proj_dgrad: {method: ring_exchange, aggregate: true}\n"
                                              "fc1_fprop: {method: none}\n"
                                              "fc1_dgrad: {method: bulk, num_sm: 2, set_sm_margin: 0}\n"
                                              "fc1_wgrad: {method: bulk, num_sm: 8}\n"
                                              "fc2_fprop: {method: ring_exchange}\n"
                                              "fc2_dgrad: {method: none}\n";
    return folder / "overlap.yaml";
  }();
  config.parallel.tp_comm_overlap = true;
  config.parallel.tp_comm_overlap_cfg = path;
}

const Layout kOverlaps[] = {
    {.name = "tp2", .tp = 2, .sp = true, .change = overlap},
    {.name = "tp4", .tp = 4, .sp = true, .change = overlap},
    {.name = "tp4_gradients", .tp = 4, .sp = true, .change = overlap_gradients},
    {.name = "tp2_file", .tp = 2, .sp = true, .change = overlap_by_file},
    {.name = "tp4_file", .tp = 4, .sp = true, .change = overlap_by_file},
    {.name = "tp2_some", .tp = 2, .sp = true, .change = overlap_some},
    {.name = "tp2_others", .tp = 2, .sp = true, .change = overlap_others},
    {.name = "tp2_pp2_dp2", .tp = 2, .pp = 2, .dp = 2, .sp = true, .change = overlap},
    {.name = "tp2_cp2", .tp = 2, .cp = 2, .sp = true, .change = overlap},
};

TEST(TensorParity, OverlapGroupedQueryTiedRope) { check_layouts(small_gpt(), kOverlaps); }
TEST(TensorParity, OverlapBiases) { check_layouts(with_biases_and_layernorm(), kOverlaps); }
TEST(TensorParity, OverlapDropout) { check_layouts(with_dropout(), kOverlaps); }

// A split backward pass keeps the local tokens and gathers them again for the weight's gradient.
TEST(TensorParity, OverlapWithZeroBubble) {
  Layout layout{.name = "tp2_pp2", .tp = 2, .pp = 2, .sp = true, .change = [](Config& config) {
                  config.parallel.tp_comm_overlap = true;
                  config.parallel.pipeline_schedule = PipelineSchedule::zb_h1;
                }};
  check_layouts(small_gpt(), {&layout, 1});
}

// Several ranks that share one GPU.
TEST(CudaParity, OverlapOfRanksThatShareAGpu) { check_on_gpu(small_gpt(), kOverlaps); }

}  // namespace
}  // namespace megatron::testing
