#include "megatron/comm/data_movement.h"

#include <algorithm>
#include <cstring>

namespace megatron {
namespace {

constexpr int64_t kBlock = 64;

template <class T>
struct Accumulator {
  using type = T;
};
template <>
struct Accumulator<bf16> {
  using type = float;
};
template <>
struct Accumulator<fp16> {
  using type = float;
};

template <ReduceOp op, class A>
A combine(A a, A b) {
  // b != b: a NaN of any rank reaches all.
  if constexpr (op == ReduceOp::Max) return a < b || b != b ? b : a;
  if constexpr (op == ReduceOp::Min) return b < a || b != b ? b : a;
  return static_cast<A>(a + b);
}

// outputs[*][i] = reduction of inputs[*][i] for `count` elements, few enough for the sums to stay in
// registers: so that every element is read once and written once, and an input may be an output.
template <class T, ReduceOp op>
inline void reduce_block(std::span<const T* const> inputs, std::span<T* const> outputs, int64_t begin,
                         int64_t count) {
  using A = typename Accumulator<T>::type;
  A sum[kBlock];
  for (int64_t i = 0; i < count; ++i) sum[i] = static_cast<A>(inputs[0][begin + i]);
  for (size_t r = 1; r < inputs.size(); ++r) {
    const T* input = inputs[r] + begin;
    for (int64_t i = 0; i < count; ++i) sum[i] = combine<op, A>(sum[i], static_cast<A>(input[i]));
  }
  if constexpr (op == ReduceOp::Avg)
    for (int64_t i = 0; i < count; ++i) sum[i] /= static_cast<A>(inputs.size());
  T result[kBlock];
  for (int64_t i = 0; i < count; ++i) result[i] = static_cast<T>(sum[i]);
  for (T* output : outputs) std::memcpy(output + begin, result, static_cast<size_t>(count) * sizeof(T));
}

template <class T, ReduceOp op>
void reduce(std::span<const T* const> inputs, std::span<T* const> outputs, int64_t n) {
  const int64_t whole = n / kBlock * kBlock;
  for (int64_t begin = 0; begin < whole; begin += kBlock) reduce_block<T, op>(inputs, outputs, begin, kBlock);
  if (whole < n) reduce_block<T, op>(inputs, outputs, whole, n - whole);
}

template <class T>
void reduce_typed(ReduceOp op, std::span<const void* const> inputs, std::span<void* const> outputs,
                  int64_t n) {
  std::vector<const T*> from;
  std::vector<T*> to;
  for (const void* input : inputs) from.push_back(static_cast<const T*>(input));
  for (void* output : outputs) to.push_back(static_cast<T*>(output));
  switch (op) {
    case ReduceOp::Sum:
      return reduce<T, ReduceOp::Sum>(from, to, n);
    case ReduceOp::Avg:
      return reduce<T, ReduceOp::Avg>(from, to, n);
    case ReduceOp::Max:
      return reduce<T, ReduceOp::Max>(from, to, n);
    case ReduceOp::Min:
      return reduce<T, ReduceOp::Min>(from, to, n);
  }
}

}  // namespace

void HostMover::reduce(DType dtype, ReduceOp op, std::span<const void* const> inputs,
                       std::span<void* const> outputs, int64_t n) const {
  switch (dtype) {
    case DType::F64:
      return reduce_typed<double>(op, inputs, outputs, n);
    case DType::F32:
      return reduce_typed<float>(op, inputs, outputs, n);
    case DType::BF16:
      return reduce_typed<bf16>(op, inputs, outputs, n);
    case DType::F16:
      return reduce_typed<fp16>(op, inputs, outputs, n);
    case DType::I64:
      return reduce_typed<int64_t>(op, inputs, outputs, n);
    case DType::I32:
      return reduce_typed<int32_t>(op, inputs, outputs, n);
    case DType::U8:
      return reduce_typed<uint8_t>(op, inputs, outputs, n);
    default:
      fail("reduce: {} cannot be reduced", name_of(dtype));
  }
}

void HostMover::copy(void* target, const void* source, size_t bytes) const {
  std::memcpy(target, source, bytes);
}

namespace {

void copy(const Mover& mover, void* target, const void* source, size_t bytes) {
  if (bytes > 0 && target != source) mover.copy(target, source, bytes);
}

void reduce_part(std::span<const CommRequest> requests, int part, const Mover& mover) {
  const CommRequest& own = requests[static_cast<size_t>(part)];
  const DType dtype = own.input.dtype();
  const int64_t width = static_cast<int64_t>(size_of(dtype));
  const bool scatter = own.kind == CommKind::ReduceScatter;
  const int64_t n = own.output.numel();
  const ElementRange range =
      scatter ? ElementRange{part * n, (part + 1) * n} : share_of(n, part, static_cast<int>(requests.size()));
  if (range.begin >= range.end) return;
  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  for (const CommRequest& request : requests) {
    inputs.push_back(bytes_of(request.input) + range.begin * width);
    if (!scatter) outputs.push_back(bytes_of(request.output) + range.begin * width);
  }
  if (scatter) outputs.push_back(bytes_of(own.output));
  mover.reduce(dtype, own.op, inputs, outputs, range.end - range.begin);
}

void gather_part(std::span<const CommRequest> requests, int part, const Mover& mover) {
  char* target = bytes_of(requests[static_cast<size_t>(part)].output);
  for (const CommRequest& request : requests) {
    copy(mover, target, bytes_of(request.input), request.input.bytes());
    target += request.input.bytes();
  }
}

void all_to_all_part(std::span<const CommRequest> requests, int part, const Mover& mover) {
  char* target = bytes_of(requests[static_cast<size_t>(part)].output);
  for (const CommRequest& request : requests) {
    const int64_t width = static_cast<int64_t>(size_of(request.input.dtype()));
    int64_t before = 0;
    for (int peer = 0; peer < part; ++peer) before += request.send_elements[static_cast<size_t>(peer)];
    const size_t bytes = static_cast<size_t>(request.send_elements[static_cast<size_t>(part)] * width);
    if (bytes == 0) continue;
    copy(mover, target, bytes_of(request.input) + before * width, bytes);
    target += bytes;
  }
}

}  // namespace

void run_part(std::span<const CommRequest> requests, int part, const Mover& mover) {
  const CommRequest& own = requests[static_cast<size_t>(part)];
  if (own.tensor().defined() && own.tensor().device().is_meta()) return;
  switch (own.kind) {
    case CommKind::AllReduce:
    case CommKind::ReduceScatter:
      return reduce_part(requests, part, mover);
    case CommKind::AllGather:
      return gather_part(requests, part, mover);
    case CommKind::AllToAll:
      return all_to_all_part(requests, part, mover);
    case CommKind::Broadcast:
      return copy(mover, bytes_of(own.output), bytes_of(requests[static_cast<size_t>(own.peer)].input),
                  own.output.bytes());
    default:
      return;
  }
}

ElementRange share_of(int64_t n, int part, int parts) {
  constexpr int64_t line = 64;
  const int64_t each = ((n + parts - 1) / parts + line - 1) / line * line;
  return {std::min(n, each * part), std::min(n, each * (part + 1))};
}

size_t bytes_moved(std::span<const CommRequest> requests) {
  size_t bytes = 0;
  for (const CommRequest& request : requests) {
    if (request.input.defined()) bytes += request.input.bytes();
    if (request.output.defined()) bytes += request.output.bytes();
  }
  return bytes;
}

void copy_message(const CommRequest& send, const CommRequest& recv, const Mover& mover) {
  if (!send.input.device().is_meta())
    copy(mover, bytes_of(recv.output), bytes_of(send.input), send.input.bytes());
}

}  // namespace megatron
