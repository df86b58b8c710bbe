// Measured GEMMs of a run: the results stay right, ranks agree, and later runs begin with the choices.
#include "megatron/training/step/product_choices.h"

#include <filesystem>

#include "megatron/comm/run_ranks.h"
#include "support/gradcheck.h"
#include "support/temp_dir.h"
#include "unit/cuda/twin.h"

namespace megatron::testing {
namespace {

constexpr int64_t kRows = 1000, kDepth = 1024, kColumns = 776;  // enough work to be measured

// c = beta · 1 + a · b, in fp32.
std::vector<float> product(RankContext& ctx, double beta) {
  Tensor a = random_tensor(ctx, {kRows, kDepth}, 1, DType::BF16, 1),
         b = random_tensor(ctx, {kDepth, kColumns}, 2, DType::BF16, 1),
         c = ctx.full({kRows, kColumns}, DType::F32, 1);
  ctx.kernels->gemm(ctx.kernel_context(), {.a = a, .b = b, .c = c, .beta = beta});
  return ctx.to_vector<float>(c);
}

std::vector<std::vector<float>> products(RankContext& ctx) { return {product(ctx, 0), product(ctx, 1)}; }

void expect_close(const std::vector<std::vector<float>>& got, const std::vector<std::vector<float>>& exact) {
  for (size_t i = 0; i < got.size(); ++i)
    for (size_t j = 0; j < got[i].size(); ++j) ASSERT_NEAR(got[i][j], exact[i][j], 2e-4) << i << " " << j;
}

class CudaProductChoices : public Twin {
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

TEST_F(CudaProductChoices, LaterRunsBeginWithThem) {
  RankContext plain(device), first(device), second(device);
  const auto expected = products(plain);
  std::vector<std::vector<float>> found;
  {
    ProductChoices choices(first, ProcessGroup::self(), folder.path());
    EXPECT_EQ(choices.news(), "");
    found = products(first);
    expect_close(found, expected);
    choices.finish_first_step();
    EXPECT_NE(choices.news().find("2 shapes were measured, kept in " + folder.path()), std::string::npos)
        << choices.news();
    EXPECT_EQ(products(first), found);
  }
  EXPECT_EQ(files(), 1u);
  ProductChoices choices(second, ProcessGroup::self(), folder.path());
  EXPECT_NE(choices.news().find("2 shapes are known"), std::string::npos) << choices.news();
  EXPECT_EQ(products(second), found);
  choices.finish_first_step();
  EXPECT_EQ(choices.news(), "");
}

TEST_F(CudaProductChoices, RanksChangeOverTogether) {
  RankContext plain(device);
  const auto expected = products(plain);
  std::vector<std::vector<std::vector<float>>> before(2), after(2);
  run_ranks(2, [&](int rank, const ProcessGroup& world) {
    RankContext ctx(device, 1, rank);
    world.attach(ctx);
    ProductChoices choices(ctx, world, folder.path());
    const auto at = static_cast<size_t>(rank);
    before[at] = products(ctx);
    choices.finish_first_step();
    after[at] = products(ctx);
  });
  for (const auto& results : before) EXPECT_EQ(results, expected);  // the library's first proposals
  EXPECT_EQ(after[0], after[1]);
  expect_close(after[0], expected);
  EXPECT_EQ(files(), 1u);
}

TEST_F(CudaProductChoices, WithoutAFolderNothingIsMeasured) {
  RankContext plain(device), ctx(device);
  ProductChoices choices(ctx, ProcessGroup::self(), "");
  EXPECT_EQ(products(ctx), products(plain));
  choices.finish_first_step();
  EXPECT_EQ(choices.news(), "");
}

}  // namespace
}  // namespace megatron::testing
