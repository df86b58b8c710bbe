#include "megatron/kernels/backends.h"
#include "megatron/kernels/cuda/attention.cuh"
#include "megatron/kernels/cuda/kernel_state.h"

// The same questions in the same order as attention.cu asks them.
namespace megatron {
namespace {

using namespace cuda;

constexpr const char* kSimple = "own, one thread per score";
constexpr const char* kTensorCores = "own flash kernel on tensor cores";

template <class T>
bool on_tensor_cores(const KernelContext& ctx, const AttentionArgs& args) {
  if constexpr (std::is_same_v<T, bfloat> || std::is_same_v<T, half>)
    return mma_attention(ctx, AttentionTask<T>(args));
  return false;
}

template <class T>
std::string backward_choice(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  if constexpr (std::is_same_v<T, bfloat> || std::is_same_v<T, half>) {
    const AttentionTask<T> task(args.forward);
    const size_t bytes = static_cast<size_t>(task.query_tokens) * task.heads * sizeof(float);
    Scratch delta(ctx, bytes);
    check_cuda(cudaMemsetAsync(delta.as<float>(), 0, bytes, stream_of(ctx)), "clearing memory");
    const AttentionGrads<T> grads{HeadTensor<T>(args.grad_o), HeadTensor<T>(args.dq), HeadTensor<T>(args.dk),
                                  HeadTensor<T>(args.dv), delta.as<float>()};
    const bool queries = mma_attention_dq(ctx, task, grads), keys = mma_attention_dkv(ctx, task, grads);
    if (queries && keys) return kTensorCores;
    if (queries) return std::string(kTensorCores) + "; for keys and values " + kSimple;
  }
  return kSimple;
}

}  // namespace

AttentionChoice choose_cuda_attention(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  AttentionChoice choice{"cuDNN", "cuDNN"};
  const bool forward = cudnn_attention(ctx, args.forward);
  const bool backward = cudnn_attention_backward(ctx, args);
  dispatch_float("attention", args.forward.q.dtype(), [&]<class T>(Type<T>) {
    if (!forward) choice.forward = on_tensor_cores<T>(ctx, args.forward) ? kTensorCores : kSimple;
    if (!backward) choice.backward = backward_choice<T>(ctx, args);
  });
  return choice;
}

}  // namespace megatron
