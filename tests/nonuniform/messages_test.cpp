#include <gtest/gtest.h>

#include "megatron/parallel/replica_layout.h"
#include "nonuniform/watched.h"

// What the ranks of unequal replicas send each other: as much as it must be, and nothing that may be wrong.
namespace megatron::testing {
namespace {

// What each rank does in one step.
struct Traffic {
  std::map<int, int64_t> folded, received;  // bytes that it sends and gets over its fold group
  std::map<int, int64_t> reduced;           // bytes of gradients that it reduces with its peers
  std::map<int, int64_t> gathered;          // bytes of parameters that they gather then
};

Traffic traffic_of(const Config& config, const Nonuniform& layout) {
  Traffic traffic;
  std::mutex mutex;
  train_watched(
      config, layout, 1,
      [&](const std::string& group, int rank, CommRequest& request) {
        std::lock_guard lock(mutex);
        const auto count = [&](std::map<int, int64_t>& bytes, const Tensor& tensor) {
          bytes[rank] += static_cast<int64_t>(tensor.bytes());
        };
        if (group == "fold" && request.kind == CommKind::Send) count(traffic.folded, request.input);
        if (group == "fold" && request.kind == CommKind::Recv) count(traffic.received, request.output);
        if (group != "dp-cp") return;
        const bool gradients = request.input.defined() && request.input.dtype() == DType::F32;
        if ((request.kind == CommKind::AllReduce && gradients && request.input.numel() > 64) ||
            request.kind == CommKind::ReduceScatter) {
          count(traffic.reduced, request.input);
        }
        if (request.kind == CommKind::AllGather) count(traffic.gathered, request.output);
      },
      DType::BF16);
  return traffic;
}

struct Counted {
  int64_t sharded = 0, replicated = 0;
};

Counted elements(const ModelConfig& model) {
  const int64_t h = model.hidden_size, layer = 4 * h * h + 3 * h * model.ffn_hidden_size;
  return {model.num_layers * layer + model.vocab_size * h, (2 * model.num_layers + 1) * h};
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements that each of `positions` reduces with its peers, by the layout of buckets alone: parameters from
// the last to the first, a bucket full by what a position has on average, every tensor at a multiple of 64,
// and the end of what is sharded at one of 128. Whole tensors are owned in turn.
std::vector<int64_t> reduced_elements(const ModelConfig& model, int64_t positions, int64_t bucket_size,
                                      bool sharded) {
  const int64_t h = model.hidden_size, f = model.ffn_hidden_size;
  constexpr bool kWhole = true, kSplit = false;
  std::vector<std::pair<int64_t, bool>> parameters = {{h, kWhole}};
  for (int64_t layer = 0; layer < model.num_layers; ++layer)
    parameters.insert(parameters.end(), {{h * f, kSplit},
                                         {2 * h * f, kSplit},
                                         {h, kWhole},
                                         {h * h, kSplit},
                                         {3 * h * h, kSplit},
                                         {h, kWhole}});
  parameters.emplace_back(model.vocab_size * h, kSplit);
  std::vector<int64_t> elements(static_cast<size_t>(positions), 0), open = elements;
  int64_t average = 0;
  const auto close = [&] {
    for (size_t i = 0; i < open.size(); ++i) {
      elements[i] += round_up(open[i], sharded ? 128 : 1);
      open[i] = 0;
    }
    average = 0;
  };
  for (size_t number = 0; number < parameters.size(); ++number) {
    const auto [numel, whole] = parameters[number];
    for (size_t i = 0; i < open.size(); ++i) {
      const bool owner = number % open.size() == i;
      const int64_t own = whole ? (owner ? numel : 0) : numel / positions;
      if (own > 0) open[i] = round_up(open[i], 64) + own;
    }
    average = round_up(average, 64) + round_up(numel, positions) / positions;
    if (bucket_size > 0 && average >= bucket_size) close();
  }
  close();
  return elements;
}

// Fold: gradients of 4 bytes. Unfold: the same, or with a distributed optimizer values of 2 bytes.
TEST(NonuniformMessages, BytesAreThoseOfTheClosedForm) {
  const Config model = even_units();
  const Counted count = elements(model.model);
  const ReplicaLayout replicas(sizes_of(kEightSix));
  for (const auto& [sp, bucket_size] :
       {std::pair{false, int64_t{1500}}, {true, int64_t{1500}}, {true, int64_t{0}}, {false, int64_t{700}}})
    for (const bool distributed : {false, true}) {
      SCOPED_TRACE(fmt::format("sp {} distributed {} buckets of {}", sp, distributed, bucket_size));
      Config config = apply(model, kEightSix, {sp, distributed});
      config.ddp.bucket_size = bucket_size;
      Traffic traffic = traffic_of(config, kEightSix);
      const int64_t back = distributed ? 2 : 4;
      // Peers reduce as much as a rank of the smaller replica has: N / Ns times the even share.
      const std::vector<int64_t> reduced =
          reduced_elements(model.model, 6, config.ddp.bucket_size, distributed);
      for (const int replica : {0, 1})
        for (size_t position = 0; position < reduced.size(); ++position) {
          const int rank = replicas.ranks(replica, 0, 0)[position];
          EXPECT_EQ(traffic.reduced[rank], 4 * reduced[position]) << "rank " << rank;
          EXPECT_EQ(traffic.gathered[rank], distributed ? 2 * reduced[position] : 0) << "rank " << rank;
        }
      for (const int extra : {6, 7}) EXPECT_EQ(traffic.reduced[extra], 0);
      for (int replica = 0; replica < 2; ++replica) {
        const std::vector<int>& ranks = replicas.ranks(replica, 0, 0);
        const auto n = static_cast<int64_t>(ranks.size()), sync = int64_t{6};
        int64_t all = 0, received = 0;
        for (int64_t i = 0; i < n; ++i) {
          const int64_t sent = traffic.folded[ranks[static_cast<size_t>(i)]];
          all += sent;
          received += traffic.received[ranks[static_cast<size_t>(i)]];
          if (i < sync) continue;
          // An extra owns nothing: it sends its part, and where tokens are split, its part of the norms'.
          EXPECT_EQ(sent, count.sharded * 4 / n + (sp ? count.replicated * 4 : 0));
        }
        EXPECT_EQ(all, count.sharded * (4 + back) * (n - sync) / n +
                           (n - 1) * count.replicated * (back + (sp ? 4 : 0)));
        EXPECT_EQ(received, all);
      }
    }
}

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
