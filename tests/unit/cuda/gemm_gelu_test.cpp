// GELU within the GEMMs around it, and by a kernel of its own: both against fp64 with the same bounds.
#include "megatron/kernels/gemm_fused.h"

#include "megatron/ops/linear.h"
#include "support/gradcheck.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

class CudaGemmGelu : public Twin {
 protected:
  struct Sizes {
    int64_t rows, depth, width;
  };
  // Edges of tiles, and enough work to be measured.
  const std::vector<Sizes> sizes{{40, 64, 96}, {1000, 200, 328}, {1024, 768, 1024}};

  Tensor wide(const Tensor& x) {
    Tensor y = cpu.empty(x.shape(), DType::F64);
    cpu.kernels->copy(cpu.kernel_context(), {x, y});
    return y;
  }
  // Rounding once or twice, and tanh by the fast instruction.
  void close(const Tensor& got, const Tensor& exact, const std::string& what) {
    alike({exact, got}, got.dtype() == DType::BF16 ? 6e-3 : 2e-3, label(got.dtype()) + " " + what);
  }
  static std::vector<DType> narrow() { return some_of({DType::BF16, DType::F16}); }
  // Makes every tuned algorithm that of the fused GEMM.
  void use_fused() {
    std::string tuned = gpu().kernels->gemm_autotune.tuned(gpu().kernel_context());
    for (size_t at = 0; (at = tuned.find(" unfused\n", at)) != std::string::npos;)
      tuned.replace(at, 9, " fused\n");
    gpu().kernels->gemm_autotune.use(gpu().kernel_context(), tuned);
  }
  void TearDown() override {
    if (cuda_device_count() > 0)
      gpu().kernels->gemm_autotune.set_mode(gpu().kernel_context(), AutotuneMode::Off);
  }
};

// Unmeasured, one kernel makes both; measured, what is faster, and here one whatever that is.
TEST_F(CudaGemmGelu, Forward) {
  for (DType dtype : narrow())
    for (auto [rows, depth, width] : sizes)
      for (bool biased : {true, false}) {
        Both a = uniform({rows, depth}, dtype), b = uniform({width, depth}, dtype, -0.3, 0.3),
             bias = biased ? uniform({width}, dtype) : Both{};
        Both x = output({rows, width}, dtype), y = output({rows, width}, dtype);
        Tensor sum = cpu.empty({rows, width}, DType::F64), active = cpu.empty_like(sum);
        cpu.kernels->gemm(cpu.kernel_context(), {.a = wide(a.cpu),
                                                 .b = wide(b.cpu).transpose(0, 1),
                                                 .c = sum,
                                                 .bias = biased ? wide(bias.cpu) : Tensor{}});
        cpu.kernels->unary(cpu.kernel_context(), {Unary::GeluTanh, sum, {}, active});
        const GemmGeluArgs args{a.gpu, b.gpu, bias.gpu, x.gpu, y.gpu};
        auto right = [&](const std::string& how) {
          close(x.gpu, sum, "gemm " + how);
          close(y.gpu, active, "activation " + how);
          for (const Both& result : {x, y}) gpu().kernels->fill(gpu().kernel_context(), {result.gpu, 77});
        };
        ASSERT_TRUE(gpu().kernels->gemm_gelu(gpu().kernel_context(), args));
        right("within");
        gpu().kernels->gemm(gpu().kernel_context(),
                            {.a = a.gpu, .b = b.gpu.transpose(0, 1), .c = x.gpu, .bias = bias.gpu});
        gpu().kernels->unary(gpu().kernel_context(), {Unary::GeluTanh, x.gpu, {}, y.gpu});
        right("unfused");
        gpu().kernels->gemm_autotune.set_mode(gpu().kernel_context(), AutotuneMode::UseAtOnce);
        if (gpu().kernels->gemm_gelu(gpu().kernel_context(), args)) right("as measured");
        use_fused();
        ASSERT_TRUE(gpu().kernels->gemm_gelu(gpu().kernel_context(), args));
        right("within, measured");
        gpu().kernels->gemm_autotune.set_mode(gpu().kernel_context(), AutotuneMode::Off);
      }
}

// Unmeasured, the gradient goes by two kernels; measured, by what is faster, and here by one whatever that
// is.
TEST_F(CudaGemmGelu, Backward) {
  const Sizes shapes[] = {{1024, 768, 1024}, {3000, 1024, 520}};
  for (DType dtype : narrow())
    for (auto [rows, depth, width] : shapes) {
      Both a = uniform({rows, depth}, dtype), b = uniform({depth, width}, dtype, -0.3, 0.3),
           x = uniform({rows, width}, dtype, -4, 4), dx = output({rows, width}, dtype);
      Tensor dy = cpu.empty({rows, width}, DType::F64), exact = cpu.empty_like(dy);
      cpu.kernels->gemm(cpu.kernel_context(), {wide(a.cpu), wide(b.cpu), dy});
      cpu.kernels->unary_backward(cpu.kernel_context(), {Unary::GeluTanh, wide(x.cpu), {}, dy, exact});
      const GemmGeluBackwardArgs args{a.gpu, b.gpu, x.gpu, dx.gpu};
      EXPECT_FALSE(gpu().kernels->gemm_gelu_backward(gpu().kernel_context(), args));
      same(dx, 0, "untouched");
      gpu().kernels->gemm_autotune.set_mode(gpu().kernel_context(), AutotuneMode::UseAtOnce);
      if (gpu().kernels->gemm_gelu_backward(gpu().kernel_context(), args))
        close(dx.gpu, exact, "gradient as measured");
      gpu().kernels->gemm(gpu().kernel_context(), {a.gpu, b.gpu, dx.gpu});
      gpu().kernels->unary_backward(gpu().kernel_context(), {Unary::GeluTanh, x.gpu, {}, dx.gpu, dx.gpu});
      close(dx.gpu, exact, "gradient unfused");
      use_fused();
      gpu().kernels->fill(gpu().kernel_context(), {dx.gpu, 77});
      ASSERT_TRUE(gpu().kernels->gemm_gelu_backward(gpu().kernel_context(), args));
      close(dx.gpu, exact, "gradient within");
      gpu().kernels->gemm_autotune.set_mode(gpu().kernel_context(), AutotuneMode::Off);
    }
}

// Of wide numbers, and of rows that do not begin where loads do, nothing is done.
TEST_F(CudaGemmGelu, LeavesOthersAlone) {
  for (auto [dtype, width] : {std::pair{DType::F32, 64}, {DType::F64, 64}, {DType::BF16, 60}}) {
    Both a = uniform({128, 64}, dtype), b = uniform({width, 64}, dtype), x = output({128, width}, dtype),
         y = output({128, width}, dtype);
    EXPECT_FALSE(gpu().kernels->gemm_gelu(gpu().kernel_context(), {a.gpu, b.gpu, {}, x.gpu, y.gpu}));
    same(x, 0, "untouched");
    same(y, 0, "untouched");
  }
}

// A feed-forward layer with everything that its backward pass leaves behind.
TEST_F(CudaGemmGelu, ALayerTrainsAsOnTheCpu) {
  constexpr int64_t tokens = 304, hidden = 136, width = 264;
  auto run = [&](RankContext& ctx, bool keep) {
    auto random = [&](Shape shape, uint64_t seed, double scale) {
      return random_tensor(ctx, shape, seed, DType::BF16, scale);
    };
    TestWeight up(ctx, random({width, hidden}, 1, 0.2)), up_bias(ctx, random({width}, 5, 1)),
        down(ctx, random({hidden, width}, 2, 0.2)), down_bias(ctx, random({hidden}, 6, 1));
    const ops::ActivationOptions gelu{.kind = Unary::GeluTanh, .gated = false};
    Tape tape(ctx);
    Tensor x = tape.watch(random({tokens, hidden}, 3, 1)), y;
    {
      TapeScope scope(ctx, &tape);
      auto [middle, active] =
          ops::call_linear(ctx, x, up.get(), {.bias = up_bias.get(), .output_activation = gelu});
      y = ops::call_linear(
              ctx, middle, down.get(),
              {.bias = down_bias.get(), .input_activation = gelu, .keep_active = keep, .active = active})
              .y;
    }
    tape.backward(ctx, y, random({tokens, hidden}, 4, 1));
    return std::vector{y.detach(),
                       tape.grad(x),
                       up.accumulator.main_grad,
                       up_bias.accumulator.main_grad,
                       down.accumulator.main_grad,
                       down_bias.accumulator.main_grad};
  };
  for (bool keep : {true, false}) {
    auto on_cpu = run(cpu, keep), on_gpu = run(gpu(), keep);
    for (size_t i = 0; i < on_cpu.size(); ++i)
      alike({on_cpu[i], on_gpu[i]}, 2e-2, "result " + std::to_string(i));
  }
}

}  // namespace
}  // namespace megatron::testing
