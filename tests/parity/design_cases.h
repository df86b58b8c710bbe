#pragma once

#include <map>

#include "parity/cases.h"
#include "parity/covering_design.h"

// The settings that layouts are made of, which of them go together, and the run that a row of them stands
// for.
namespace megatron::testing {

enum Setting : size_t {
  kModel,
  kTp,
  kSp,
  kPp,
  kVpp,
  kSchedule,
  kDp,
  kZero,
  kCp,
  kEp,
  kEtp,
  kDispatch,
  kRecompute,
  kMicrobatches,
  kDropout,
  kOverlap,
};

enum ModelLevel { kDense, kGqa, kTied, kLatent, kMoe, kMoeShared, kMoeBiases };
enum ScheduleLevel { kNoPipeline, kOneFOneB, kGpipe, kZbH1, kInterleaved, kZbV };
enum ZeroLevel { kZero0, kZero1, kZero2, kZero3, kZero1In2, kZero3In2 };
enum CpLevel { kNoCp, kRing2, kGather2, kA2a2, kRing4, kMix4 };
enum RecomputeLevel { kKeep, kUniform, kBlock, kSelective, kExpertsAgain, kOffload, kSpread };

inline int power(int level) { return 1 << level; }  // 1, 2, 4
inline int cp_size(int level) { return level == kNoCp ? 1 : level < kRing4 ? 2 : 4; }
inline bool has_experts(int model) { return model >= kMoe; }
inline int etp_size(const DesignRow& row) { return row[kEtp] == 0 ? power(row[kTp]) : row[kEtp]; }

constexpr int kMaxRanks = 16, kDesignBatch = 16;

// `ranks`: only layouts of just so many; 0: of up to sixteen.
inline CoveringDesign layout_design(int ranks = 0) {
  std::vector<Factor> factors = {
      {"model", {"dense", "gqa", "tied", "mla", "moe", "moe_shared", "moe_biases"}},
      {"tp", {"1", "2", "4"}},
      {"sp", {"off", "on"}},
      {"pp", {"1", "2", "4"}},
      {"vpp", {"1", "2"}},
      {"schedule", {"none", "1f1b", "gpipe", "zb-h1", "interleaved", "zb-v"}},
      {"dp", {"1", "2", "4"}},
      {"zero", {"0", "1", "2", "3", "1 in 2 copies", "3 in 2 copies"}},
      {"cp", {"1", "p2p 2", "all_gather 2", "a2a 2", "p2p 4", "a2a+p2p 4"}},
      {"ep", {"1", "2", "4"}},
      {"etp", {"as tp", "1", "2"}},
      {"dispatch", {"alltoall", "allgather"}},
      {"recompute", {"none", "uniform", "block", "selective", "moe", "offload", "spread"}},
      {"micro-batches", {"1", "2", "4"}},
      {"dropout", {"off", "on"}},
      {"overlap", {"off", "on"}},
  };
  using Row = DesignRow;
  std::vector<DesignRule> rules = {
      {{kTp, kSp}, [](const Row& r) { return r[kSp] == 0 || r[kTp] > 0; }},
      {{kTp, kPp, kDp, kCp},
       [ranks](const Row& r) {
         int world = power(r[kTp]) * power(r[kPp]) * power(r[kDp]) * cp_size(r[kCp]);
         return ranks ? world == ranks : world <= kMaxRanks;
       }},
      {{kPp, kSchedule}, [](const Row& r) { return (r[kPp] == 0) == (r[kSchedule] == kNoPipeline); }},
      {{kVpp, kSchedule}, [](const Row& r) { return (r[kVpp] == 1) == (r[kSchedule] >= kInterleaved); }},
      // Interleaved stages take micro-batches in groups of as many as there are stages.
      {{kPp, kSchedule, kMicrobatches},
       [](const Row& r) { return r[kSchedule] != kInterleaved || r[kMicrobatches] >= r[kPp]; }},
      // Copies of sharded states: the replicas of every parameter divide into two sets.
      {{kZero, kDp}, [](const Row& r) { return r[kZero] < kZero1In2 || r[kDp] > 0; }},
      {{kZero, kDp, kCp, kTp, kEp, kEtp, kModel},
       [](const Row& r) {
         return r[kZero] < kZero1In2 || !has_experts(r[kModel]) ||
                power(r[kDp]) * cp_size(r[kCp]) * power(r[kTp]) / (power(r[kEp]) * etp_size(r)) % 2 == 0;
       }},
      // Heads are exchanged for tokens: 4 groups of keys over tp and the ranks that exchange.
      {{kTp, kCp}, [](const Row& r) { return r[kCp] != kA2a2 || r[kTp] < 2; }},
      {{kTp, kCp}, [](const Row& r) { return r[kCp] != kMix4 || r[kTp] < 2; }},
      {{kModel, kEp}, [](const Row& r) { return r[kEp] == 0 || has_experts(r[kModel]); }},
      {{kModel, kEtp}, [](const Row& r) { return r[kEtp] == 0 || has_experts(r[kModel]); }},
      {{kModel, kDispatch}, [](const Row& r) { return r[kDispatch] == 0 || has_experts(r[kModel]); }},
      {{kModel, kEp, kEtp, kTp, kCp, kDp},
       [](const Row& r) {
         return !has_experts(r[kModel]) ||
                power(r[kTp]) * cp_size(r[kCp]) * power(r[kDp]) % (power(r[kEp]) * etp_size(r)) == 0;
       }},
      // Saved inputs are spread over tensor-parallel ranks, where tokens are not.
      {{kRecompute, kTp, kSp},
       [](const Row& r) { return r[kRecompute] != kSpread || (r[kTp] > 0 && r[kSp] == 0); }},
  };
  return {std::move(factors), std::move(rules)};
}

struct DesignCase {
  Config one;     // what a rank alone trains
  Config config;  // the same under the layout
  ParallelSizes sizes;
  std::string reference;  // cases of equal reference have the same `one`
};

inline void set_model(Config& config, int level, bool dropout) {
  config.model =
      llama_style({.layers = 4, .hidden = 32, .heads = 8, .groups = 4, .ffn = 48, .vocab = 50, .length = 16});
  ModelConfig& model = config.model;
  model.make_vocab_size_divisible_by = 4;
  model.share_embeddings_and_output_weights = level == kTied || level >= kMoe;
  if (level == kDense || level == kMoeBiases) {
    model.normalization = Normalization::layer_norm;
    model.add_bias_linear = true;
    model.gated_linear_unit = false;
    model.activation_func = Activation::gelu;
    model.position_embedding_type = PositionEmbedding::learned_absolute;
    model.num_query_groups = model.num_attention_heads;
  }
  if (level == kGqa) model.qk_layernorm = model.add_qkv_bias = true;
  if (level == kLatent) {
    model.multi_latent_attention = true;
    model.group_query_attention = false;
    model.num_query_groups = model.num_attention_heads;
    model.q_lora_rank = 12;
    model.kv_lora_rank = 10;
    model.qk_head_dim = 6;
    model.qk_pos_emb_head_dim = 4;
    model.v_head_dim = 5;
    model.rope_type = RopeType::rope;
  }
  if (dropout) {
    model.attention_dropout = 0.2;
    model.hidden_dropout = 0.1;
  }
  if (!has_experts(level)) return;
  model.num_moe_experts = 4;
  model.moe_ffn_hidden_size = 24;
  model.moe_layer_freq = Json(Json::Array{Json(1), Json(0), Json(1), Json(1)});
  model.moe_token_dispatcher_type = TokenDispatcher::alltoall;
  model.moe_aux_loss_coeff = {1e-2};
  if (level == kMoe) model.moe_z_loss_coeff = 1e-3;
  if (level == kMoeShared) {
    model.moe_router_score_function = RouterScore::sigmoid;
    model.moe_router_enable_expert_bias = true;
    model.moe_router_bias_update_rate = 0.005;
    model.moe_router_load_balancing_type = {"seq_aux_loss", "aux_loss"};
    model.moe_aux_loss_coeff = {1e-2, 2e-2};
    model.moe_shared_expert_intermediate_size = 16;
    model.moe_shared_expert_gate = true;
  }
}

inline void set_recompute(Config& config, int level) {
  ExecutionConfig& execution = config.execution;
  const bool experts = config.model.num_moe_experts > 0,
             shared = config.model.moe_shared_expert_intermediate_size > 0;
  switch (level) {
    case kUniform:
    case kBlock:
    case kSpread:
      execution.recompute_granularity = RecomputeGranularity::full;
      execution.recompute_method = level == kBlock ? RecomputeMethod::block : RecomputeMethod::uniform;
      execution.recompute_num_layers = level == kUniform ? 2 : 1;
      execution.distribute_saved_activations = level == kSpread;
      break;
    case kSelective:
      execution.recompute_granularity = RecomputeGranularity::selective;
      execution.recompute_modules = {"core_attn", "layernorm", "mlp_act"};
      if (experts) execution.recompute_modules.push_back("moe_act");
      if (shared) execution.recompute_modules.push_back("shared_experts");
      if (config.model.multi_latent_attention) execution.recompute_modules.push_back("mla_up_proj");
      break;
    case kExpertsAgain:
      execution.recompute_granularity = RecomputeGranularity::selective;
      execution.recompute_modules = {"layernorm", experts ? "moe" : "mlp"};
      if (config.model.multi_latent_attention) execution.recompute_modules.push_back("mla_up_proj");
      break;
    case kOffload:
      execution.fine_grained_activation_offloading = true;
      execution.offload_modules = {"attn_norm", "qkv_linear", "core_attn", "attn_proj", "mlp_norm"};
      if (experts)
        execution.offload_modules.insert(execution.offload_modules.end(), {"expert_fc1", "moe_act"});
      execution.min_offloaded_tensor_size = 0;
      break;
    default:
      break;
  }
}

inline DesignCase design_case(const DesignRow& row) {
  DesignCase result;
  const int tp = power(row[kTp]), pp = power(row[kPp]), dp = power(row[kDp]), cp = cp_size(row[kCp]);
  const bool dropout = row[kDropout] == 1, overlap = row[kOverlap] == 1;
  Config& one = result.one;
  set_model(one, row[kModel], dropout);
  one.train.global_batch_size = kDesignBatch;
  one.train.micro_batch_size = kDesignBatch / dp / power(row[kMicrobatches]);
  one.optimizer.weight_decay = 0.1;
  result.reference = fmt::format("{} {} {}", row[kModel], dropout, one.train.micro_batch_size);

  constexpr PipelineSchedule schedules[] = {PipelineSchedule::automatic,   PipelineSchedule::one_f_one_b,
                                            PipelineSchedule::gpipe,       PipelineSchedule::zb_h1,
                                            PipelineSchedule::interleaved, PipelineSchedule::zb_v};
  constexpr const char* kinds[] = {"p2p", "p2p", "all_gather", "a2a", "p2p", "a2a+p2p"};
  Config& config = result.config = one;
  ParallelConfig& parallel = config.parallel;
  parallel.tensor_model_parallel_size = tp;
  parallel.sequence_parallel = row[kSp] == 1;
  parallel.tp_comm_overlap = overlap && row[kSp] == 1;
  parallel.pipeline_model_parallel_size = pp;
  parallel.virtual_pipeline_model_parallel_size = row[kVpp] == 1 ? 2 : 0;
  if (pp == 4 && row[kVpp] == 1)  // more chunks than layers
    parallel.pipeline_model_parallel_layout = "Et|t||t||t||L";
  parallel.pipeline_schedule = schedules[row[kSchedule]];
  parallel.overlap_p2p_comm = overlap;
  parallel.context_parallel_size = cp;
  parallel.cp_comm_type = {kinds[row[kCp]]};
  if (row[kCp] == kMix4) parallel.hierarchical_context_parallel_sizes = {2, 2};
  parallel.expert_model_parallel_size = power(row[kEp]);
  parallel.expert_tensor_parallel_size = etp_size(row);
  if (row[kDispatch] == 1) config.model.moe_token_dispatcher_type = TokenDispatcher::allgather;
  config.model.moe_shared_expert_overlap = overlap && row[kModel] == kMoeShared && row[kDispatch] == 0;
  set_recompute(config, row[kRecompute]);

  const int copies = row[kZero] >= kZero1In2 ? 2 : 1;
  const int zero = row[kZero] == kZero1In2 ? 1 : row[kZero] == kZero3In2 ? 3 : row[kZero];
  DdpConfig& ddp = config.ddp;
  ddp.use_distributed_optimizer = zero > 0;
  ddp.use_megatron_fsdp = zero > 1;
  ddp.data_parallel_sharding_strategy = static_cast<ShardingStrategy>(zero);
  ddp.overlap_grad_reduce = overlap;
  ddp.overlap_param_gather = overlap && zero > 0;
  ddp.bucket_size = 3000;  // so small that a chunk has several buckets
  ddp.num_distributed_optimizer_instances = copies;

  ParallelSizes& sizes = result.sizes;
  sizes = {.world = tp * pp * dp * cp, .tp = tp, .pp = pp, .cp = cp, .ep = power(row[kEp])};
  sizes.etp = etp_size(row);
  if (row[kCp] == kMix4) sizes.cp_levels = {2, 2};
  sizes.optimizer_instances = copies;
  return result;
}

// One rank's training, made once for all cases that share it.
class References {
 public:
  explicit References(int steps, DType dtype = DType::F64) : steps_(steps), dtype_(dtype) {}

  const std::vector<std::vector<int64_t>>& batches(const DesignCase& c) {
    if (batches_.empty()) batches_ = random_batches(c.one, steps_);
    return batches_;
  }
  const Trained& of(const DesignCase& c) {
    auto [at, added] = known_.try_emplace(c.reference);
    if (added) at->second = train(c.one, {}, batches(c), dtype_);
    return at->second;
  }

 private:
  int steps_;
  DType dtype_;
  std::vector<std::vector<int64_t>> batches_;
  std::map<std::string, Trained> known_;
};

inline void check_rows(const CoveringDesign& design, std::span<const DesignRow> rows, int steps = kSteps,
                       Device device = kCpu) {
  References references(steps);
  for (const DesignRow& row : rows) {
    SCOPED_TRACE(design.text(row));
    try {
      DesignCase c = design_case(row);
      const Trained& one = references.of(c);
      expect_equal(one, train(c.config, c.sizes, references.batches(c), DType::F64, {}, device), kTolerance);
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
}

// What the rows hold against what there is to hold, counted apart from how the rows were found.
inline void expect_covered(const CoveringDesign& design, std::span<const DesignRow> rows, size_t strength) {
  std::set<uint64_t> held;
  for (const DesignRow& row : rows) {
    ASSERT_TRUE(design.possible(row)) << design.text(row);
    design.each_part(row, strength, [&](const DesignRow& part) { held.insert(design.key(part)); });
  }
  size_t possible = 0, impossible = 0;
  design.combinations(strength, [&](const DesignRow& part) {
    if (!design.possible(part)) {
      ++impossible;
      return;
    }
    ++possible;
    EXPECT_TRUE(held.count(design.key(part))) << "no layout has " << design.text(part);
  });
  fmt::print("{} layouts hold all {} combinations of {} settings that there can be ({} cannot)\n",
             rows.size(), possible, strength, impossible);
  EXPECT_GT(possible, 0u);
}

}  // namespace megatron::testing
