// All layers of a decoder by one kernel, beside the same step by a kernel for each part.
#include <algorithm>
#include <functional>

#include "megatron/device/graph.h"
#include "megatron/kernels/decode_layers.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

constexpr DType kBf16 = DType::BF16;

struct Model {
  const char* name;
  int64_t layers = 2, width = 512, heads = 8, kv_heads = 2, d = 64, inner = 1536, vocabulary = 1000;
  int64_t half = 32, block = 16;
  bool interleaved = false, zero_centered = false;
};
const Model kModels[] = {
    {.name = "groups of four"},
    {.name = "heads of 128", .width = 1024, .kv_heads = 4, .d = 128, .inner = 1120, .half = 64},
    {.name = "a KV head each",
     .layers = 3,
     .width = 128,
     .heads = 3,
     .kv_heads = 3,
     .inner = 96,
     .vocabulary = 40},
    {.name = "part of a head turns", .half = 8, .block = 7},
    {.name = "neighbours turn", .interleaved = true, .zero_centered = true},
    {.name = "many columns",
     .layers = 1,
     .width = 2048,
     .heads = 32,
     .kv_heads = 8,
     .inner = 12288,
     .vocabulary = 40008},
};

class CudaDecodeLayers : public Sm90Twin {
 protected:
  // A step of sequences with so many keys, the new one among them.
  struct Step {
    std::vector<DecodeLayer> layers;
    DecodeLayersArgs args;
  };

  Step make(const Model& m, const std::vector<int32_t>& lengths) {
    Step step;
    RankContext& ctx = gpu();
    const auto rows = static_cast<int64_t>(lengths.size());
    int64_t most = 1;
    for (int32_t length : lengths) most = std::max<int64_t>(most, (length + m.block - 1) / m.block);
    const int64_t pool = rows * most;
    std::vector<int32_t> table(static_cast<size_t>(pool));
    for (int64_t i = 0; i < pool; ++i) table[static_cast<size_t>(i)] = static_cast<int32_t>(pool - 1 - i);
    std::vector<int64_t> slots, ids;
    for (int64_t b = 0; b < rows; ++b) {
      ids.push_back(rows + 1 - b);
      const int64_t last = lengths[static_cast<size_t>(b)] - 1;
      slots.push_back(table[static_cast<size_t>(b * most + last / m.block)] * m.block + last % m.block);
    }
    const double gamma = m.zero_centered ? -0.5 : 0.5;
    const auto weight = [&](int64_t n, int64_t k) {
      Tensor w = ctx.empty({n, k}, kBf16);
      ctx.kernels->random(ctx.kernel_context(), {.out = w,
                                                 .b = 0.9 / std::sqrt(static_cast<double>(k)),
                                                 .key = {++weights_, 1},
                                                 .global_strides = w.shape().row_major_strides()});
      return w;
    };
    for (int64_t l = 0; l < m.layers; ++l)
      step.layers.push_back({.input_norm = uniform({m.width}, kBf16, gamma, gamma + 1).gpu,
                             .qkv = weight((m.heads + 2 * m.kv_heads) * m.d, m.width),
                             .projection = weight(m.width, m.heads * m.d),
                             .mlp_norm = uniform({m.width}, kBf16, gamma, gamma + 1).gpu,
                             .fc1 = weight(2 * m.inner, m.width),
                             .fc2 = weight(m.width, m.inner),
                             .keys = uniform({pool * m.block, m.kv_heads, m.d}, kBf16, -2, 2).gpu,
                             .values = uniform({pool * m.block, m.kv_heads, m.d}, kBf16).gpu});
    step.args = {.layers = step.layers,
                 .ids = ctx.from_vector(ids, {rows}),
                 .table = uniform({rows + 3, m.width}, kBf16, -2, 2).gpu,
                 .final_norm = uniform({m.width}, kBf16, gamma, gamma + 1).gpu,
                 .head = weight(m.vocabulary, m.width),
                 .cos = uniform({rows, m.half}, DType::F32).gpu,
                 .sin = uniform({rows, m.half}, DType::F32).gpu,
                 .interleaved = m.interleaved,
                 .slots = ctx.from_vector(slots, {rows}),
                 .blocks = ctx.from_vector(table, {rows, most}),
                 .key_lengths = ctx.from_vector(lengths, {rows}),
                 .block_size = m.block,
                 .max_keys = most * m.block,
                 .heads = m.heads,
                 .scale = 0.2,
                 .epsilon = 1e-5,
                 .zero_centered = m.zero_centered,
                 .logits = ctx.empty({rows, m.vocabulary}, kBf16)};
    return step;
  }

  uint64_t weights_ = 0;

  Tensor gemm(const Tensor& a, const Tensor& w) {
    Tensor y = gpu().empty({a.size(0), w.size(0)}, kBf16);
    gpu().kernels->gemm(gpu().kernel_context(), {.a = a, .b = w.transpose(0, 1), .c = y});
    return y;
  }

  // The same by a kernel for each part. Leaves its keys and values in the same pool.
  Tensor apart(const Model& m, const DecodeLayersArgs& args) {
    RankContext& ctx = gpu();
    const KernelTable& kernels = *ctx.kernels;
    const int64_t rows = args.ids.numel();
    Tensor stream = ctx.empty({rows, m.width}, kBf16), update;
    kernels.gather_rows(ctx.kernel_context(), {args.table, args.ids, stream});
    const auto normed = [&](const Tensor& weight) {
      Tensor y = ctx.empty_like(stream), sum = update ? ctx.empty_like(stream) : Tensor{};
      kernels.norm(ctx.kernel_context(), {.kind = NormKind::Rms,
                                          .epsilon = args.epsilon,
                                          .zero_centered = args.zero_centered,
                                          .x = stream,
                                          .residual = update,
                                          .weight = weight,
                                          .y = y,
                                          .sum = sum});
      if (update) stream = sum;
      return y;
    };
    std::vector<int32_t> cu;
    for (int32_t i = 0; i <= rows; ++i) cu.push_back(i);
    for (const DecodeLayer& layer : args.layers) {
      const Tensor fused = gemm(normed(layer.input_norm), layer.qkv);
      Tensor q = ctx.empty({rows, m.heads, m.d}, kBf16), o = ctx.empty_like(q),
             lse = ctx.empty({m.heads, rows}, DType::F32);
      EXPECT_TRUE(kernels.qkv_cache(ctx.kernel_context(), {.qkv = fused,
                                                           .q = q,
                                                           .keys = layer.keys,
                                                           .values = layer.values,
                                                           .slots = args.slots,
                                                           .cos = args.cos,
                                                           .sin = args.sin,
                                                           .interleaved = args.interleaved}));
      kernels.attention(ctx.kernel_context(), {.q = q,
                                               .k = layer.keys,
                                               .v = layer.values,
                                               .o = o,
                                               .lse = lse,
                                               .batch = rows,
                                               .cu_queries = ctx.from_vector(cu, {rows + 1}),
                                               .max_queries = 1,
                                               .max_keys = args.max_keys,
                                               .blocks = args.blocks,
                                               .key_lengths = args.key_lengths,
                                               .block_size = args.block_size,
                                               .scale = args.scale});
      update = gemm(o.view({rows, m.heads * m.d}), layer.projection);
      const Tensor both = gemm(normed(layer.mlp_norm), layer.fc1);
      Tensor active = ctx.empty({rows, m.inner}, kBf16);
      kernels.gated(ctx.kernel_context(), {.x = both, .y = active});
      update = gemm(active, layer.fc2);
    }
    return gemm(normed(args.final_norm), args.head);
  }

  std::vector<double> caches(const DecodeLayersArgs& args) {
    std::vector<double> all;
    for (const DecodeLayer& layer : args.layers)
      for (const Tensor* pool : {&layer.keys, &layer.values}) {
        const std::vector<double> some = values(gpu(), *pool);
        all.insert(all.end(), some.begin(), some.end());
      }
    return all;
  }
};

int64_t not_finite(const std::vector<double>& a) {
  return std::ranges::count_if(a, [](double v) { return !std::isfinite(v); });
}

double distance(const std::vector<double>& a, const std::vector<double>& b) {
  double square = 0, error = 0;
  for (size_t i = 0; i < a.size(); ++i) square += b[i] * b[i], error += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(error / square);
}

TEST_F(CudaDecodeLayers, AreThoseOfAKernelForEachPart) {
  const std::vector<std::vector<int32_t>> cases = {{1}, {577}, {130, 1}, {16, 700, 33, 128}};
  for (const Model& m : kModels)
    for (const std::vector<int32_t>& lengths : cases) {
      const Step step = make(m, lengths);
      const std::string what = fmt::format("{}, {} sequences", m.name, lengths.size());
      ASSERT_TRUE(gpu().kernels->decode_layers(gpu().kernel_context(), step.args)) << what;
      const std::vector<double> found = values(gpu(), step.args.logits), kept = caches(step.args);
      const std::vector<double> expected = values(gpu(), apart(m, step.args));
      EXPECT_EQ(not_finite(found), 0) << what;
      EXPECT_EQ(not_finite(kept), 0) << "cache of " << what;
      ASSERT_EQ(not_finite(expected), 0) << "parts of " << what;
      EXPECT_LE(distance(found, expected), 0.02) << what;
      EXPECT_LE(distance(kept, caches(step.args)), 0.005) << what;
    }
}

// Nothing but the inputs decides, one by one and as a CUDA graph.
TEST_F(CudaDecodeLayers, AgainAndAgain) {
  for (const Model& m : {kModels[0], kModels[1], kModels[5]}) {
    const Step step = make(m, {300, 5, 31});
    RankContext& ctx = gpu();
    const auto compute = [&] { ASSERT_TRUE(ctx.kernels->decode_layers(ctx.kernel_context(), step.args)); };
    compute();
    const std::vector<double> expected = values(ctx, step.args.logits);
    ASSERT_EQ(not_finite(expected), 0) << m.name;
    const auto own = std::make_shared<Allocator>(ctx.runtime);
    const auto before = std::exchange(ctx.allocator, own);
    const CudaGraph graph(ctx.runtime, ctx.stream, *own, compute);
    ctx.allocator = before;
    for (int i = 0; i < 200; ++i) {
      ctx.kernels->fill(ctx.kernel_context(), {step.args.logits, 0});
      if (i % 2)
        graph.run(ctx.stream);
      else
        compute();
      ASSERT_TRUE(values(ctx, step.args.logits) == expected) << m.name << ", time " << i;
    }
  }
}

TEST_F(CudaDecodeLayers, LeavesOthersAlone) {
  Step step = make(kModels[0], {20});
  step.args.logits = gpu().empty({1, 1000}, DType::F32);
  EXPECT_FALSE(gpu().kernels->decode_layers(gpu().kernel_context(), step.args));
  EXPECT_FALSE(gpu().kernels->decode_layers(gpu().kernel_context(), make(kModels[0], {1, 2, 3, 4, 5}).args));
  EXPECT_FALSE(gpu().kernels->decode_layers(gpu().kernel_context(), make(kModels[0], {9000}).args));
}

// The kernel refuses a tensor that is missing, or has another shape or type, before it reads its sizes.
TEST_F(CudaDecodeLayers, ChecksBeforeItReads) {
  const auto takes = [&](const std::function<void(Step&)>& change) {
    Step step = make(kModels[0], {20, 3});
    change(step);
    step.args.layers = step.layers;
    return gpu().kernels->decode_layers(gpu().kernel_context(), step.args);
  };
  ASSERT_TRUE(takes([](Step&) {}));
  Tensor DecodeLayersArgs::*inputs[] = {&DecodeLayersArgs::ids,        &DecodeLayersArgs::table,
                                        &DecodeLayersArgs::final_norm, &DecodeLayersArgs::head,
                                        &DecodeLayersArgs::cos,        &DecodeLayersArgs::sin,
                                        &DecodeLayersArgs::slots,      &DecodeLayersArgs::key_lengths,
                                        &DecodeLayersArgs::blocks,     &DecodeLayersArgs::logits};
  Tensor DecodeLayer::*parts[] = {&DecodeLayer::input_norm, &DecodeLayer::qkv,   &DecodeLayer::projection,
                                  &DecodeLayer::mlp_norm,   &DecodeLayer::fc1,   &DecodeLayer::fc2,
                                  &DecodeLayer::keys,       &DecodeLayer::values};
  const Tensor other = gpu().empty({2, 2, 2, 2}, DType::F64);
  for (const Tensor& instead : {Tensor{}, other}) {
    for (size_t i = 0; i < std::size(inputs); ++i)
      EXPECT_FALSE(takes([&](Step& step) { step.args.*inputs[i] = instead; })) << "input " << i;
    for (size_t layer : {0, 1})
      for (size_t i = 0; i < std::size(parts); ++i)
        EXPECT_FALSE(takes([&](Step& step) { step.layers[layer].*parts[i] = instead; }))
            << "part " << i << " of layer " << layer;
  }
}

}  // namespace
}  // namespace megatron::testing
