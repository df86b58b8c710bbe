// Times the GEMMs of a decoder's step in bf16 against the bytes of their weights, each as a CUDA graph over
// so many weights that none is still in the L2 cache, and whole layers of them, with PDL and without.
//   bench_decode_kernels [filter]: only rows whose name contains the filter
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "megatron/autograd/rank_context.h"
#include "megatron/device/graph.h"
#include "megatron/kernels/decode_layers.h"

using namespace megatron;

namespace {

constexpr DType kBf16 = DType::BF16;

struct Bench {
  std::string filter;
  RankContext ctx{Device{DeviceType::Cuda, 0}};
  uint64_t seed = 0;

  Tensor random(Shape shape, double scale = 1) {
    Tensor x = ctx.empty(shape, kBf16);
    RandomArgs args{.out = x, .b = scale, .key = {++seed, 1}, .global_strides = shape.row_major_strides()};
    ctx.kernels->random(ctx.kernel_context(), args);
    return x;
  }
  bool wanted(const std::string& name) const { return name.find(filter) != std::string::npos; }

  // Seconds of one run of `body` as a CUDA graph: the median of five batches.
  double seconds(const std::function<void()>& body) {
    body();  // loads what it needs
    ctx.stream.synchronize();
    const auto memory = std::make_shared<Allocator>(ctx.runtime),
               before = std::exchange(ctx.allocator, memory);
    const CudaGraph graph(ctx.runtime, ctx.stream, *memory, body);
    ctx.allocator = before;
    std::vector<double> times;
    for (int i = 0; i < 6; ++i) {
      ctx.stream.synchronize();
      const auto begin = std::chrono::steady_clock::now();
      for (int run = 0; run < 10; ++run) graph.run(ctx.stream);
      ctx.stream.synchronize();
      times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() / 10);
    }
    std::sort(times.begin() + 1, times.end());
    return times[3];
  }
  void print(const std::string& name, double gigabytes, double time, double count) const {
    std::printf("%-52s %8.2f us %6.2f TB/s\n", name.c_str(), time / count * 1e6, gigabytes / time / 1e3);
    std::fflush(stdout);
  }
};

struct Shapes {
  const char* name;
  int64_t hidden, qkv, inner, vocabulary, head_dim;
};
constexpr Shapes kModels[] = {{"1b", 2048, 3072, 8192, 128256, 64}, {"8b", 4096, 6144, 14336, 128256, 128}};

// The library's kernel serves where alpha is not 1.
void bench_gemms(Bench& b, const Shapes& model) {
  RankContext& ctx = b.ctx;
  struct Gemm {
    const char* name;
    int64_t n, k;
    bool swiglu = false;
  };
  for (const Gemm& gemm : {Gemm{"qkv", model.qkv, model.hidden},
                           {"proj", model.hidden, model.hidden},
                           {"fc1", 2 * model.inner, model.hidden, true},
                           {"fc2", model.hidden, model.inner},
                           {"head", model.vocabulary, model.hidden}}) {
    const double bytes = 2e-9 * static_cast<double>(gemm.n * gemm.k);
    const auto count = static_cast<size_t>(std::clamp(0.5 / bytes, 2.0, 40.0));
    std::vector<Tensor> weights;
    for (int64_t rows : {1, 8, 16, 32, 64}) {
      const std::string size = std::string(gemm.name) + " " + model.name + " rows " + std::to_string(rows);
      if (!b.wanted("own " + size) && !b.wanted("pdl " + size) && !b.wanted("library " + size)) continue;
      while (weights.size() < count) weights.push_back(b.random({gemm.n, gemm.k}));
      const Tensor x = b.random({rows, gemm.k}), y = ctx.empty({rows, gemm.n}, kBf16),
                   active = gemm.swiglu ? ctx.empty({rows, gemm.n / 2}, kBf16) : Tensor{};
      const auto run = [&](const std::string& name, double alpha) {
        if (!b.wanted(name)) return;
        const double time = b.seconds([&] {
          for (const Tensor& w : weights) {
            if (alpha == 1 && gemm.swiglu &&
                ctx.kernels->gemm_swiglu(ctx.kernel_context(), {x, w, y, active, true}))
              continue;
            ctx.kernels->gemm(ctx.kernel_context(),
                              {.a = x, .b = w.transpose(0, 1), .c = y, .alpha = alpha, .static_b = true});
            if (gemm.swiglu) ctx.kernels->gated(ctx.kernel_context(), {.x = y, .y = active});
          }
        });
        b.print(name, bytes * static_cast<double>(count), time, static_cast<double>(count));
      };
      run("own " + size, 1);
      ctx.pdl = true;
      run("pdl " + size, 1);
      ctx.pdl = false;
      run("library " + size, 0.5);
    }
  }
}

// Norms and GEMMs of 16 layers: what a step takes without attention, rotation and the head.
void bench_layers(Bench& b, const Shapes& model) {
  RankContext& ctx = b.ctx;
  struct Layer {
    Tensor norm, qkv, proj, fc1, fc2;
  };
  constexpr size_t kLayers = 16;
  std::vector<Layer> layers;
  for (int64_t rows : {1, 64})
    for (bool pdl : {false, true}) {
      const std::string name =
          std::string("16 layers ") + model.name + " rows " + std::to_string(rows) + (pdl ? " pdl" : "");
      if (!b.wanted(name)) continue;
      while (layers.size() < kLayers)
        layers.push_back({b.random({model.hidden}), b.random({model.qkv, model.hidden}, 0.02),
                          b.random({model.hidden, model.hidden}, 0.02),
                          b.random({2 * model.inner, model.hidden}, 0.02),
                          b.random({model.hidden, model.inner}, 0.02)});
      const double bytes =
          2e-9 * kLayers * static_cast<double>(model.hidden * (model.qkv + model.hidden + 3 * model.inner));
      const Tensor x = b.random({rows, model.hidden});
      const auto multiply = [&](const Tensor& a, const Tensor& w) {
        Tensor y = ctx.empty({rows, w.size(0)}, kBf16);
        ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = w.transpose(0, 1), .c = y, .static_b = true});
        return y;
      };
      ctx.pdl = pdl;
      const double time = b.seconds([&] {
        Tensor stream = x, update = x;
        const auto normed = [&](const Tensor& weight) {
          Tensor sum = ctx.empty_like(x), y = ctx.empty_like(x);
          ctx.kernels->norm(ctx.kernel_context(),
                            {.x = stream, .residual = update, .weight = weight, .y = y, .sum = sum});
          stream = sum;
          return y;
        };
        for (const Layer& layer : layers) {
          const Tensor qkv = multiply(normed(layer.norm), layer.qkv);
          update = multiply(qkv.slice(1, 0, model.hidden), layer.proj);
          const Tensor y = normed(layer.norm);
          Tensor both = ctx.empty({rows, 2 * model.inner}, kBf16),
                 active = ctx.empty({rows, model.inner}, kBf16);
          if (!ctx.kernels->gemm_swiglu(ctx.kernel_context(), {y, layer.fc1, both, active, true})) {
            ctx.kernels->gemm(ctx.kernel_context(),
                              {.a = y, .b = layer.fc1.transpose(0, 1), .c = both, .static_b = true});
            ctx.kernels->gated(ctx.kernel_context(), {.x = both, .y = active});
          }
          update = multiply(active, layer.fc2);
        }
      });
      ctx.pdl = false;
      b.print(name, bytes, time, kLayers);
    }
}

// Attention of one token a sequence to 544 keys, in blocks of 16 on tensor cores, and of 8 without.
void bench_attention(Bench& b, const Shapes& model) {
  RankContext& ctx = b.ctx;
  constexpr int64_t kLayers = 8, kKeys = 544, kKvHeads = 8;
  const int64_t heads = model.hidden / model.head_dim;
  for (int64_t rows : {1, 16, 64})
    for (int64_t block : {16, 8}) {
      const std::string name = std::string("attention ") + model.name + " rows " + std::to_string(rows) +
                               " blocks of " + std::to_string(block);
      if (!b.wanted(name)) continue;
      const int64_t blocks = 1024 / block, used = kKeys / block;
      std::vector<Tensor> keys, values;
      for (int64_t i = 0; i < kLayers; ++i) {
        keys.push_back(b.random({rows * kKeys, kKvHeads, model.head_dim}));
        values.push_back(b.random({rows * kKeys, kKvHeads, model.head_dim}));
      }
      std::vector<int32_t> table, lengths, cu = {0};
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t i = 0; i < blocks; ++i)
          table.push_back(static_cast<int32_t>(i < used ? row * used + i * 7 % used : 0));
        lengths.push_back(kKeys);
        cu.push_back(static_cast<int32_t>(row + 1));
      }
      const Tensor q = b.random({rows, heads, model.head_dim}), o = ctx.empty_like(q),
                   lse = ctx.empty({heads, rows}, DType::F32), cu_queries = ctx.from_vector(cu, {rows + 1}),
                   placed = ctx.from_vector(table, {rows, blocks}),
                   key_lengths = ctx.from_vector(lengths, {rows});
      ctx.pdl = true;
      const double time = b.seconds([&] {
        for (size_t i = 0; i < keys.size(); ++i)
          ctx.kernels->attention(ctx.kernel_context(), {.q = q,
                                                        .k = keys[i],
                                                        .v = values[i],
                                                        .o = o,
                                                        .lse = lse,
                                                        .batch = rows,
                                                        .cu_queries = cu_queries,
                                                        .max_queries = 1,
                                                        .max_keys = 1024,
                                                        .blocks = placed,
                                                        .key_lengths = key_lengths,
                                                        .block_size = block,
                                                        .scale = 0.1});
      });
      ctx.pdl = false;
      const double bytes = 4e-9 * static_cast<double>(kLayers * rows * kKeys * kKvHeads * model.head_dim);
      b.print(name, bytes, time, kLayers);
    }
}

// 16 layers and the head by one kernel, with 544 keys a sequence.
void bench_persistent(Bench& b, const Shapes& model) {
  RankContext& ctx = b.ctx;
  constexpr int64_t kLayers = 16, kKeys = 544, kBlock = 16, kBlocks = 64, kKvHeads = 8;
  std::vector<DecodeLayer> layers;
  Tensor head;
  for (int64_t rows : {1, 2, 4}) {
    const std::string name = std::string("persistent ") + model.name + " rows " + std::to_string(rows);
    if (!b.wanted(name)) continue;
    while (std::ssize(layers) < kLayers)
      layers.push_back({.input_norm = b.random({model.hidden}),
                        .qkv = b.random({model.qkv, model.hidden}, 0.02),
                        .projection = b.random({model.hidden, model.hidden}, 0.02),
                        .mlp_norm = b.random({model.hidden}),
                        .fc1 = b.random({2 * model.inner, model.hidden}, 0.02),
                        .fc2 = b.random({model.hidden, model.inner}, 0.02),
                        .keys = b.random({4 * kBlocks * kBlock, kKvHeads, model.head_dim}),
                        .values = b.random({4 * kBlocks * kBlock, kKvHeads, model.head_dim})});
    if (!head) head = b.random({model.vocabulary, model.hidden}, 0.02);
    std::vector<int32_t> table, lengths;
    std::vector<int64_t> slots;
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < kBlocks; ++i) table.push_back(static_cast<int32_t>(row * kBlocks + i));
      lengths.push_back(kKeys);
      slots.push_back(row * kBlocks * kBlock + kKeys - 1);
    }
    Tensor angles = ctx.empty({rows, model.head_dim / 2}, DType::F32);
    ctx.kernels->fill(ctx.kernel_context(), {angles, 0.7});
    const DecodeLayersArgs args{.layers = layers,
                                .ids = ctx.from_vector(std::vector<int64_t>(rows, 7), {rows}),
                                .table = head,
                                .final_norm = layers[0].input_norm,
                                .head = head,
                                .cos = angles,
                                .sin = angles,
                                .slots = ctx.from_vector(slots, {rows}),
                                .blocks = ctx.from_vector(table, {rows, kBlocks}),
                                .key_lengths = ctx.from_vector(lengths, {rows}),
                                .block_size = kBlock,
                                .max_keys = kBlocks * kBlock,
                                .heads = model.hidden / model.head_dim,
                                .scale = 0.1,
                                .epsilon = 1e-5,
                                .logits = ctx.empty({rows, model.vocabulary}, kBf16)};
    const double bytes =
        2e-9 * static_cast<double>(kLayers * model.hidden * (model.qkv + model.hidden + 3 * model.inner) +
                                   model.vocabulary * model.hidden);
    const auto run = [&] { return ctx.kernels->decode_layers(ctx.kernel_context(), args); };
    if (run())
      b.print(name, bytes, b.seconds(run), 1);
    else
      std::printf("%s does not fit\n", name.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (cuda_device_count() == 0) {
    std::puts("no GPU is here");
    return 1;
  }
  Bench bench{argc > 1 ? argv[1] : ""};
  {
    const Tensor x = bench.random({1 << 29}), y = bench.ctx.empty_like(x);
    bench.print("copy", 4e-9 * (1 << 29), bench.seconds([&] {
      bench.ctx.kernels->copy(bench.ctx.kernel_context(), {x, y});
    }),
                1);
  }
  for (const Shapes& model : kModels) {
    bench_layers(bench, model);
    bench_attention(bench, model);
    bench_persistent(bench, model);
    bench_gemms(bench, model);
  }
  return 0;
}
