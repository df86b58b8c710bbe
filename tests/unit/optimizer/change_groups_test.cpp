// Updates that change one group of tensors after the other.
#include <gtest/gtest.h>

#include <set>

#include "megatron/optimizer/adam.h"
#include "megatron/optimizer/chained.h"
#include "megatron/optimizer/sgd.h"
#include "support/gradcheck.h"

namespace megatron::testing {
namespace {

// Parameters of different sizes, which optimizers of the same kind update in the same way.
struct Model {
  explicit Model(RankContext& ctx, DType dtype = DType::BF16) : ctx(ctx) {
    for (int i = 0; i < 40; ++i) {
      const Shape shape = {(i * 37) % 23 + 1, i % 5 + 1};
      parameters.push_back(std::make_unique<Parameter>(fmt::format("w{}", i), ShardSpec::whole(shape),
                                                       Initializer::constant(0)));
      slices.push_back({parameters.back().get(), 0,
                        random_tensor(ctx, shape, static_cast<uint64_t>(i), dtype),
                        random_tensor(ctx, shape, static_cast<uint64_t>(100 + i), DType::F32)});
    }
  }
  std::vector<ParameterSlice> some(size_t begin, size_t end) const {
    return {slices.begin() + static_cast<std::ptrdiff_t>(begin),
            slices.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  RankContext& ctx;
  std::vector<std::unique_ptr<Parameter>> parameters;
  std::vector<ParameterSlice> slices;
};

std::string bytes_of(const Tensor& tensor) {
  return {static_cast<const char*>(tensor.raw()), tensor.bytes()};
}

std::vector<std::string> bytes_of(const ChangeGroups& groups) {
  std::vector<std::string> bytes;
  for (const std::vector<Tensor>& group : groups) {
    bytes.emplace_back();
    for (const Tensor& tensor : group) bytes.back() += bytes_of(tensor);
  }
  return bytes;
}

// Every tensor of the state and every value is in one group; no group has changed before its turn, and all
// have the bits of a step at once afterwards.
void expect_groups(RankContext& ctx, Optimizer& grouped, Optimizer& whole, const Model& model,
                   size_t min_groups) {
  const ChangeGroups groups = grouped.change_groups();
  EXPECT_GE(groups.size(), min_groups);
  std::set<const void*> members;
  for (const std::vector<Tensor>& group : groups)
    for (const Tensor& tensor : group) members.insert(tensor.raw());
  for (const ParameterSlice& slice : model.slices) EXPECT_TRUE(members.contains(slice.value.raw()));
  for (const OptimizerTensor& entry : grouped.state()) {
    if (entry.tensor) {
      EXPECT_TRUE(members.contains(entry.tensor.raw())) << entry.kind;
    }
    if (entry.packed)
      for (const Tensor& part : entry.packed->values.parts)
        EXPECT_TRUE(members.contains(part.raw())) << entry.kind;
  }
  const Tensor scale = ctx.full({1}, DType::F64, 0.5);
  for (int step = 0; step < 2; ++step) {
    const std::vector<std::string> before = bytes_of(groups);
    size_t next = 0;
    grouped.step_by_groups(ctx, 1e-2, scale, {}, [&](size_t group) {
      ASSERT_EQ(group, next++);
      const std::vector<std::string> now = bytes_of(groups);
      for (size_t i = group; i < groups.size(); ++i) EXPECT_EQ(now[i], before[i]) << "group " << i;
    });
    EXPECT_EQ(next, groups.size());
    whole.step(ctx, 1e-2, scale);
    EXPECT_EQ(grouped.steps(), whole.steps());
    EXPECT_NE(bytes_of(groups), before);
  }
  EXPECT_EQ(bytes_of(groups), bytes_of(whole.change_groups()));
}

TEST(ChangeGroups, OfAdam) {
  RankContext ctx;
  for (const Masters masters : {Masters::Whole, Masters::Split, Masters::Half})
    for (const DType moments : {DType::F32, DType::F16}) {
      Model a(ctx), b(ctx);
      const AdamOptions options{.masters = masters, .first = moments, .second = moments};
      Adam grouped(ctx, a.slices, options), whole(ctx, b.slices, options);
      expect_groups(ctx, grouped, whole, a, 10);
    }
}

TEST(ChangeGroups, OfOthersAndOfSeveral) {
  RankContext ctx;
  const auto make = [&](const Model& model) {
    std::vector<std::unique_ptr<Optimizer>> parts;
    parts.push_back(std::make_unique<Sgd>(ctx, model.some(0, 12), SgdOptions{.momentum = 0.9}));
    parts.push_back(std::make_unique<Adam>(ctx, model.some(12, 40), AdamOptions{}));
    return std::make_unique<ChainedOptimizer>(ctx, std::move(parts));
  };
  Model a(ctx), b(ctx);
  const auto grouped = make(a), whole = make(b);
  expect_groups(ctx, *grouped, *whole, a, 10);
}

}  // namespace
}  // namespace megatron::testing
