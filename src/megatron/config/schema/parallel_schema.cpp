#include "megatron/config/schema/parallel_config.h"

namespace megatron {
namespace {

Schema parallel_config_schema() {
  using C = ParallelConfig;
  Schema s("model", "Parallelism");

  // Degrees
  s.field<&C::tensor_model_parallel_size>("tensor_model_parallel_size",
                                          "ranks that share each layer's matrices")
      .min(1)
      .max(1 << 20)
      .also("-tp")
      .tune({1, 2, 4, 8});
  s.field<&C::pipeline_model_parallel_size>("pipeline_model_parallel_size",
                                            "stages that the layers are cut into")
      .min(1)
      .max(1 << 20)
      .also("-pp")
      .tune({1, 2, 4, 8, 16});
  s.field<&C::context_parallel_size>("context_parallel_size", "ranks that share each sequence")
      .min(1)
      .max(1 << 20)
      .also("-cp")
      .tune({1, 2, 4, 8});
  s.field<&C::expert_model_parallel_size>("expert_model_parallel_size", "ranks that share the experts")
      .min(1)
      .max(1 << 20)
      .also("-ep")
      .tune({1, 2, 4, 8, 16, 32, 64});
  s.field<&C::expert_tensor_parallel_size>("expert_tensor_parallel_size",
                                           "ranks that share each expert's matrices")
      .min(1)
      .max(1 << 20)
      .also("-etp")
      .when_unset("tensor_model_parallel_size")
      .tune({1, 2, 4, 8});
  s.field<&C::sequence_parallel>(
       "sequence_parallel",
       "norms, dropout and residuals are split by sequence over the tensor-parallel ranks")
      .tune({false, true});
  s.field<&C::tensor_parallel_num_weight_shards>("tensor_parallel_num_weight_shards",
                                                 "shards that each matrix is kept in")
      .min(1)
      .max(1 << 20)
      .when_unset("tensor_model_parallel_size");
  s.field<&C::expert_tensor_parallel_num_weight_shards>("expert_tensor_parallel_num_weight_shards",
                                                        "shards that each expert's matrix is kept in")
      .min(1)
      .max(1 << 20)
      .when_unset("expert_tensor_parallel_size");

  // Pipeline
  s.field<&C::pipeline_schedule>("pipeline_schedule",
                                 "order of forward and backward passes; zb-h1 and zb-v fill the waiting time "
                                 "with weight gradients")
      .tune({"auto", "zb-h1", "zb-v"});
  s.field<&C::virtual_pipeline_model_parallel_size>(
       "virtual_pipeline_model_parallel_size", "model chunks on each pipeline rank (interleaved schedule)")
      .min(1)
      .max(1 << 20)
      .flag("--num-virtual-stages-per-pipeline-rank")
      .also("-vp")
      .when_unset("1")
      .tune({1, 2, 4, 8});
  s.field<&C::num_layers_per_virtual_pipeline_stage>("num_layers_per_virtual_pipeline_stage",
                                                     "layers in one chunk, instead of the number of chunks")
      .min(1)
      .max(1 << 20);
  s.field<&C::microbatch_group_size_per_vp_stage>("microbatch_group_size_per_vp_stage",
                                                  "micro-batches that run through a chunk in a row")
      .min(1)
      .flag("--microbatch-group-size-per-virtual-pipeline-stage")
      .when_unset("pipeline_model_parallel_size");
  s.field<&C::pipeline_model_parallel_layout>(
      "pipeline_model_parallel_layout",
      "which layers each stage holds: E embedding, t layer, m MTP layer, L loss, | between stages");
  s.field<&C::num_layers_in_first_pipeline_stage>("num_layers_in_first_pipeline_stage",
                                                  "layers on the first stage, where it differs")
      .min(1)
      .max(1 << 20)
      .flag("--decoder-first-pipeline-num-layers");
  s.field<&C::num_layers_in_last_pipeline_stage>("num_layers_in_last_pipeline_stage",
                                                 "layers on the last stage, where it differs")
      .min(1)
      .max(1 << 20)
      .flag("--decoder-last-pipeline-num-layers");
  s.field<&C::account_for_embedding_in_pipeline_split>(
      "account_for_embedding_in_pipeline_split", "the embedding counts as a layer when layers are dealt out");
  s.field<&C::account_for_loss_in_pipeline_split>("account_for_loss_in_pipeline_split",
                                                  "the loss counts as a layer when layers are dealt out");
  s.field<&C::overlap_p2p_comm>("overlap_p2p_comm", "stages exchange activations while they compute")
      .off_flag("--no-overlap-p2p-communication")
      .when_unset("on with more than one stage")
      .alias("comm_overlap.overlap_p2p_comm");
  s.field<&C::overlap_p2p_comm_warmup_flush>("overlap_p2p_comm_warmup_flush",
                                             "also while the pipeline fills and drains")
      .flag("--overlap-p2p-communication-warmup-flush");
  s.field<&C::pipeline_model_parallel_comm_backend>("pipeline_model_parallel_comm_backend",
                                                    "library for messages between stages; none chooses");
  s.field<&C::defer_embedding_wgrad_compute>(
       "defer_embedding_wgrad_compute", "the output head's weight gradient waits until the pipeline drains")
      .alias("comm_overlap.defer_embedding_wgrad_compute");
  s.field<&C::wgrad_deferral_limit>("wgrad_deferral_limit",
                                    "micro-batches whose weight gradient may wait; 0: all")
      .min(0)
      .alias("comm_overlap.wgrad_deferral_limit");
  s.field<&C::variable_seq_lengths>("variable_seq_lengths", "micro-batches differ in length").no_flag();

  // Context
  s.field<&C::cp_comm_type>(
       "cp_comm_type",
       "how ranks that share a sequence exchange keys and values, one for all layers or one each")
      .one_of({"p2p", "all_gather", "a2a", "a2a+p2p"});
  s.field<&C::hierarchical_context_parallel_sizes>("hierarchical_context_parallel_sizes",
                                                   "inner and outer group sizes of a2a+p2p")
      .min(1);
  s.field<&C::hybrid_context_parallel>("hybrid_context_parallel",
                                       "each packed sample gets as many ranks as its length needs");
  s.field<&C::max_seqlen_per_dp_cp_rank>("max_seqlen_per_dp_cp_rank",
                                         "tokens that one rank takes of a sample")
      .min(1);

  // Overlap
  s.field<&C::tp_comm_overlap>("tp_comm_overlap", "matrix products run while their operands travel")
      .tune({false, true})
      .alias("comm_overlap.tp_comm_overlap");
  s.field<&C::tp_comm_overlap_cfg>("tp_comm_overlap_cfg",
                                   "YAML file with the overlap method of each matrix product")
      .alias("comm_overlap.tp_comm_overlap_cfg");
  s.field<&C::tp_comm_overlap_ag>("tp_comm_overlap_ag", "overlap all-gathers");
  s.field<&C::tp_comm_overlap_rs>("tp_comm_overlap_rs", "overlap reduce-scatters");
  s.field<&C::tp_comm_overlap_rs_dgrad>("tp_comm_overlap_rs_dgrad",
                                        "overlap the reduce-scatter of input gradients with their product");
  s.field<&C::tp_comm_bulk_dgrad>("tp_comm_bulk_dgrad",
                                  "overlap an all-gather with the input gradient's product");
  s.field<&C::tp_comm_bulk_wgrad>("tp_comm_bulk_wgrad",
                                  "overlap a reduce-scatter with the weight gradient's product");
  s.field<&C::tp_comm_overlap_disable_qkv>("tp_comm_overlap_disable_qkv", "no overlap in the QKV projection");
  s.field<&C::tp_comm_overlap_disable_fc1>("tp_comm_overlap_disable_fc1",
                                           "no overlap in the first feed-forward layer");
  s.field<&C::tp_comm_bootstrap_backend>("tp_comm_bootstrap_backend",
                                         "library that sets up overlapped communication")
      .alias("comm_overlap.tp_comm_bootstrap_backend");
  s.field<&C::overlap_moe_expert_parallel_comm>(
       "overlap_moe_expert_parallel_comm", "expert tokens of one micro-batch travel while another computes")
      .tune({false, true})
      .alias("comm_overlap.overlap_moe_expert_parallel_comm");
  s.field<&C::delay_wgrad_compute>("delay_wgrad_compute",
                                   "weight gradients of experts wait until tokens travel")
      .alias("ddp.delay_wgrad_compute")
      .alias("comm_overlap.delay_wgrad_compute");
  s.field<&C::ep_overlap_early_attn_memory_release>("ep_overlap_early_attn_memory_release",
                                                    "run attention's backward earlier, for less memory");
  s.field<&C::overlap_dispatch_backward_with_experts_wgrad>(
      "overlap_dispatch_backward_with_experts_wgrad",
      "the experts' weight gradients run while gradients travel back");
  return s;
}

}  // namespace

template <>
const Schema& schema<ParallelConfig>() {
  static const Schema rows = parallel_config_schema();
  return rows;
}

}  // namespace megatron
