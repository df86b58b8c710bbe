// SwiGLU within the GEMMs around it: against the CPU, and bit for bit against the kernels one by one.
#include "megatron/kernels/gemm_fused.h"
#include "megatron/ops/linear.h"
#include "support/gradcheck.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaGemmSwiglu : public Sm90Twin {
 protected:
  struct Sizes {
    int64_t rows, depth, width;
  };
  // Less than a tile, whole tiles, edges everywhere, many tiles for a block, one step, fewer than pieces.
  const std::vector<Sizes> sizes =
      sanitized() ? std::vector<Sizes>{{40, 64, 96}, {700, 392, 136}, {20001, 64, 264}}
                  : std::vector<Sizes>{{40, 64, 96},    {256, 896, 256},  {1000, 200, 328},
                                       {700, 392, 136}, {20001, 64, 264}, {4096, 448, 1288}};

  // Whether to hold the kernels to the library's bits too; racecheck breaks the library.
  static std::vector<bool> exactly() {
    return sanitized() ? std::vector<bool>{false} : std::vector<bool>{false, true};
  }
  // Sums of these are exact in any order.
  Both whole(Shape shape, double unit) {
    Both x = integers(shape, -2, 3, DType::BF16);
    for (Tensor t : {x.cpu, x.gpu}) {
      RankContext& ctx = t.device().is_cuda() ? gpu() : cpu;
      ctx.kernels->axpby(ctx.kernel_context(), {.alpha = unit, .a = t, .beta = 0, .b = {}, .out = t});
    }
    return x;
  }
  void equal(const Tensor& got, const Tensor& expected, const std::string& what) {
    EXPECT_TRUE(values(gpu(), got) == values(gpu(), expected)) << what << " of " << got.str();
  }
};

TEST_F(CudaGemmSwiglu, Forward) {
  for (auto [rows, depth, width] : sizes)
    for (bool exact : exactly()) {
      Both a = exact ? whole({rows, depth}, 1) : uniform({rows, depth}, DType::BF16);
      Both b =
          exact ? whole({2 * width, depth}, 0.0625) : uniform({2 * width, depth}, DType::BF16, -0.2, 0.2);
      Both x = output({rows, 2 * width}, DType::BF16), y = output({rows, width}, DType::BF16);
      ASSERT_TRUE(gpu().kernels->gemm_swiglu(gpu().kernel_context(), {a.gpu, b.gpu, x.gpu, y.gpu}));
      Tensor plain = gpu().empty_like(x.gpu), active = gpu().empty_like(y.gpu);
      gpu().kernels->gated(gpu().kernel_context(), {.x = x.gpu, .y = active});
      equal(y.gpu, active, "activation");
      if (exact) {
        gpu().kernels->gemm(gpu().kernel_context(), {a.gpu, b.gpu.transpose(0, 1), plain});
        equal(x.gpu, plain, "gemm");
      }
      if (exact || rows > 2000) continue;
      cpu.kernels->gemm(cpu.kernel_context(), {a.cpu, b.cpu.transpose(0, 1), x.cpu});
      cpu.kernels->gated(cpu.kernel_context(), {.x = x.cpu, .y = y.cpu});
      same(x, "gemm");
      alike(y, 1e-2, "activation");
    }
}

TEST_F(CudaGemmSwiglu, Backward) {
  for (auto [rows, depth, width] : sizes)
    for (bool exact : exactly()) {
      Both a = exact ? whole({rows, depth}, 1) : uniform({rows, depth}, DType::BF16);
      Both b = exact ? whole({depth, width}, 0.0625) : uniform({depth, width}, DType::BF16, -0.2, 0.2);
      Both x = uniform({rows, 2 * width}, DType::BF16, -3, 3), dx = output({rows, 2 * width}, DType::BF16);
      ASSERT_TRUE(gpu().kernels->gemm_swiglu_backward(gpu().kernel_context(), {a.gpu, b.gpu, x.gpu, dx.gpu}));
      if (exact) {
        Tensor dy = gpu().empty({rows, width}, DType::BF16), expected = gpu().empty_like(x.gpu);
        gpu().kernels->gemm(gpu().kernel_context(), {a.gpu, b.gpu, dy});
        gpu().kernels->gated_backward(gpu().kernel_context(), {.x = x.gpu, .dy = dy, .dx = expected});
        equal(dx.gpu, expected, "gradient");
        ASSERT_TRUE(
            gpu().kernels->gemm_swiglu_backward(gpu().kernel_context(), {a.gpu, b.gpu, x.gpu, x.gpu}));
        equal(x.gpu, expected, "gradient in place");
      } else if (rows <= 2000) {
        Tensor dy = cpu.empty({rows, width}, DType::BF16);
        cpu.kernels->gemm(cpu.kernel_context(), {a.cpu, b.cpu, dy});
        cpu.kernels->gated_backward(cpu.kernel_context(), {.x = x.cpu, .dy = dy, .dx = dx.cpu});
        alike(dx, 1e-2, "gradient");
      }
    }
}

// Of other dtypes, and of rows that TMA cannot read, nothing is done.
TEST_F(CudaGemmSwiglu, LeavesOthersAlone) {
  for (auto [dtype, depth] : {std::pair{DType::F32, 64}, {DType::F16, 64}, {DType::BF16, 60}}) {
    Both a = uniform({128, depth}, dtype), b = uniform({256, depth}, dtype), x = output({128, 256}, dtype),
         y = output({128, 128}, dtype);
    EXPECT_FALSE(gpu().kernels->gemm_swiglu(gpu().kernel_context(), {a.gpu, b.gpu, x.gpu, y.gpu}));
    same(y, 0, "untouched");
  }
}

// A feed-forward layer with everything that its backward pass leaves behind.
TEST_F(CudaGemmSwiglu, ALayerTrainsAsOnTheCpu) {
  constexpr int64_t tokens = 300, hidden = 136, width = 264;
  auto run = [&](RankContext& ctx, bool keep) {
    auto random = [&](Shape shape, uint64_t seed, double scale) {
      return random_tensor(ctx, shape, seed, DType::BF16, scale);
    };
    TestWeight up(ctx, random({2 * width, hidden}, 1, 0.2)), down(ctx, random({hidden, width}, 2, 0.2));
    const ops::ActivationOptions swiglu;
    Tape tape(ctx);
    Tensor x = tape.watch(random({tokens, hidden}, 3, 1)), y;
    {
      TapeScope scope(ctx, &tape);
      auto [middle, active] = ops::call_linear(ctx, x, up.get(), {.output_activation = swiglu});
      y = ops::call_linear(ctx, middle, down.get(),
                           {.input_activation = swiglu, .keep_active = keep, .active = active})
              .y;
    }
    tape.backward(ctx, y, random({tokens, hidden}, 4, 1));
    return std::vector{y.detach(), tape.grad(x), up.accumulator.main_grad, down.accumulator.main_grad};
  };
  for (bool keep : {true, false}) {
    auto on_cpu = run(cpu, keep), on_gpu = run(gpu(), keep);
    for (size_t i = 0; i < on_cpu.size(); ++i)
      alike({on_cpu[i], on_gpu[i]}, 2e-2, "result " + std::to_string(i));
  }
}

}  // namespace
}  // namespace megatron::testing
