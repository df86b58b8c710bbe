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
  int64_t hidden, qkv, inner, vocabulary;
};
constexpr Shapes kModels[] = {{"1b", 2048, 3072, 8192, 128256}, {"8b", 4096, 6144, 14336, 128256}};

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
          if (!ctx.kernels->gemm_swiglu(ctx.kernel_context(), {y, layer.fc1, both, active, true}))
            std::abort();
          update = multiply(active, layer.fc2);
        }
      });
      ctx.pdl = false;
      b.print(name, bytes, time, kLayers);
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
    bench_gemms(bench, model);
  }
  return 0;
}
