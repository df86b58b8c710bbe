#include "megatron/kernels/cudnn_support.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace megatron {
namespace {

int64_t power_of_two(int64_t n) { return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(n))); }

// cuDNN takes ragged offsets in 32 bits.
bool offsets_fit(std::initializer_list<const Tensor*> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor* x) {
    return x->size(0) * x->stride(0) <= std::numeric_limits<int32_t>::max();
  });
}

// Packed sequences should attend to themselves as a whole, on the average fill a tile, and not differ so much
// that scratch memory, where each has the length of the longest, would be many times theirs. (Told how many
// tokens there are in all, cuDNN 9.14 needs less, but reads what is not its own where strides differ.)
std::string_view packing_refused(const AttentionArgs& a, const CudnnSupport& support) {
  constexpr int64_t kTile = 128, kMaxRoom = 4;
  const int64_t tokens = a.q.size(0);
  if (a.cu_queries.raw() != a.cu_keys.raw() || a.offsets.query_chunk >= 0)
    return "packed sequences meet other keys than their own";
  if (tokens < kTile * a.batch) return "packed sequences are shorter than a tile";
  if (support.sequences * support.queries > kMaxRoom * tokens)
    return "packed sequences differ much in length";
  return offsets_fit({&a.q, &a.k, &a.v, &a.o}) ? "" : "packed tensors are too large";
}

int64_t scratch(const AttentionBackwardArgs& args, const CudnnSupport& support) {
  const AttentionArgs& a = args.forward;
  const int64_t heads = a.q.size(1), d = a.q.size(2), dv = a.v.size(2), rows = support.sequences * heads;
  const auto padded = [](int64_t n, int64_t tile) { return (n + tile - 1) / tile * tile; };
  int64_t bytes = rows * support.queries * 4;                             // sums of o · grad_o
  if (heads != a.k.size(1)) bytes += rows * support.keys * (d + dv) * 2;  // dk and dv of each query head
  // In a fixed order cuDNN keeps the gradients of all scores; in any order it adds up dq in fp32.
  return bytes + (args.deterministic ? rows * padded(support.queries, 128) * padded(support.keys, 64) * 2
                                     : rows * support.queries * d * 4);
}

// Widths of keys and values that cuDNN has kernels for on Hopper: 192 and 128 are those of DeepSeek's latent
// attention.
std::string_view width_refused(int64_t d, int64_t dv) {
  if (d == 192 && dv == 128) return "";
  if (d != dv) return "keys and values differ in width, and not as 192 and 128";
  return d % 16 == 0 && ((d >= 64 && d <= 128) || d == 256)
             ? ""
             : "head_dim is no multiple of 16 from 64 to 128, nor 256";
}

// cuDNN serves long enough sequences without features that only our kernels have.
std::string_view refusal(const AttentionArgs& a, const CudnnSupport& support) {
  if (a.q.dtype() != DType::BF16 && a.q.dtype() != DType::F16) return "its numbers have more than 16 bits";
  if (a.dropout > 0) return "some of it is dropped out";
  if (a.sinks) return "sinks take part in the softmax";
  if (a.softcap != 0) return "scores are capped";
  if (a.bias) return "a bias is added to scores";
  if (const std::string_view why = width_refused(a.q.size(2), a.v.size(2)); !why.empty()) return why;
  if (a.causal ? attention_shift(a.offsets, support.queries, support.keys) != support.keys - support.queries
               : a.window_left >= 0 || a.window_right >= 0)
    return "its mask is neither full nor causal from the last key on";
  if (support.queries < 256) return "sequences are shorter than 256 tokens";
  if (support.keys < support.queries) return "there are fewer keys than queries";
  return a.cu_queries ? packing_refused(a, support) : "";
}

}  // namespace

CudnnSupport cudnn_support(const AttentionArgs& a) {
  CudnnSupport support{.sequences = a.batch};
  if (a.cu_queries) {  // numbers and lengths differ from batch to batch: the next powers of two
    support.sequences = power_of_two(a.batch);
    support.queries = support.keys = power_of_two(a.max_queries ? a.max_queries : a.q.size(0));
  } else {
    support.queries = a.q.size(0) / a.batch;
    support.keys = a.k.size(0) / a.batch;
  }
  support.refused = refusal(a, support);
  return support;
}

CudnnSupport cudnn_support(const AttentionBackwardArgs& args) {
  constexpr int64_t kMaxScratch = int64_t{6} << 30;  // for packed sequences, each as long as the longest
  CudnnSupport support = cudnn_support(args.forward);
  if (support.takes() && (args.dbias || args.dsinks)) support.refused = "sinks or a bias get a gradient";
  if (!support.takes() || !args.forward.cu_queries) return support;
  if (!offsets_fit({&args.grad_o, &args.dq, &args.dk, &args.dv}))
    support.refused = "packed tensors are too large";
  else if (scratch(args, support) > kMaxScratch)
    support.refused = "packed sequences would need much scratch memory";
  return support;
}

size_t cudnn_scratch_bytes(const AttentionBackwardArgs& args) {
  const CudnnSupport support = cudnn_support(args);
  return support.takes() ? static_cast<size_t>(scratch(args, support)) : 0;
}

}  // namespace megatron
