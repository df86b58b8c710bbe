#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

#include <mutex>
#include <string_view>
#include <unordered_map>

#include "megatron/kernels/cuda/kernel_state.h"

// The frontend finds cuDNN through this handle. Written once, before any other use of it.
void* cudnn_frontend::cudnn_dlhandle = nullptr;

namespace megatron::cuda {
namespace {

namespace fe = cudnn_frontend;

enum Id : int64_t { kQ = 1, kK, kV, kO, kStats, kGradO, kDq, kDk, kDv };

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

// What cuDNN is asked for: long enough sequences of common heads, and no feature that only our kernels have.
bool suits(const AttentionArgs& a) {
  bool narrow = a.q.dtype() == DType::BF16 || a.q.dtype() == DType::F16;
  int64_t d = a.q.size(2), queries = a.q.size(0) / a.batch;
  int64_t keys = a.k.size(0) / a.batch;
  bool masks = a.causal ? attention_shift(a.place, queries, keys) == keys - queries
                        : a.window_left < 0 && a.window_right < 0;
  return narrow && !a.cu_queries && !a.bias && !a.sinks && a.softcap == 0 && a.dropout == 0 && masks &&
         (d == 64 || d == 128) && a.v.size(2) == d && queries >= 256 && keys >= queries;
}

GraphKey key_of(const AttentionArgs& a) {
  GraphKey key{};
  key.batch = a.batch;
  key.heads = a.q.size(1);
  key.kv_heads = a.k.size(1);
  key.queries = a.q.size(0) / a.batch;
  key.keys = a.k.size(0) / a.batch;
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
  std::shared_ptr<fe::graph::Tensor_attributes> tensor(fe::graph::Graph& graph, const GraphKey& key, Id id,
                                                       int64_t heads, int64_t length, HeadStrides strides) {
    return graph.tensor(fe::graph::Tensor_attributes()
                            .set_uid(id)
                            .set_dim({key.batch, heads, length, key.d})
                            .set_stride({length * strides.token, strides.head, strides.token, 1}));
  }
  static void output(const std::shared_ptr<fe::graph::Tensor_attributes>& tensor, const GraphKey& key, Id id,
                     int64_t heads, int64_t length, HeadStrides strides) {
    tensor->set_output(true)
        .set_uid(id)
        .set_dim({key.batch, heads, length, key.d})
        .set_stride({length * strides.token, strides.head, strides.token, 1});
  }

  Plan make_plan(const GraphKey& key) {
    auto graph = std::make_unique<fe::graph::Graph>();
    graph->set_io_data_type(key.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    auto q = tensor(*graph, key, kQ, key.heads, key.queries, key.q);
    auto k = tensor(*graph, key, kK, key.kv_heads, key.keys, key.k);
    auto v = tensor(*graph, key, kV, key.kv_heads, key.keys, key.v);
    std::vector<int64_t> stats_shape{key.batch, key.heads, key.queries, 1};
    std::vector<int64_t> stats_strides{key.heads * key.queries, key.queries, 1, 1};
    if (!key.backward) {
      fe::graph::SDPA_attributes attributes;
      attributes.set_name("attention").set_generate_stats(true);
      set_mask(attributes, key);
      auto [o, stats] = graph->sdpa(q, k, v, attributes);
      output(o, key, kO, key.heads, key.queries, key.o);
      stats->set_output(true)
          .set_uid(kStats)
          .set_dim(stats_shape)
          .set_stride(stats_strides)
          .set_data_type(fe::DataType_t::FLOAT);
    } else {
      auto o = tensor(*graph, key, kO, key.heads, key.queries, key.o);
      auto grad_o = tensor(*graph, key, kGradO, key.heads, key.queries, key.grad_o);
      auto stats = graph->tensor(fe::graph::Tensor_attributes()
                                     .set_uid(kStats)
                                     .set_dim(stats_shape)
                                     .set_stride(stats_strides)
                                     .set_data_type(fe::DataType_t::FLOAT));
      fe::graph::SDPA_backward_attributes attributes;
      attributes.set_name("attention_backward").set_deterministic_algorithm(key.backward == 1);
      set_mask(attributes, key);
      auto [dq, dk, dv] = graph->sdpa_backward(q, k, v, o, grad_o, stats, attributes);
      output(dq, key, kDq, key.heads, key.queries, key.dq);
      output(dk, key, kDk, key.kv_heads, key.keys, key.dk);
      output(dv, key, kDv, key.kv_heads, key.keys, key.dv_strides);
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

// cuDNN wants statistics as [batch, heads, queries], ours are [heads, batch · queries].
class Statistics {
 public:
  Statistics(const KernelContext& ctx, const AttentionArgs& a)
      : ctx_(ctx), batch_(a.batch), heads_(a.q.size(1)), queries_(a.q.size(0) / a.batch), lse_(a.lse) {
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

}  // namespace

bool cudnn_attention(const KernelContext& ctx, const AttentionArgs& args) {
  if (!suits(args)) return false;
  KernelState& state = kernel_state(ctx);
  if (!state.attention) return false;
  Statistics statistics(ctx, args);
  std::unordered_map<int64_t, void*> data{{kQ, args.q.raw()},
                                          {kK, args.k.raw()},
                                          {kV, args.v.raw()},
                                          {kO, args.o.raw()},
                                          {kStats, statistics.data()}};
  if (!state.attention->run(ctx, key_of(args), data)) return false;
  statistics.from_cudnn();
  return true;
}

bool cudnn_attention_backward(const KernelContext& ctx, const AttentionBackwardArgs& args) {
  const AttentionArgs& f = args.forward;
  if (!suits(f) || args.dbias || args.dsinks) return false;
  KernelState& state = kernel_state(ctx);
  if (!state.attention) return false;
  GraphKey key = key_of(f);
  key.backward = args.deterministic ? 1 : 2;
  key.grad_o = strides_of(args.grad_o);
  key.dq = strides_of(args.dq);
  key.dk = strides_of(args.dk);
  key.dv_strides = strides_of(args.dv);
  Statistics statistics(ctx, f);
  statistics.to_cudnn();
  std::unordered_map<int64_t, void*> data{{kQ, f.q.raw()},
                                          {kK, f.k.raw()},
                                          {kV, f.v.raw()},
                                          {kO, f.o.raw()},
                                          {kStats, statistics.data()},
                                          {kGradO, args.grad_o.raw()},
                                          {kDq, args.dq.raw()},
                                          {kDk, args.dk.raw()},
                                          {kDv, args.dv.raw()}};
  return state.attention->run(ctx, key, data);
}

}  // namespace megatron::cuda
