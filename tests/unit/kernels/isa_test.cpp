// The kernels compiled for AVX2 and for AVX-512 give the same bits: lanes and their order are fixed, and both
// fuse the same multiplications and additions.
#include <gtest/gtest.h>

#include "megatron/kernels/cpu/isa_tables.h"
#include "support/gradcheck.h"

namespace megatron {
namespace {

using testing::random_tensor;

class Isa : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!cpu::has_v4()) GTEST_SKIP() << "this machine has no AVX-512";
  }

  // Runs body(kernels, out) on both tables and compares what they wrote.
  template <class Body>
  void same(const char* what, const Shape& shape, DType dtype, Body body) {
    Tensor narrow = ctx.zeros(shape, dtype), wide = ctx.zeros(shape, dtype);
    body(v3, narrow);
    body(v4, wide);
    std::vector<char> a(narrow.bytes()), b(wide.bytes());
    ctx.to_host(narrow, a.data());
    ctx.to_host(wide, b.data());
    EXPECT_EQ(a, b) << what << " " << name_of(dtype);
  }

  RankContext ctx;
  KernelTable v3 = cpu::v3::make_table(), v4 = cpu::has_v4() ? cpu::v4::make_table() : KernelTable{};
  KernelContext kernel = ctx.kernel_context();
};

TEST_F(Isa, BothTablesAreComplete) {
  for (const KernelTable* table : {&v3, &v4})
    KernelTable::visit(*table, [](const char* name, auto kernel) { EXPECT_NE(kernel, nullptr) << name; });
}

// What a device does not have says so, and is not called by mistake.
TEST_F(Isa, FusedGemmsAndAutotuningAreOptional) {
  for (const KernelTable* table : {&cpu_kernels(), &meta_kernels()}) {
    EXPECT_FALSE(table->gemm_swiglu(kernel, {}));
    EXPECT_FALSE(table->gemm_swiglu_backward(kernel, {}));
    EXPECT_FALSE(table->gemm_gelu(kernel, {}));
    EXPECT_FALSE(table->gemm_gelu_backward(kernel, {}));
    EXPECT_FALSE(table->gemm_softmax_stats(kernel, {}));
    table->gemm_autotune.set_mode(kernel, AutotuneMode::UseAtOnce);
    table->gemm_autotune.use(kernel, "");
    EXPECT_EQ(table->gemm_autotune.tuned(kernel), "");
    EXPECT_EQ(table->attention_log, nullptr);
  }
}

TEST_F(Isa, ElementwiseKernelsAgree) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    Tensor x = random_tensor(ctx, {7, 1030}, 1, dtype, 3), d = random_tensor(ctx, {7, 1030}, 2, dtype);
    for (int kind = 0; kind <= static_cast<int>(Unary::Mish); ++kind) {
      auto unary = static_cast<Unary>(kind);
      same("unary", x.shape(), dtype, [&](auto& k, auto& y) { k.unary(kernel, {unary, x, {}, y}); });
      same("unary_backward", x.shape(), dtype, [&](auto& k, auto& y) {
        k.unary_backward(kernel, {unary, x, {}, d, y});
      });
    }
    same("axpby", x.shape(), dtype, [&](auto& k, auto& y) { k.axpby(kernel, {0.3, x, -0.7, d, y}); });
    same("gated", {7, 515}, dtype, [&](auto& k, auto& y) { k.gated(kernel, {.x = x, .y = y}); });
    Tensor half = random_tensor(ctx, {7, 515}, 3, dtype);
    same("gated_backward", x.shape(), dtype,
         [&](auto& k, auto& y) { k.gated_backward(kernel, {.x = x, .dy = half, .dx = y}); });
    same("dropout", x.shape(), dtype, [&](auto& k, auto& y) {
      k.dropout(kernel, {.x = x, .y = y, .p = 0.3, .key = {1, 2}, .global_columns = 1030});
    });
    same("random", x.shape(), dtype, [&](auto& k, auto& y) {
      k.random(kernel, {.out = y, .key = {3, 4}, .global_strides = x.strides()});
    });
  }
}

TEST_F(Isa, SumsAgree) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F16, DType::F64}) {
    Tensor x = random_tensor(ctx, {77, 1030}, 1, dtype, 3), d = random_tensor(ctx, {77, 1030}, 2, dtype);
    Tensor w = random_tensor(ctx, {1030}, 3, dtype);
    DType sums = accumulation_dtype(dtype);
    Tensor rstd = random_tensor(ctx, {77}, 4, sums), mean = random_tensor(ctx, {77}, 5, sums);
    for (NormKind kind : {NormKind::Rms, NormKind::Layer}) {
      same("norm", x.shape(), dtype,
           [&](auto& k, auto& y) { k.norm(kernel, {.kind = kind, .x = x, .weight = w, .y = y}); });
      NormBackwardArgs backward{.kind = kind, .dy = d, .x = x, .weight = w, .mean = mean, .rstd = rstd};
      same("norm_backward dx", x.shape(), dtype, [&](auto& k, auto& y) {
        auto args = backward;
        args.dx = y;
        k.norm_backward(kernel, args);
      });
      same("norm_backward dw", {1030}, sums, [&](auto& k, auto& y) {
        auto args = backward;
        args.dx = ctx.empty_like(x);
        args.dweight = y;
        k.norm_backward(kernel, args);
      });
    }
    for (Reduction kind : {Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min}) {
      same("reduce rows", {77}, dtype, [&](auto& k, auto& y) {
        k.reduce(kernel, {.kind = kind, .x = x, .out = y, .outer = 77, .n = 1030});
      });
      same("reduce columns", {1030}, dtype, [&](auto& k, auto& y) {
        k.reduce(kernel, {.kind = kind, .x = x, .out = y, .n = 77, .inner = 1030});
      });
    }
    same("softmax", x.shape(), dtype, [&](auto& k, auto& y) { k.softmax(kernel, {x, y}); });
    same("softmax_backward", x.shape(), dtype, [&](auto& k, auto& y) {
      k.softmax_backward(kernel, {x, d, y});
    });
    same("sum_squares", {1}, DType::F64, [&](auto& k, auto& y) { k.sum_squares(kernel, {{&x, 1}, y}); });
    same("count_zeros", {1}, DType::F64, [&](auto& k, auto& y) { k.count_zeros(kernel, {{&x, 1}, y}); });
  }
}

TEST_F(Isa, PackedGemmAgrees) {
  for (DType dtype : {DType::F64, DType::F16}) {
    Tensor a = random_tensor(ctx, {201, 333}, 1, dtype), b = random_tensor(ctx, {270, 333}, 2, dtype);
    same("gemm", {201, 270}, dtype,
         [&](auto& k, auto& y) { k.gemm(kernel, {.a = a, .b = b.transpose(0, 1), .c = y}); });
  }
}

TEST_F(Isa, AdamAgrees) {
  for (DType dtype : {DType::F32, DType::BF16, DType::F64}) {
    DType state = accumulation_dtype(dtype);
    same("adam", {1030}, dtype, [&](auto& k, auto& y) {
      AdamTensor t{.parameter = y,
                   .gradient = random_tensor(ctx, {1030}, 1, state),
                   .first = random_tensor(ctx, {1030}, 2, state),
                   .second = random_tensor(ctx, {1030}, 3, state),
                   .weight_decay = 0.1};
      ctx.kernels->unary(kernel, {Unary::Square, t.second, {}, t.second});
      ctx.kernels->copy(kernel, {random_tensor(ctx, {1030}, 4, dtype), y});
      k.adam(kernel, {.tensors = {&t, 1}, .lr = 1e-2, .step = 3});
    });
  }
}

}  // namespace
}  // namespace megatron
