#pragma once

#include <string>

#include "megatron/device/kernel_context.h"
#include "megatron/kernels/activation.h"
#include "megatron/kernels/argmax.h"
#include "megatron/kernels/attention.h"
#include "megatron/kernels/cross_entropy.h"
#include "megatron/kernels/decode_layers.h"
#include "megatron/kernels/elementwise.h"
#include "megatron/kernels/gemm.h"
#include "megatron/kernels/gemm_fused.h"
#include "megatron/kernels/index.h"
#include "megatron/kernels/moe.h"
#include "megatron/kernels/norm.h"
#include "megatron/kernels/optimizer.h"
#include "megatron/kernels/qkv.h"
#include "megatron/kernels/qkv_cache.h"
#include "megatron/kernels/quantize.h"
#include "megatron/kernels/recurrent.h"
#include "megatron/kernels/rope.h"
#include "megatron/kernels/sample.h"
#include "megatron/kernels/sinkhorn.h"

namespace megatron {

class AttentionDispatchLog;

template <class Args>
using Kernel = void (*)(const KernelContext&, const Args&);

// What a device can compute. Kernels trust the shapes: ops has checked them.
struct KernelTable {
  Kernel<GemmArgs> gemm = nullptr;
  Kernel<GroupedGemmArgs> grouped_gemm = nullptr;
  Kernel<GroupedGemmWeightArgs> grouped_gemm_weight = nullptr;
  FusedKernel<GemmSwigluArgs> gemm_swiglu = not_fused;
  FusedKernel<GemmSwigluBackwardArgs> gemm_swiglu_backward = not_fused;
  FusedKernel<GemmGeluArgs> gemm_gelu = not_fused;
  FusedKernel<GemmGeluBackwardArgs> gemm_gelu_backward = not_fused;
  FusedKernel<GemmSoftmaxStatsArgs> gemm_softmax_stats = not_fused;
  GemmAutotune gemm_autotune;

  Kernel<UnaryArgs> unary = nullptr;
  Kernel<UnaryBackwardArgs> unary_backward = nullptr;
  Kernel<BinaryArgs> binary = nullptr;
  Kernel<CompareArgs> compare = nullptr;
  Kernel<AxpbyArgs> axpby = nullptr;
  Kernel<CopyArgs> copy = nullptr;
  Kernel<FillArgs> fill = nullptr;
  Kernel<WhereArgs> where = nullptr;
  Kernel<ReduceArgs> reduce = nullptr;
  Kernel<SoftmaxArgs> softmax = nullptr;
  Kernel<SoftmaxBackwardArgs> softmax_backward = nullptr;
  Kernel<DropoutArgs> dropout = nullptr;
  Kernel<RandomArgs> random = nullptr;

  Kernel<NormArgs> norm = nullptr;
  Kernel<NormBackwardArgs> norm_backward = nullptr;
  Kernel<RopeTableArgs> rope_table = nullptr;
  Kernel<RopeArgs> rope = nullptr;
  Kernel<QkvSplitArgs> qkv_split = nullptr;
  FusedKernel<QkvCacheArgs> qkv_cache = not_fused;
  FusedKernel<DecodeLayersArgs> decode_layers = not_fused;
  Kernel<AttentionArgs> attention = nullptr;
  Kernel<AttentionBackwardArgs> attention_backward = nullptr;
  Kernel<AttentionMergeArgs> attention_merge = nullptr;
  // Which of its attention kernels a device has dispatched; null where it has one.
  const AttentionDispatchLog& (*attention_log)(const KernelContext&) = nullptr;
  Kernel<GatedArgs> gated = nullptr;
  Kernel<GatedBackwardArgs> gated_backward = nullptr;

  Kernel<CausalConvArgs> causal_conv = nullptr;
  Kernel<CausalConvBackwardArgs> causal_conv_backward = nullptr;
  Kernel<GatedNormSumsArgs> gated_norm_sums = nullptr;
  Kernel<GatedNormArgs> gated_norm = nullptr;
  Kernel<GatedNormBackwardArgs> gated_norm_backward = nullptr;
  Kernel<SsdArgs> ssd = nullptr;
  Kernel<SsdBackwardArgs> ssd_backward = nullptr;
  Kernel<DeltaRuleArgs> delta_rule = nullptr;
  Kernel<DeltaRuleBackwardArgs> delta_rule_backward = nullptr;
  Kernel<ChannelDeltaArgs> channel_delta = nullptr;
  Kernel<ChannelDeltaBackwardArgs> channel_delta_backward = nullptr;

  Kernel<SinkhornArgs> sinkhorn = nullptr;
  Kernel<SinkhornBackwardArgs> sinkhorn_backward = nullptr;

  Kernel<GatherRowsArgs> gather_rows = nullptr;
  Kernel<ScatterAddRowsArgs> scatter_add_rows = nullptr;
  Kernel<PutRowsArgs> put_rows = nullptr;
  Kernel<GatherColumnsArgs> gather_columns = nullptr;
  Kernel<ScatterColumnsArgs> scatter_columns = nullptr;
  Kernel<TopKArgs> top_k = nullptr;
  FusedKernel<ArgmaxArgs> argmax = not_fused;  // on the CPU whoever asks can look itself
  FusedKernel<SampleArgs> sample = not_fused;  // likewise
  Kernel<CrossEntropyStatsArgs> cross_entropy_stats = nullptr;
  Kernel<CrossEntropyLossArgs> cross_entropy_loss = nullptr;
  Kernel<CrossEntropyGradArgs> cross_entropy_grad = nullptr;
  Kernel<CrossEntropyArgs> cross_entropy = nullptr;

  Kernel<ExpertSortArgs> expert_sort = nullptr;
  Kernel<PermuteArgs> permute = nullptr;
  Kernel<UnpermuteArgs> unpermute = nullptr;
  Kernel<UnpermuteBackwardArgs> unpermute_backward = nullptr;

  Kernel<QuantizeArgs> quantize = nullptr;
  Kernel<QuantizeGroupedArgs> quantize_grouped = nullptr;
  Kernel<QuantizeBlocksArgs> quantize_blocks = nullptr;
  Kernel<DequantizeArgs> dequantize = nullptr;

  Kernel<AdamArgs> adam = nullptr;
  Kernel<SumSquaresArgs> sum_squares = nullptr;
  Kernel<CountZerosArgs> count_zeros = nullptr;
  Kernel<SplitFloatArgs> split_float = nullptr;

  // Calls visit(name, member) for every kernel: for tests and for the meta table.
  template <class Table, class Visitor>
  static void visit(Table& t, Visitor&& v) {
    v("gemm", t.gemm), v("grouped_gemm", t.grouped_gemm), v("grouped_gemm_weight", t.grouped_gemm_weight);
    v("gemm_swiglu", t.gemm_swiglu), v("gemm_swiglu_backward", t.gemm_swiglu_backward);
    v("gemm_gelu", t.gemm_gelu), v("gemm_gelu_backward", t.gemm_gelu_backward);
    v("gemm_softmax_stats", t.gemm_softmax_stats);
    v("unary", t.unary), v("unary_backward", t.unary_backward), v("binary", t.binary),
        v("compare", t.compare);
    v("axpby", t.axpby);
    v("copy", t.copy), v("fill", t.fill), v("where", t.where), v("reduce", t.reduce), v("softmax", t.softmax);
    v("softmax_backward", t.softmax_backward), v("dropout", t.dropout), v("random", t.random);
    v("norm", t.norm), v("norm_backward", t.norm_backward), v("rope_table", t.rope_table), v("rope", t.rope);
    v("qkv_split", t.qkv_split), v("qkv_cache", t.qkv_cache), v("attention", t.attention),
        v("attention_backward", t.attention_backward), v("attention_merge", t.attention_merge),
        v("gated", t.gated);
    v("gated_backward", t.gated_backward);
    v("causal_conv", t.causal_conv), v("causal_conv_backward", t.causal_conv_backward);
    v("gated_norm_sums", t.gated_norm_sums), v("gated_norm", t.gated_norm);
    v("gated_norm_backward", t.gated_norm_backward), v("ssd", t.ssd), v("ssd_backward", t.ssd_backward);
    v("delta_rule", t.delta_rule), v("delta_rule_backward", t.delta_rule_backward);
    v("channel_delta", t.channel_delta), v("channel_delta_backward", t.channel_delta_backward);
    v("sinkhorn", t.sinkhorn), v("sinkhorn_backward", t.sinkhorn_backward);
    v("gather_rows", t.gather_rows);
    v("scatter_add_rows", t.scatter_add_rows), v("put_rows", t.put_rows),
        v("gather_columns", t.gather_columns);
    v("scatter_columns", t.scatter_columns), v("top_k", t.top_k), v("argmax", t.argmax),
        v("sample", t.sample);
    v("cross_entropy_stats", t.cross_entropy_stats), v("cross_entropy_loss", t.cross_entropy_loss);
    v("cross_entropy_grad", t.cross_entropy_grad), v("cross_entropy", t.cross_entropy);
    v("expert_sort", t.expert_sort), v("permute", t.permute), v("unpermute", t.unpermute);
    v("unpermute_backward", t.unpermute_backward), v("quantize", t.quantize),
        v("quantize_grouped", t.quantize_grouped), v("quantize_blocks", t.quantize_blocks),
        v("dequantize", t.dequantize);
    v("adam", t.adam), v("sum_squares", t.sum_squares), v("count_zeros", t.count_zeros),
        v("split_float", t.split_float);
  }
};

const KernelTable& cpu_kernels();
const KernelTable& meta_kernels();  // every kernel does nothing: ops still checks shapes and allocates
const KernelTable& cuda_kernels();  // of kernels/cuda, or of kernels/none, which throws
// The table of a kind of device. CPU: the variant for the widest vectors this machine has.
const KernelTable& kernels_for(Device device);

std::string cpu_instruction_set();  // of the CPU's kernels: "AVX-512" or "AVX2"

}  // namespace megatron
