#include "megatron/kernels/cuda/attention/attention.cuh"

#include "megatron/kernels/attention_dispatch.h"
#include "megatron/kernels/cuda/core/kernel_state.h"

namespace megatron::cuda {
namespace {

template <class T>
inline constexpr bool kTensorCores = std::is_same_v<T, bfloat> || std::is_same_v<T, half>;

// Names of the kernels in the dispatch log.
constexpr std::string_view kCudnn = "cuDNN", kFlash = "own flash kernel on tensor cores",
                           kSimple = "own, one thread per score", kDecode = "own, split over keys",
                           kFlashForQueries =
                               "own flash kernel on tensor cores; for keys and values one thread per score";

template <class T>
std::string_view run_forward(const KernelContext& ctx, const AttentionArgs& args) {
  AttentionTask<T> task(args);
  if constexpr (kTensorCores<T>) {
    // What a sequence with one query gets does not depend on how many queries others have.
    const bool has_single = args.blocks && (task.queries == 1 || task.batch > 1);
    if (has_single && decode_attention(ctx, task)) {
      if (task.queries == 1) return kDecode;
      task.min_queries = 2;
    }
    if (mma_attention(ctx, task)) return kFlash;
  }
  simt_attention(ctx, task);
  return kSimple;
}

void attention(const KernelContext& ctx, const AttentionArgs& args) {
  if (args.o.numel() == 0) return;
  std::string_view refused = args.blocks ? "keys lie in blocks" : cudnn_attention(ctx, args), kernel = kCudnn;
  if (!refused.empty())
    dispatch_float("attention", args.q.dtype(),
                   [&]<class T>(Type<T>) { kernel = run_forward<T>(ctx, args); });
  if (args.max_scores) attention_max_scores(ctx, args);
  kernel_state(ctx).attention_log.add(args, false, kernel, refused);
}

// A warp per (token, head).
template <class T>
__global__ void delta_kernel(HeadTensor<T> o, HeadTensor<T> grad_o, int64_t tokens, int heads, int head_dim,
                             Compute<T>* delta) {
  int64_t row = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  if (row >= tokens * heads) return;
  int64_t token = row / heads;
  int head = static_cast<int>(row - token * heads), lane = threadIdx.x % 32;
  const T *x = o.row(token, head), *y = grad_o.row(token, head);
  Compute<T> sum = 0;
  for (int c = lane; c < head_dim; c += 32) sum += widen(x[c]) * widen(y[c]);
  sum = warp_sum(sum);
  if (lane == 0) delta[head * tokens + token] = sum;
}

// A sink takes exp(sink − lse) of the probability and gives nothing for it. One block per head.
template <class T>
__global__ void dsinks_kernel(AttentionTask<T> task, const Compute<T>* delta, AnyFloat dsinks,
                              bool accumulate) {
  using C = Compute<T>;
  int head = blockIdx.x;
  C sink = widen(task.sinks[head]), sum = 0;
  for (int token = threadIdx.x; token < task.query_tokens; token += blockDim.x)
    sum += exp_of(sink - task.lse[head * task.lse_stride + token]) *
           delta[static_cast<int64_t>(head) * task.query_tokens + token];
  sum = block_sum(sum);
  if (threadIdx.x == 0) dsinks.set(head, (accumulate ? C(dsinks.get(head)) : C(0)) - sum);
}

// A thread per element of dbias sums over the batches and heads that share it, in order.
template <class T>
__global__ void dbias_kernel(AttentionTask<T> task, AttentionGrads<T> grads, Compute<T>* dbias,
                             int bias_batches, int bias_heads) {
  using C = Compute<T>;
  int key = blockIdx.x * blockDim.x + threadIdx.x, query = blockIdx.y;
  int bias_b = blockIdx.z / bias_heads, bias_h = blockIdx.z % bias_heads;
  if (key >= task.keys) return;
  int b_end = bias_batches == 1 ? task.batch : bias_b + 1, h_end = bias_heads == 1 ? task.heads : bias_h + 1;
  C sum = 0;
  for (int b = bias_batches == 1 ? 0 : bias_b; b < b_end; ++b)
    for (int head = bias_heads == 1 ? 0 : bias_h; head < h_end; ++head) {
      SequenceSpan s = task.sequence(b);
      if (!task.visible(s, query).holds(key)) continue;
      int64_t token = s.first_query + query;
      const T *q = task.q.row(token, head), *k = task.k.row(s.first_key + key, head / task.group);
      const T *grad = grads.grad_o.row(token, head), *v = task.v.row(s.first_key + key, head / task.group);
      C qk = 0, dp = 0, slope;
      for (int c = 0; c < task.d; ++c) qk += widen(q[c]) * widen(k[c]);
      for (int c = 0; c < task.dv; ++c) dp += widen(grad[c]) * widen(v[c]);
      C p = exp_of(task.score(qk, b, head, query, key, slope) - task.lse[head * task.lse_stride + token]);
      if (task.dropout > 0) dp *= task.keep(b, head, query, key);
      sum += p * (dp - grads.delta[static_cast<int64_t>(head) * task.query_tokens + token]);
    }
  dbias[(static_cast<int64_t>(blockIdx.z) * task.queries + query) * task.keys + key] = sum;
}

template <class T>
std::string_view run_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  using C = Compute<T>;
  const AttentionArgs& f = args.forward;
  AttentionTask<T> task(f);
  cudaStream_t stream = stream_of(ctx);
  int64_t tokens = task.query_tokens;
  Scratch delta(ctx, static_cast<size_t>(tokens * task.heads) * sizeof(C));
  AttentionGrads<T> grads{HeadTensor<T>(args.grad_o), HeadTensor<T>(args.dq), HeadTensor<T>(args.dk),
                          HeadTensor<T>(args.dv), delta.as<C>()};
  delta_kernel<T><<<blocks_for(tokens * task.heads, kThreads / 32), kThreads, 0, stream>>>(
      task.o, grads.grad_o, tokens, task.heads, task.dv, delta.as<C>());
  check_launch("attention_backward");
  if (args.dsinks) {
    dsinks_kernel<T>
        <<<task.heads, kThreads, 0, stream>>>(task, delta.as<C>(), any_float(args.dsinks), args.accumulate);
    check_launch("attention_backward");
  }
  if (args.dbias) {
    int batches = static_cast<int>(args.dbias.size(0)), heads = static_cast<int>(args.dbias.size(1));
    dim3 grid(blocks_for(task.keys, kThreads), task.queries, batches * heads);
    dbias_kernel<T><<<grid, kThreads, 0, stream>>>(task, grads, pointer<C>(args.dbias), batches, heads);
    check_launch("attention_backward");
  }
  bool queries = true, keys = true;
  if constexpr (kTensorCores<T>) {
    queries = !mma_attention_dq(ctx, task, grads);
    keys = !mma_attention_dkv(ctx, task, grads);
  }
  if (queries || keys) simt_attention_backward(ctx, task, grads, queries, keys);
  return queries ? kSimple : keys ? kFlashForQueries : kFlash;
}

void attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  if (args.forward.q.numel() == 0) return;
  std::string_view refused = cudnn_attention_backward(ctx, args), kernel = kCudnn;
  if (!refused.empty())
    dispatch_float("attention_backward", args.forward.q.dtype(),
                   [&]<class T>(Type<T>) { kernel = run_backward<T>(ctx, args); });
  kernel_state(ctx).attention_log.add(args.forward, true, kernel, refused);
}

template <class T>
struct MergeOp {
  using C = Compute<T>;
  C *o, *lse;
  const C* part_lse;
  HeadTensor<T> part;
  int64_t heads, dv, lse_stride, part_lse_stride;

  // One thread takes one head of one token: nobody else reads the lse that it changes.
  template <int W>
  __device__ void run(int64_t i) const {
    int64_t token = i / heads, head = i - token * heads;
    C& held_lse = lse[head * lse_stride + token];
    C before = held_lse, other = part_lse[head * part_lse_stride + token];
    if (other == -std::numeric_limits<C>::infinity()) return;  // it saw nothing
    C largest = max(before, other);
    C joined = largest + log_of(exp_of(before - largest) + exp_of(other - largest));
    C held = exp_of(before - joined), added = exp_of(other - joined);
    C* row = o + i * dv;
    const T* x = part.row(token, head);
    for (int64_t c = 0; c < dv; ++c) row[c] = held * row[c] + added * widen(x[c]);
    held_lse = joined;
  }
};

void attention_merge(const KernelContext& ctx, const AttentionMergeArgs& args) {
  dispatch_float("attention_merge", args.part_o.dtype(), [&]<class T>(Type<T>) {
    using C = Compute<T>;
    for_each<1>(ctx, "attention_merge", args.o.size(0) * args.o.size(1), false,
                MergeOp<T>{pointer<C>(args.o), pointer<C>(args.lse), pointer<C>(args.part_lse),
                           HeadTensor<T>(args.part_o), args.o.size(1), args.o.size(2), args.lse.stride(0),
                           args.part_lse.stride(0)});
  });
}

}  // namespace

void add_attention_kernels(KernelTable& table) {
  table.attention = attention;
  table.attention_backward = attention_backward;
  table.attention_merge = attention_merge;
  table.attention_log = [](const KernelContext& ctx) -> const AttentionDispatchLog& {
    return kernel_state(ctx).attention_log;
  };
}

}  // namespace megatron::cuda
