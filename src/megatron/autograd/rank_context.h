#pragma once

#include <memory>
#include <utility>

#include "megatron/autograd/saved.h"
#include "megatron/autograd/tape.h"
#include "megatron/autograd/tensor_probe.h"
#include "megatron/autograd/tracer.h"
#include "megatron/autograd/weight.h"
#include "megatron/kernels/kernel_table.h"

namespace megatron {

// All that one rank computes with. Nothing of it is global, so a rank can be a thread, a process or a GPU.
struct RankContext {
  explicit RankContext(Device device = kCpu, int threads = 1, int rank = 0);

  int rank;
  Device device;
  std::shared_ptr<DeviceRuntime> runtime;
  std::shared_ptr<Allocator> allocator;
  Stream stream;
  CpuPool pool;
  const KernelTable* kernels;

  Tape* tape = nullptr;  // where ops record; null: forward without a tape
  Tracer* tracer = nullptr;
  SavedTensorPacker* packer = nullptr;
  TensorProbe* probe = nullptr;  // null: nobody looks
  bool deterministic = true;     // only kernels that give the same bits each run
  bool batch_invariant =
      false;  // on the CPU, what a token becomes does not depend on the others of its batch
  bool defer_weight_grads = false;  // backward leaves W for Tape::backward_weight
  uint32_t tapes_made = 0;
  LaunchCheck* launches =
      nullptr;  // on the meta device, what GPUs would refuse of its launches; null: not asked
  // On CUDA, kernels start while those in front of them still run. Weights and tables of a cache's blocks are
  // read before those are done, so whatever writes them must be complete before this is set.
  bool pdl = false;

  KernelContext kernel_context() { return {stream, pool, *allocator, batch_invariant, launches, pdl}; }
  void trace(const char* name, Phase phase, double flops, double bytes) {
    if (tracer) tracer->op(name, phase, {flops, bytes});
  }

  void show(std::string_view parameter, std::string_view place, const Tensor& value) {
    if (probe) probe->see(*this, parameter, place, value);
  }

  // Whether an op on this tensor must be recorded; a tensor of another tape is refused.
  bool tracks(const Tensor& tensor) const;

  Tensor empty(Shape shape, DType dtype, MemoryTag tag = MemoryTag::Activation) {
    return Tensor::empty(allocator, shape, dtype, tag);
  }
  Tensor empty_like(const Tensor& other) { return empty(other.shape(), other.dtype()); }
  Tensor full(Shape shape, DType dtype, double value, MemoryTag tag = MemoryTag::Activation);
  Tensor zeros(Shape shape, DType dtype, MemoryTag tag = MemoryTag::Activation) {
    return full(shape, dtype, 0, tag);
  }
  // Copies between this device and host memory of `dtype`, contiguous.
  Tensor from_host(const void* data, Shape shape, DType dtype, MemoryTag tag = MemoryTag::Activation);
  template <class T>
  Tensor from_vector(const std::vector<T>& values, Shape shape) {
    require(static_cast<int64_t>(values.size()) == shape.numel(), "{} values do not fill {}", values.size(),
            shape);
    return from_host(values.data(), shape, dtype_of<T>());
  }
  void to_host(const Tensor& tensor, void* data);  // waits for the stream
  template <class T>
  std::vector<T> to_vector(const Tensor& tensor) {
    require(tensor.dtype() == dtype_of<T>(), "{} was read as {}", tensor, dtype_of<T>());
    std::vector<T> values(static_cast<size_t>(tensor.numel()));
    to_host(tensor, values.data());
    return values;
  }
  double item(const Tensor& tensor);  // the value of a one-element tensor; waits for the stream
};

// Within its life, ops record on this tape (or, with null, do not record).
class TapeScope {
 public:
  TapeScope(RankContext& ctx, Tape* tape) : ctx_(ctx), previous_(std::exchange(ctx.tape, tape)) {}
  ~TapeScope() { ctx_.tape = previous_; }
  TapeScope(const TapeScope&) = delete;
  TapeScope& operator=(const TapeScope&) = delete;

 private:
  RankContext& ctx_;
  Tape* previous_;
};

struct NoGrad : TapeScope {
  explicit NoGrad(RankContext& ctx) : TapeScope(ctx, nullptr) {}
};

// Records a node with one or more outputs where the context has a tape. Usage, at the end of an op:
//   if (needs_grad) record(ctx, std::make_unique<XNode>(…), y);
template <class... Outputs>
void record(RankContext& ctx, std::unique_ptr<Node> node, Outputs&... outputs) {
  Tensor* list[] = {&outputs...};
  ctx.tape->record(std::move(node), list);
}

}  // namespace megatron
