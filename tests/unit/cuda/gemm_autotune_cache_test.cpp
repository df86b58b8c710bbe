// Autotuned GEMMs of a run: results stay right, ranks agree, later runs load the tuned algorithms.
#include "megatron/training/step/gemm_autotune_cache.h"

#include <filesystem>

#include "megatron/comm/run_ranks.h"
#include "support/gradcheck.h"
#include "support/temp_dir.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

constexpr int64_t kRows = 1000, kDepth = 1024, kColumns = 776;  // enough work to be measured

// c = beta · 1 + a · b, in fp32.
std::vector<float> gemm(RankContext& ctx, double beta) {
  Tensor a = random_tensor(ctx, {kRows, kDepth}, 1, DType::BF16, 1),
         b = random_tensor(ctx, {kDepth, kColumns}, 2, DType::BF16, 1),
         c = ctx.full({kRows, kColumns}, DType::F32, 1);
  ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c, .beta = beta});
  return ctx.to_vector<float>(c);
}

std::vector<std::vector<float>> gemms(RankContext& ctx) { return {gemm(ctx, 0), gemm(ctx, 1)}; }

void expect_close(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& exact) {
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t j = 0; j < got[i].size(); ++j) ASSERT_NEAR(got[i][j], exact[i][j], 2e-4) << i << " " << j;
}

class CudaGemmAutotuneCache : public Twin {
 protected:
  void SetUp() override {
    Twin::SetUp();
    if (sanitized()) GTEST_SKIP() << "a GPU that is kept busy for long tells nothing new";
  }
  const Device device{DeviceType::Cuda, 0};
  TempDir folder;
  size_t files() const {
    return static_cast<size_t>(std::distance(std::filesystem::directory_iterator(folder.path()), {}));
  }
};

TEST_F(CudaGemmAutotuneCache, LaterRunsBeginWithThem) {
  RankContext plain(device), first(device), second(device);
  const auto expected = gemms(plain);
  std::vector<std::vector<float>> found;
  {
    GemmAutotuneCache cache(first, ProcessGroup::self(), folder.path());
    EXPECT_EQ(cache.news(), "");
    found = gemms(first);
    expect_close(found, expected);
    cache.finish_first_step();
    EXPECT_NE(cache.news().find("timed 2 shapes, saved to " + folder.path()), std::string::npos)
        << cache.news();
    EXPECT_EQ(gemms(first), found);
  }
  EXPECT_EQ(files(), 1u);
  GemmAutotuneCache cache(second, ProcessGroup::self(), folder.path());
  EXPECT_NE(cache.news().find("loaded 2 shapes"), std::string::npos) << cache.news();
  EXPECT_EQ(gemms(second), found);
  cache.finish_first_step();
  EXPECT_EQ(cache.news(), "");
}

TEST_F(CudaGemmAutotuneCache, RanksChangeOverTogether) {
  RankContext plain(device);
  const auto expected = gemms(plain);
  std::vector<std::vector<std::vector<float>>> before(2), after(2);
  run_ranks(2, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(device, 1, rank);
    world.attach(ctx);
    GemmAutotuneCache cache(ctx, world, folder.path());
    const auto at = static_cast<size_t>(rank);
    before[at] = gemms(ctx);
    cache.finish_first_step();
    after[at] = gemms(ctx);
  });
  for (const auto& results : before) EXPECT_EQ(results, expected);  // the library's first proposals
  EXPECT_EQ(after[0], after[1]);
  expect_close(after[0], expected);
  EXPECT_EQ(files(), 1u);
}

TEST_F(CudaGemmAutotuneCache, WithoutAFolderNothingIsMeasured) {
  RankContext plain(device), ctx(device);
  GemmAutotuneCache cache(ctx, ProcessGroup::self(), "");
  EXPECT_EQ(gemms(ctx), gemms(plain));
  cache.finish_first_step();
  EXPECT_EQ(cache.news(), "");
}

}  // namespace
}  // namespace megatron::testing
