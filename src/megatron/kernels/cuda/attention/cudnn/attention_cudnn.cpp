#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <bit>
#include <mutex>
#include <string_view>
#include <unordered_map>

#include "megatron/kernels/cuda/attention/ragged_offsets.h"
#include "megatron/kernels/cuda/core/kernel_state.h"
#include "megatron/kernels/cudnn_support.h"

// The frontend finds cuDNN through this handle. Written once, before any other use of it.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace megatron::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kGradO, kDq, kDk, kDv, kLengths, kOffsets };

// Where packed sequences begin in a tensor.
int64_t offsets_of(Id id) { return kOffsets + id; }

struct HeadStrides {
  int64_t token = 0, head = 0;
  friend bool operator==(const HeadStrides&, const HeadStrides&) = default;
};

HeadStrides strides_of(const Tensor& x) {
  return x.defined() ? HeadStrides{x.stride(0), x.stride(1)} : HeadStrides{};
}

// Everything that a graph depends on. Compared and hashed as bytes, so without padding.
struct GraphKey {
  int64_t batch, heads, kv_heads, queries, keys, d, dv, window_left;
  int64_t packed;  // 1: sequences of any length
  HeadStrides q, k, v, o, grad_o, dq, dk, dv_strides;
  int32_t half, causal, scale_bits;
  int32_t backward;  // 0: forward; 1: in a fixed order; 2: in any order
  friend bool operator==(const GraphKey&, const GraphKey&) = default;
};
static_assert(std::has_unique_object_representations_v<GraphKey>);

struct KeyHash {
  size_t operator()(const GraphKey& key) const {
    return std::hash<std::string_view>{}({reinterpret_cast<const char*>(&key), sizeof key});
  }
};

GraphKey key_of(const AttentionArgs& a, const CudnnSupport& support) {
  GraphKey key{};
  key.batch = support.sequences;
  key.packed = a.cu_queries ? 1 : 0;
  key.heads = a.q.size(1);
  key.kv_heads = a.k.size(1);
  key.queries = support.queries;
  key.keys = support.keys;
  key.d = a.q.size(2);
  key.dv = a.v.size(2);
  key.window_left = a.window_left;
  key.q = strides_of(a.q);
  key.k = strides_of(a.k);
  key.v = strides_of(a.v);
  key.o = strides_of(a.o);
  key.half = a.q.dtype() == DType::F16;
  key.causal = a.causal;
  key.scale_bits = std::bit_cast<int32_t>(static_cast<float>(a.scale));
  return key;
}

template <class Attributes>
void set_mask(Attributes& attributes, const GraphKey& key) {
  attributes.set_attn_scale(std::bit_cast<float>(key.scale_bits));
  if (!key.causal) return;
  attributes.set_diagonal_alignment(key.queries == key.keys ? fe::DiagonalAlignment_t::TOP_LEFT
                                                            : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
  attributes.set_diagonal_band_right_bound(0);
  if (key.window_left >= 0) attributes.set_diagonal_band_left_bound(static_cast<int>(key.window_left) + 1);
}

}  // namespace

class CudnnAttention {
 public:
  struct Plan {
    std::unique_ptr<fe::graph::Graph> graph;  // null: cuDNN has none
    size_t workspace = 0;
  };

  CudnnAttention() {
    require(fe::detail::create_handle(&handle_) == CUDNN_STATUS_SUCCESS, "cuDNN could not be started");
  }
  ~CudnnAttention() { fe::detail::destroy_handle(handle_); }
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // False where cuDNN has no graph for the key.
  bool run(const KernelContext& ctx, const GraphKey& key, std::unordered_map<int64_t, void*>& data) {
    static_cast<CudaRuntime&>(ctx.stream.runtime()).bind();
    std::lock_guard lock(mutex_);
    auto found = plans_.find(key);
    if (found == plans_.end()) found = plans_.emplace(key, make_plan(key)).first;
    Plan& plan = found->second;
    if (!plan.graph) return false;
    fe::detail::set_stream(handle_, static_cast<cudaStream_t>(ctx.stream.native()));
    void* workspace = ctx.workspace.allocate(plan.workspace, MemoryTag::Workspace);
    auto status = plan.graph->execute(handle_, data, workspace);
    ctx.workspace.deallocate(workspace, plan.workspace, MemoryTag::Workspace);
    require(status.is_good(), "attention: cuDNN failed: {}", status.get_message());
    return true;
  }

 private:
  using Attributes = std::shared_ptr<fe::graph::Tensor_attributes>;

  static Attributes integers(fe::graph::Graph& graph, int64_t id, int64_t count) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(id)
                            .set_dim({count, 1, 1, 1})
                            .set_stride({1, 1, 1, 1})
                            .set_data_type(fe::DataType_t::INT32));
  }
  static void describe(fe::graph::Graph& graph, const Attributes& tensor, const GraphKey& key, Id id,
                       const std::vector<int64_t>& shape, const std::vector<int64_t>& strides) {
    tensor->set_uid(id).set_dim(shape).set_stride(strides);
    if (key.packed) tensor->set_ragged_offset(integers(graph, offsets_of(id), key.batch + 1));
  }
  static void describe(fe::graph::Graph& graph, const Attributes& tensor, const GraphKey& key, Id id,
                       int64_t heads, int64_t length, HeadStrides strides) {
    const bool of_scores =
        id == kQ || id == kK || id == kDq || id == kDk;  // the others are as wide as values
    describe(graph, tensor, key, id, {key.batch, heads, length, of_scores ? key.d : key.dv},
             {length * strides.token, strides.head, strides.token, 1});
  }
  static Attributes input(fe::graph::Graph& graph, const GraphKey& key, Id id, int64_t heads, int64_t length,
                          HeadStrides strides) {
    Attributes tensor = graph.tensor(fe::graph::Tensor_attributes());
    describe(graph, tensor, key, id, heads, length, strides);
    return tensor;
  }
  static void output(fe::graph::Graph& graph, const Attributes& tensor, const GraphKey& key, Id id,
                     int64_t heads, int64_t length, HeadStrides strides) {
    tensor->set_output(true);
    describe(graph, tensor, key, id, heads, length, strides);
  }
  static void statistics(fe::graph::Graph& graph, const Attributes& tensor, const GraphKey& key) {
    const int64_t head = key.packed ? 1 : key.queries, query = key.packed ? key.heads : 1;
    describe(graph, tensor, key, kStats, {key.batch, key.heads, key.queries, 1},
             {key.heads * key.queries, head, query, 1});
    tensor->set_data_type(fe::DataType_t::FLOAT);
  }
  template <class Operation>
  static void set_packing(fe::graph::Graph& graph, Operation& operation, const GraphKey& key) {
    if (!key.packed) return;
    const Attributes lengths = integers(graph, kLengths, key.batch);
    operation.set_padding_mask(true).set_seq_len_q(lengths).set_seq_len_kv(lengths);
  }

  Plan make_plan(const GraphKey& key) {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(key.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto q = input(*graph, key, kQ, key.heads, key.queries, key.q);
    auto k = input(*graph, key, kK, key.kv_heads, key.keys, key.k);
    auto v = input(*graph, key, kV, key.kv_heads, key.keys, key.v);
    if (!key.backward) {
      fe::graph::SDPA_attributes attributes;
      attributes.set_name("attention").set_generate_stats(true);
      set_mask(attributes, key);
      set_packing(*graph, attributes, key);
      auto [o, stats] = graph->sdpa(q, k, v, attributes);
      output(*graph, o, key, kO, key.heads, key.queries, key.o);
      stats->set_output(true);
      statistics(*graph, stats, key);
    } else {
      auto o = input(*graph, key, kO, key.heads, key.queries, key.o);
      auto grad_o = input(*graph, key, kGradO, key.heads, key.queries, key.grad_o);
      auto stats = graph->tensor(fe::graph::Tensor_attributes());
      statistics(*graph, stats, key);
      fe::graph::SDPA_backward_attributes attributes;
      attributes.set_name("attention_backward").set_deterministic_algorithm(key.backward == 1);
      set_mask(attributes, key);
      set_packing(*graph, attributes, key);
      auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, grad_o, stats, attributes);
      output(*graph, dq, key, kDq, key.heads, key.queries, key.dq);
      output(*graph, dk, key, kDk, key.kv_heads, key.keys, key.dk);
      output(*graph, dv, key, kDv, key.kv_heads, key.keys, key.dv_strides);
    }
    int64_t workspace = 0;
    if (graph->build(handle_, {fe::HeurMode_t::A}).is_bad() || graph->get_workspace_size(workspace).is_bad())
      return {};
    return {std::move(graph), static_cast<size_t>(workspace)};
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::unordered_map<GraphKey, Plan, KeyHash> plans_;
};

std::shared_ptr<CudnnAttention> make_cudnn_attention() {
  try {
    static const bool loaded = [] {
      for (const char* name : {MEGATRON_CUDNN_LIBRARY, "libcudnn.so.9", "libcudnn.so"})
        if (!fe::cudnn_dlhandle) fe::cudnn_dlhandle = dlopen(name, RTLD_NOW);
      return fe::cudnn_dlhandle != nullptr;
    }();
    if (!loaded) return nullptr;
    return std::make_shared<CudnnAttention>();
  } catch (const std::exception&) {  // a library that it loads itself is missing: our own kernels do all
    return nullptr;
  }
}

namespace {

// cuDNN wants statistics as [batch, heads, queries], or [tokens, heads] where packed; ours are [heads,
// tokens].
class Statistics {
 public:
  Statistics(const KernelContext& ctx, const AttentionArgs& a)
      : ctx_(ctx),
        batch_(a.cu_queries ? a.q.size(0) : a.batch),
        heads_(a.q.size(1)),
        queries_(a.q.size(0) / batch_),
        lse_(a.lse) {
    direct_ = batch_ == 1 && lse_.stride(0) == queries_;
    if (!direct_) data_ = ctx.workspace.allocate(bytes(), MemoryTag::Workspace);
  }
  ~Statistics() {
    if (!direct_) ctx_.workspace.deallocate(data_, bytes(), MemoryTag::Workspace);
  }
  Statistics(const Statistics&) = delete;
  Statistics& operator=(const Statistics&) = delete;

  void* data() const { return direct_ ? lse_.raw() : data_; }
  void to_cudnn() const { copy(true); }
  void from_cudnn() const { copy(false); }

 private:
  size_t bytes() const { return static_cast<size_t>(batch_ * heads_ * queries_) * sizeof(float); }
  void copy(bool to) const {
    if (direct_) return;
    Tensor theirs = Tensor::wrap(data_, {batch_, heads_, queries_}, DType::F32, lse_.device());
    Tensor ours = lse_.detach().view({heads_, batch_, queries_}).transpose(0, 1);
    kernels_for(lse_.device()).copy(ctx_, to ? CopyArgs{ours, theirs} : CopyArgs{theirs, ours});
  }

  const KernelContext& ctx_;
  int64_t batch_, heads_, queries_;
  Tensor lse_;
  bool direct_ = false;
  void* data_ = nullptr;
};

constexpr std::string_view kMissing = "cuDNN cannot be loaded", kNoGraph = "cuDNN has no kernel for it";

using Data = std::unordered_map<int64_t, void*>;

// Tells where packed sequences are in each tensor, of which the strides of tokens are given.
class Packing {
 public:
  Packing(const KernelContext& ctx, const AttentionArgs& a, const GraphKey& key,
          const std::vector<std::pair<Id, int64_t>>& tensors, Data& data)
      : ctx_(ctx) {
    if (!key.packed) return;
    const auto places = static_cast<size_t>(key.batch), each = places + 1;
    bytes_ = (places + tensors.size() * each) * sizeof(int32_t);
    auto* out = static_cast<int32_t*>(ctx.workspace.allocate(bytes_, MemoryTag::Workspace));
    data_ = data[kLengths] = out;
    std::vector<int64_t> strides;
    for (const auto& [id, stride] : tensors) {
      data[offsets_of(id)] = out + places + strides.size() * each;
      strides.push_back(stride);
    }
    write_ragged_offsets(ctx, a.cu_queries, key.batch, strides, out);
  }
  ~Packing() {
    if (data_) ctx_.workspace.deallocate(data_, bytes_, MemoryTag::Workspace);
  }
  Packing(const Packing&) = delete;
  Packing& operator=(const Packing&) = delete;

 private:
  const KernelContext& ctx_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace

std::string_view cudnn_attention(const KernelContext& ctx, const AttentionArgs& args) {
  const CudnnSupport support = cudnn_support(args);
  KernelState& state = kernel_state(ctx);
  if (!support.takes()) return support.refused;
  if (!state.attention) return kMissing;
  const GraphKey key = key_of(args, support);
  Statistics statistics(ctx, args);
  Data data{{kQ, args.q.raw()},
            {kK, args.k.raw()},
            {kV, args.v.raw()},
            {kO, args.o.raw()},
            {kStats, statistics.data()}};
  const Packing packing(
      ctx, args, key,
      {{kQ, key.q.token}, {kK, key.k.token}, {kV, key.v.token}, {kO, key.o.token}, {kStats, key.heads}},
      data);
  if (!state.attention->run(ctx, key, data)) return kNoGraph;
  statistics.from_cudnn();
  return "";
}

std::string_view cudnn_attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  const AttentionArgs& f = args.forward;
  const CudnnSupport support = cudnn_support(args);
  KernelState& state = kernel_state(ctx);
  if (!support.takes()) return support.refused;
  if (!state.attention) return kMissing;
  GraphKey key = key_of(f, support);
  key.backward = args.deterministic ? 1 : 2;
  key.grad_o = strides_of(args.grad_o);
  key.dq = strides_of(args.dq);
  key.dk = strides_of(args.dk);
  key.dv_strides = strides_of(args.dv);
  Statistics statistics(ctx, f);
  statistics.to_cudnn();
  Data data{{kQ, f.q.raw()},
            {kK, f.k.raw()},
            {kV, f.v.raw()},
            {kO, f.o.raw()},
            {kStats, statistics.data()},
            {kGradO, args.grad_o.raw()},
            {kDq, args.dq.raw()},
            {kDk, args.dk.raw()},
            {kDv, args.dv.raw()}};
  const Packing packing(ctx, f, key,
                        {{kQ, key.q.token},
                         {kK, key.k.token},
                         {kV, key.v.token},
                         {kO, key.o.token},
                         {kStats, key.heads},
                         {kGradO, key.grad_o.token},
                         {kDq, key.dq.token},
                         {kDk, key.dk.token},
                         {kDv, key.dv_strides.token}},
                        data);
  return state.attention->run(ctx, key, data) ? "" : kNoGraph;
}

}  // namespace megatron::cuda
