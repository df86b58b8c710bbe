#include <gtest/gtest.h>

#include "nonuniform/watched.h"

// Messages of unequal replicas that are wrong are seen.
namespace megatron::testing {
namespace {

// Each of these faults is what a careless implementation would do.
TEST(NonuniformMessages, PlantedFaultsTurnParityRed) {
  const Config model = few_groups();
  const Trained one = train(model, {}, batches_for(model, 2));
  const auto with = [&](bool sp, bool distributed, Hook hook) {
    return train_watched(apply(model, kEightSevenSix, {sp, distributed}), kEightSevenSix, 2, std::move(hook));
  };
  const auto nothing = [](const std::string&, int, CommRequest&) {};
  const auto extras_drop = [](const std::string& group, int rank, CommRequest& request) {
    if (group == "fold" && request.kind == CommKind::Send && (rank == 6 || rank == 7)) zero(request.input);
  };
  const auto means = [](const std::string& group, int, CommRequest& request) {
    if (group == "dp-cp" && request.kind == CommKind::AllReduce) request.op = ReduceOp::Avg;
  };
  // A replica whose norm differs in the last bit clips by another factor.
  const auto own_norm = [](const std::string& group, int rank, CommRequest& request) {
    if (group != "model-core" || request.kind != CommKind::AllGather || rank >= 8) return;
    double& part = *static_cast<double*>(request.input.raw());
    part = std::nextafter(part, 1e300);
  };
  const auto lost_broadcast = [](const std::string& group, int rank, CommRequest& request) {
    if (group == "tp" && request.kind == CommKind::Broadcast && rank == 0) zero(request.input);
  };
  for (const bool sp : {false, true}) {
    SCOPED_TRACE(sp ? "sequence parallel" : "tokens whole");
    EXPECT_FALSE(is_red(one, with(sp, false, nothing)));
    EXPECT_TRUE(is_red(one, with(sp, false, extras_drop))) << "extras' gradients dropped";
    EXPECT_TRUE(is_red(one, with(sp, false, means))) << "mean of means";
    EXPECT_TRUE(is_red(one, with(sp, false, own_norm))) << "a norm of its own in one replica";
    EXPECT_TRUE(is_red(one, with(sp, false, lost_broadcast))) << "numbers of the step lost";
    EXPECT_TRUE(is_red(one, with(sp, true, extras_drop))) << "extras' gradients dropped, distributed";
  }
}

// Replicas that meet at other places than their positions, and messages that are packed otherwise than they
// are unpacked, as main and side parts one behind the other are.
TEST(NonuniformMessages, PlantedFaultsOfPlacesTurnParityRed) {
  const Config model = even_units();
  const Trained one = train(model, {}, batches_for(model, 2));
  const auto reds = [&](const Hook& hook) {
    try {
      return is_red(one, train_watched(apply(model, kEightSix, {}), kEightSix, 2, hook));
    } catch (const CommError&) {
      return true;  // sizes do not fit
    }
  };
  EXPECT_FALSE(reds([](const std::string&, int, CommRequest&) {}));
  // Slots 3 and 4 of the second replica take each other's place, in every step that sums over replicas.
  EXPECT_TRUE(reds([](const std::string& group, int rank, CommRequest& request) {
    if (request.kind != CommKind::Split || group != "dp-cp") return;
    if (rank == 11)
      request.color = 4;
    else if (rank == 12)
      request.color = 3;
  })) << "pairs of other positions";
  const auto repack = [](bool columns) {
    return [columns](const std::string& group, int rank, CommRequest& request) {
      if (group != "fold" || request.kind != CommKind::Send || rank < 6 || rank > 7) return;
      auto* values = static_cast<double*>(request.input.raw());
      const int64_t n = request.input.numel();
      if (columns)  // as if the boxes of a message were transposed
        std::reverse(values, values + n);
      else  // as if blocks were swapped: up before gate
        std::rotate(values, values + n / 2, values + n);
    };
  };
  EXPECT_TRUE(reds(repack(true))) << "columns in another order";
  EXPECT_TRUE(reds(repack(false))) << "blocks in another order";
}

// Invariant I9: the norm of what owners hold is that of one rank.
TEST(NonuniformMessages, NormsCountEveryElementOnce) {
  for (const Config& model : {tied_gpt(), few_groups()}) {
    const Trained one = train(model, {}, batches_for(model, 1));
    for (const bool distributed : {false, true}) {
      const Trained many = train(apply(model, kEightSevenSix, {.sp = true, .distributed = distributed}),
                                 sizes_of(kEightSevenSix), batches_for(model, 1));
      EXPECT_NEAR(many.grad_norms[0] / one.grad_norms[0], 1, 1e-12);
    }
  }
}

}  // namespace
}  // namespace megatron::testing
