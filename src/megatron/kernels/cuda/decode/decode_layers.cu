#include "megatron/kernels/cuda/core/last_block.cuh"
#include "megatron/kernels/cuda/decode/decode_attention.cuh"
#include "megatron/kernels/cuda/families.h"
#include "megatron/kernels/cuda/pointwise/activation_math.cuh"

namespace megatron::cuda::decode {
namespace {

// The consumers' way through all phases.
template <int D>
__device__ __forceinline__ void consume(AttentionConsumer<D>& c) {
  const DecodeTask& task = c.task;
  for (int row = 0; row < task.rows; ++row) {
    const bfloat* embedded = task.table + task.ids[row] * task.width;
    for (int i = c.thread() * 8; i < task.width; i += kConsumers * 8)
      *reinterpret_cast<uint4*>(c.hidden + row * task.width + i) =
          *reinterpret_cast<const uint4*>(embedded + i);
  }
  c.load_gamma(task.layer[0].input_norm, c.thread(), kConsumers);
  c.take_part();
  c.prefetch_keys(task.layer[0], c.thread(), kConsumers);
  const int fused = (task.heads + 2 * task.kv_heads) * D;
  const auto update = [&](int r, int column, float value, float) {
    task.update[r * task.width + column] = narrow<bfloat>(value);
  };
  for (int l = 0; l < task.layers; ++l) {
    const LayerWeights& w = task.layer[l];
    const bfloat* next = l + 1 < task.layers ? task.layer[l + 1].input_norm : task.final_norm;
    c.norm(l > 0);
    c.multiply(matrix_of<D>(task, l, kQkv), [&](int r, int column, float value, float) {
      task.qkv[static_cast<int64_t>(r) * fused + column] = narrow<bfloat>(value);
    });
    c.grid_sync([&](int i, int threads) { c.prefetch_row(w.mlp_norm, task.width, i, threads); });
    c.attend(w);
    c.grid_sync([&](int i, int threads) { c.load_gamma(w.mlp_norm, i, threads); });
    c.combine();
    c.multiply(matrix_of<D>(task, l, kProjection), update);
    c.grid_sync([&](int i, int threads) { c.prefetch_row(next, task.width, i, threads); });
    c.norm(true);
    c.multiply(matrix_of<D>(task, l, kFc1), [&](int r, int column, float gate, float up) {
      const float value = widen(narrow<bfloat>(gate));
      task.active[static_cast<int64_t>(r) * task.inner + column] =
          narrow<bfloat>(value * sigmoid<true>(value) * widen(narrow<bfloat>(up)));
    });
    c.grid_sync([&](int i, int threads) {
      if (l + 1 < task.layers) c.prefetch_keys(task.layer[l + 1], i, threads);
    });
    c.read_x(task.active, task.inner);
    c.multiply(matrix_of<D>(task, l, kFc2), update);
    c.grid_sync([&](int i, int threads) { c.load_gamma(next, i, threads); });
  }
  c.norm(true);
  c.multiply(head_of(task), [&](int r, int column, float value, float) {
    task.logits[r * task.logits_stride + column] = narrow<bfloat>(value);
  });
  if (c.thread() == 0 && atomicAdd(task.counters + 1, 1u) == gridDim.x - 1)
    for (int i = 0; i < kClaims + 1 + task.layers; ++i) task.counters[i] = 0;
}

// All layers of a decoder for one token of each of `rows` sequences.
// Math: per layer y = RMSNorm(h) · Wqkvᵀ; attention with the cache; h += o · Wprojᵀ; h += (silu(gate) · up) ·
// Wfc2ᵀ of [gate | up] = RMSNorm(h) · Wfc1ᵀ; in the end logits = RMSNorm(h) · Wheadᵀ. GEMMs by mma.sync
// m16n8k16, with rows of x as A and eight rows of a weight as B.
// Grid: one block an SM, all resident; eight consumer warps and one that produces. Tile t of a weight, eight
// of its rows, is block t % grid's; the last tiles go to blocks that claim them. Warps share K of a tile.
// Each block makes the norms and joins the splits of attention for itself; a barrier of the whole grid stands
// behind each of the five phases of a layer.
// Attention: a block has one KV head and a part of its keys.
// Shared memory: x, the stream h, a norm's weight, and a ring of stages of weights: the producer fills it by
// cp.async.bulk whatever phase the consumers are in, so that memory is read while they wait for each other.
// Barriers: full and empty mbarriers of each stage; named barrier 1 of the consumers; a counter in device
// memory of the grid.
template <int D>
__global__ void __launch_bounds__(kBlockThreads, 1)
    decode_layers_kernel(const __grid_constant__ DecodeTask task) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) unsigned char memory[];
  auto& fixed = *reinterpret_cast<FixedShared*>(memory);
  unsigned char* at = memory + (sizeof(FixedShared) + 127) / 128 * 128;
  auto* x = reinterpret_cast<bfloat*>(at);
  auto* hidden = reinterpret_cast<bfloat*>(at + task.x_bytes);
  bfloat* gamma = hidden + task.rows * task.width;
  auto* partial = reinterpret_cast<float*>(gamma + task.width);
  const uint32_t stages = shared_address(partial + task.rows * kPartial);
  if (threadIdx.x == 0) {
    for (int i = 0; i < task.stages; ++i) {
      sm90::Barrier{shared_address(&fixed.full[i])}.init(1);
      sm90::Barrier{shared_address(&fixed.empty[i])}.init(kWarps);
    }
    sm90::fence_mbarrier_init();
  }
  __syncthreads();
  Ring ring{stages, shared_address(fixed.full), shared_address(fixed.empty), task.stages};
  if (threadIdx.x >= kConsumers) {
    const uint64_t policy = sm90::l2_evict_first();
    const int lane = threadIdx.x % 32;
    for (int l = 0; l < task.layers; ++l)
      for (int phase = 0; phase < kPhases; ++phase)
        feed(matrix_of<D>(task, l, phase), ring, fixed, lane, policy);
    feed(head_of(task), ring, fixed, lane, policy);
    return;
  }
  AttentionConsumer<D> consumer{{task, fixed, x, hidden, gamma, partial, ring},
                                *reinterpret_cast<AttentionShared<D>*>(x)};
  consume(consumer);
#endif
}

bool is_matrix(const Tensor& t) {
  return t.defined() && t.dtype() == DType::BF16 && t.rank() == 2 && t.is_contiguous() && aligned(t.raw());
}
bool is_matrix(const Tensor& t, int64_t rows, int64_t columns) {
  return is_matrix(t) && t.size(0) == rows && t.size(1) == columns;
}
bool is_vector(const Tensor& t, int64_t n) {
  return t.defined() && t.dtype() == DType::BF16 && t.rank() == 1 && t.size(0) == n && t.is_contiguous() &&
         aligned(t.raw());
}
bool are_pages(const Tensor& t) {
  return t.defined() && t.dtype() == DType::BF16 && t.rank() == 3 && t.is_contiguous() && t.numel() > 0;
}
// What the step is given beside weights, of as many rows.
bool are_inputs(const DecodeLayersArgs& args, int64_t rows) {
  const auto is = [&](const Tensor& t, DType dtype, int rank) {
    return t.defined() && t.dtype() == dtype && t.rank() == rank && t.size(0) == rows &&
           t.stride(rank - 1) == 1;
  };
  return is(args.ids, DType::I64, 1) && is(args.slots, DType::I64, 1) &&
         is(args.key_lengths, DType::I32, 1) && is(args.blocks, DType::I32, 2) &&
         is(args.cos, DType::F32, 2) && is(args.sin, DType::F32, 2) && args.cos.is_contiguous() &&
         args.sin.shape() == args.cos.shape() && args.sin.is_contiguous() &&
         is(args.logits, DType::BF16, 2) && args.block_size > 0;
}

struct Sizes {
  int64_t rows, width, heads, kv_heads, head_dim, inner, vocabulary, splits, grid;
  size_t x_bytes, fixed_bytes;  // of shared memory
};

size_t rounded(size_t bytes) { return (bytes + 127) / 128 * 128; }

// By the first layer; the others must be alike.
bool plan(const KernelContext& ctx, const DecodeLayersArgs& args, Sizes& s) {
  const CudaProperties& properties = runtime_of(ctx).properties();
  if (properties.compute_capability < 90 || args.layers.empty() || args.layers.size() > kMaxLayers ||
      !args.ids || !are_inputs(args, args.ids.numel()) || !is_matrix(args.table) || !is_matrix(args.head))
    return false;
  const DecodeLayer& first = args.layers[0];
  if (!are_pages(first.keys) || !is_matrix(first.fc2)) return false;
  s = {.rows = args.ids.numel(),
       .width = args.table.size(1),
       .heads = args.heads,
       .kv_heads = first.keys.size(1),
       .head_dim = first.keys.size(2),
       .inner = first.fc2.size(1),
       .vocabulary = args.head.size(0),
       .grid = properties.sm_count};
  if (s.rows > kMaxRows || s.width % kChunk || s.inner % kChunk || s.vocabulary % kColumns ||
      s.heads % s.kv_heads || s.heads / s.kv_heads > kTileHeads || (s.head_dim != 64 && s.head_dim != 128) ||
      2 * args.cos.size(1) > s.head_dim)
    return false;
  const int64_t output = s.heads * s.head_dim;
  for (const DecodeLayer& layer : args.layers)
    if (!is_vector(layer.input_norm, s.width) || !is_vector(layer.mlp_norm, s.width) ||
        !is_matrix(layer.qkv, output + 2 * s.kv_heads * s.head_dim, s.width) ||
        !is_matrix(layer.projection, s.width, output) || !is_matrix(layer.fc1, 2 * s.inner, s.width) ||
        !is_matrix(layer.fc2, s.width, s.inner) || !are_pages(layer.keys) || !are_pages(layer.values) ||
        layer.keys.shape() != first.keys.shape() || layer.values.shape() != first.keys.shape())
      return false;
  if (!is_vector(args.final_norm, s.width) || !is_matrix(args.head, s.vocabulary, s.width)) return false;
  s.splits = std::min({s.grid / (s.rows * s.kv_heads), int64_t{kMaxSplits},
                       static_cast<int64_t>(kCombinedBytes) / (s.rows * output * 4)});
  s.splits = std::max<int64_t>(s.splits, 1);
  const size_t attention = s.head_dim == 64 ? sizeof(AttentionShared<64>) : sizeof(AttentionShared<128>);
  const int64_t longest = std::max({s.width, output, s.inner});
  s.x_bytes = rounded(std::max(attention, static_cast<size_t>(s.rows * (longest + kXPad)) * 2));
  s.fixed_bytes = rounded(sizeof(FixedShared)) + s.x_bytes +
                  static_cast<size_t>((s.rows + 1) * s.width) * sizeof(bfloat) +
                  static_cast<size_t>(s.rows) * kPartial * sizeof(float);
  return s.rows * s.kv_heads * s.splits <= s.grid && args.max_keys <= s.splits * (kMaxSplitKeys - 16) &&
         s.width % 64 == 0 &&
         s.fixed_bytes + kMinStages * kStageBytes <= static_cast<size_t>(properties.shared_memory_per_block);
}

DecodeTask task_of(const DecodeLayersArgs& args, const Sizes& s) {
  DecodeTask task{};
  task.ids = pointer<int64_t>(args.ids);
  task.table = pointer<bfloat>(args.table);
  task.final_norm = pointer<bfloat>(args.final_norm);
  task.head = pointer<bfloat>(args.head);
  task.logits = pointer<bfloat>(args.logits);
  task.logits_stride = args.logits.stride(0);
  task.cos = pointer<float>(args.cos);
  task.sin = pointer<float>(args.sin);
  task.slots = pointer<int64_t>(args.slots);
  task.blocks = pointer<int32_t>(args.blocks);
  task.key_lengths = pointer<int32_t>(args.key_lengths);
  task.blocks_stride = args.blocks.stride(0);
  task.rows = static_cast<int>(s.rows);
  task.layers = static_cast<int>(args.layers.size());
  task.width = static_cast<int>(s.width);
  task.heads = static_cast<int>(s.heads);
  task.kv_heads = static_cast<int>(s.kv_heads);
  task.group = task.heads / task.kv_heads;
  task.inner = static_cast<int>(s.inner);
  task.vocabulary = static_cast<int>(s.vocabulary);
  task.half = static_cast<int>(args.cos.size(1));
  task.splits = static_cast<int>(s.splits);
  task.block_size = static_cast<int>(args.block_size);
  task.x_bytes = static_cast<int>(s.x_bytes);
  task.scale = static_cast<float>(args.scale);
  task.epsilon = static_cast<float>(args.epsilon);
  task.gamma_offset = args.zero_centered ? 1.f : 0.f;
  task.interleaved = args.interleaved;
  for (size_t i = 0; i < args.layers.size(); ++i) {
    const DecodeLayer& layer = args.layers[i];
    task.layer[i] = {pointer<bfloat>(layer.input_norm), pointer<bfloat>(layer.qkv),
                     pointer<bfloat>(layer.projection), pointer<bfloat>(layer.mlp_norm),
                     pointer<bfloat>(layer.fc1),        pointer<bfloat>(layer.fc2),
                     pointer<bfloat>(layer.keys),       pointer<bfloat>(layer.values)};
  }
  return task;
}

// Rounds before tiles of n rows of a weight [n, width], or of two of them, are claimed. Claims pay where a
// block has many tiles.
int rounds_of(const Sizes& s, int64_t n) {
  const int64_t tiles = n / kColumns, rounds = tiles * 7 / 8 / s.grid;
  return tiles >= kClaimedRounds * s.grid ? static_cast<int>(rounds) : kNoClaims;
}

// False where the GPU cannot have all blocks at once, as where a process may use a part of its SMs alone.
template <int D>
bool launch(const KernelContext& ctx, const DecodeTask& task, unsigned grid, size_t bytes) {
  const auto kernel = decode_layers_kernel<D>;
  runtime_of(ctx).bind();
  allow_shared_memory(kernel, bytes);
  cudaLaunchAttribute cooperative{};
  cooperative.id = cudaLaunchAttributeCooperative;
  cooperative.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = kBlockThreads;
  config.dynamicSmemBytes = bytes;
  config.stream = stream_of(ctx);
  config.attrs = &cooperative;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, task);
  if (error == cudaErrorCooperativeLaunchTooLarge || error == cudaErrorNotSupported) {
    cudaGetLastError();  // the next launch would be told of it
    return false;
  }
  check_cuda(error, "decode_layers");
  return true;
}

bool decode_layers(const KernelContext& ctx, const DecodeLayersArgs& args) {
  Sizes s;
  if (!plan(ctx, args, s)) return false;
  DecodeTask task = task_of(args, s);
  const auto room =
      (static_cast<size_t>(runtime_of(ctx).properties().shared_memory_per_block) - s.fixed_bytes) /
      kStageBytes;
  task.stages = static_cast<int>(std::min<size_t>(room, kMaxStages));
  const auto bytes = [&](int64_t each, size_t size) {
    return rounded(static_cast<size_t>(s.rows * each) * size);
  };
  const size_t qkv = bytes((s.heads + 2 * s.kv_heads) * s.head_dim, sizeof(bfloat)),
               update = bytes(s.width, sizeof(bfloat)), active = bytes(s.inner, sizeof(bfloat)),
               o = bytes(s.heads * s.splits * s.head_dim, sizeof(float)),
               scores = bytes(s.heads * s.splits, sizeof(float2));
  const Scratch scratch(ctx, qkv + update + active + o + scores);
  task.qkv = scratch.as<bfloat>();
  task.update = scratch.as<bfloat>(qkv);
  task.active = scratch.as<bfloat>(qkv + update);
  task.o = scratch.as<float>(qkv + update + active);
  task.scores = scratch.as<float2>(qkv + update + active + o);
  task.counters = arrival_counters(ctx, kClaims + 1 + task.layers);
  task.fc1_rounds = rounds_of(s, s.inner);
  task.head_rounds = rounds_of(s, s.vocabulary);
  const size_t shared = s.fixed_bytes + static_cast<size_t>(task.stages) * kStageBytes;
  const auto grid = static_cast<unsigned>(s.grid);
  return s.head_dim == 64 ? launch<64>(ctx, task, grid, shared) : launch<128>(ctx, task, grid, shared);
}

}  // namespace
}  // namespace megatron::cuda::decode

namespace megatron::cuda {

void add_decode_kernels(KernelTable& table) { table.decode_layers = decode::decode_layers; }

}  // namespace megatron::cuda
