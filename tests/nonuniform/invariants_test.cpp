#include <gtest/gtest.h>

#include <set>

#include "megatron/models/parallel_setup.h"
#include "megatron/parallel/replica_layout.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/run/restart_memory.h"
#include "nonuniform/watched.h"

// What holds to the bit or to rounding for unequal replicas, and faults of single parameters.
namespace megatron::testing {
namespace {

// The sizes of what is sent, in order.
struct Calls {
  std::map<std::pair<int, int>, std::vector<int64_t>> sent, received;  // by world ranks: from, to
  std::map<int, std::vector<int64_t>> reduced;                         // by rank, with its peers
  bool only_messages = true;                                           // nothing else over fold groups
};

Calls calls_of(const Config& config, const Nonuniform& layout, Trained& trained) {
  Calls calls;
  std::mutex mutex;
  const ReplicaLayout replicas(sizes_of(layout));
  std::map<int, std::vector<int>> group_of;  // of each rank, its tensor-parallel group
  for (int replica = 0; replica < static_cast<int>(layout.inactive.size()); ++replica)
    for (const int rank : replicas.ranks(replica, 0, 0)) group_of[rank] = replicas.ranks(replica, 0, 0);
  trained = train_watched(config, layout, 3, [&](const std::string& group, int rank, CommRequest& request) {
    std::lock_guard lock(mutex);
    const auto peer = [&] { return group_of.at(rank)[static_cast<size_t>(request.peer)]; };
    if (group == "dp-cp" && (request.kind == CommKind::AllReduce || request.kind == CommKind::ReduceScatter ||
                             request.kind == CommKind::AllGather))
      calls.reduced[rank].push_back(request.tensor().numel());
    if (group != "fold" || request.kind == CommKind::Split) return;
    if (request.kind == CommKind::Send)
      calls.sent[{rank, peer()}].push_back(request.input.numel());
    else if (request.kind == CommKind::Recv)
      calls.received[{peer(), rank}].push_back(request.output.numel());
    else
      calls.only_messages = false;
  });
  return calls;
}

bool same_bits(const WholeTensors& a, const WholeTensors& b) {
  return a.size() == b.size() && std::all_of(a.begin(), a.end(), [&](const auto& entry) {
           const auto other = b.find(entry.first);
           return other != b.end() && other->second.values == entry.second.values;
         });
}

// Invariant I6: both ends of a message and all peers of a reduction come to the same sizes in the same order
// by themselves, and results do not depend on the size of buckets. A sharded norm is the sum of other parts
// where shards are cut elsewhere, so there clipping is off.
TEST(NonuniformInvariants, BucketsAgreeAndDoNotMatter) {
  for (const bool distributed : {false, true}) {
    Config model = few_groups();
    if (distributed) model.optimizer.clip_grad = 0;
    std::vector<Trained> runs;
    std::set<size_t> counts;
    for (const int64_t size : {0, 300, 1500}) {
      SCOPED_TRACE(fmt::format("distributed {} buckets of {}", distributed, size));
      Config config = apply(model, kEightSevenSix, {.sp = true, .distributed = distributed});
      config.ddp.bucket_size = size;
      config.ddp.overlap_grad_reduce = size == 300;
      const Calls calls = calls_of(config, kEightSevenSix, runs.emplace_back());
      EXPECT_TRUE(calls.only_messages);
      EXPECT_FALSE(calls.sent.empty());
      EXPECT_EQ(calls.sent, calls.received);
      const ReplicaLayout replicas(sizes_of(kEightSevenSix));
      for (int position = 0; position < replicas.sync(); ++position) {
        const std::vector<int64_t>& first =
            calls.reduced.at(replicas.ranks(0, 0, 0)[static_cast<size_t>(position)]);
        for (const int replica : {1, 2})
          EXPECT_EQ(calls.reduced.at(replicas.ranks(replica, 0, 0)[static_cast<size_t>(position)]), first)
              << "position " << position;
      }
      counts.insert(calls.reduced.at(0).size());
    }
    EXPECT_EQ(counts.size(), 3U) << "sizes that make no difference show nothing";
    for (size_t i = 1; i < runs.size(); ++i) {
      EXPECT_TRUE(same_bits(runs[0].gradients, runs[i].gradients)) << i;
      EXPECT_TRUE(same_bits(runs[0].parameters, runs[i].parameters)) << i;
      EXPECT_EQ(runs[0].losses, runs[i].losses);
    }
  }
}

// Invariant I11.
TEST(NonuniformInvariants, BothOptimizersGiveTheSameWeights) {
  const Config model = few_groups();
  Trained runs[2];
  for (const bool distributed : {false, true})
    runs[distributed] = train(apply(model, kFourThree, {.sp = true, .distributed = distributed}),
                              sizes_of(kFourThree), batches_for(model, 10));
  std::string where;
  EXPECT_LE(difference(runs[0].parameters, runs[1].parameters, &where), 1e-10) << where;
}

std::vector<int64_t> rows_of(const std::vector<int64_t>& batch, int64_t row, int64_t first, int64_t last) {
  return {batch.begin() + first * row, batch.begin() + last * row};
}

// Invariant I14: a replica all of whose labels are ignored takes part, and the result is that of the others'
// rows alone.
TEST(NonuniformInvariants, AReplicaWithoutTokensChangesNothing) {
  Config model = few_groups();
  model.model.calculate_per_token_loss = true;
  const int64_t row = model.model.seq_length + 1, batch = model.train.global_batch_size;
  const Shares shares = unequal_shares(model, {4, 3}, batch, model.train.micro_batch_size);
  const auto batches = batches_for(model, 3);
  for (const int silent : {0, 1}) {
    const std::vector<Share>& own = shares.of_replica[static_cast<size_t>(silent)];
    const int64_t first = own.front().first, last = own.back().first + own.back().count;
    std::vector<std::vector<int64_t>> masked = batches, others;
    for (size_t i = 0; i < batches.size(); ++i) {
      std::fill(masked[i].begin() + first * row, masked[i].begin() + last * row, kIgnoredLabel);
      others.push_back(silent == 0 ? rows_of(batches[i], row, last, batch)
                                   : rows_of(batches[i], row, 0, first));
    }
    Config alone = model;
    alone.train.global_batch_size = batch - (last - first);
    const Trained one = train(alone, {}, others);
    for (const bool distributed : {false, true}) {
      SCOPED_TRACE(fmt::format("replica {} distributed {}", silent, distributed));
      const Trained many = train(apply(model, kFourThree, {.sp = !distributed, .distributed = distributed}),
                                 sizes_of(kFourThree), masked);
      std::string where;
      EXPECT_LE(difference(one.gradients, many.gradients, &where), 1e-12) << where;
      EXPECT_LE(difference(one.parameters, many.parameters, &where), 1e-12) << where;
      for (size_t i = 0; i < one.losses.size(); ++i) EXPECT_NEAR(many.losses[i] / one.losses[i], 1, 1e-12);
      EXPECT_FALSE(copies_differ(many));
      EXPECT_EQ(many.ranks_apart, 0);
    }
  }
}

// Invariant I14: 16 tokens on six and seven ranks of sequence parallelism are padded, without it they are
// not; a vocabulary of 50 is padded to 52 or to 64.
TEST(NonuniformInvariants, PaddingChangesNothing) {
  for (const Config& model : {few_groups(), experts()}) {
    const Trained plain =
        train(apply(model, kEightSevenSix, {}), sizes_of(kEightSevenSix), batches_for(model, 2));
    for (const int64_t multiple : {4, 32}) {
      Config config = apply(model, kEightSevenSix, {.sp = true});
      config.model.make_vocab_size_divisible_by = multiple;
      const Trained padded = train(config, sizes_of(kEightSevenSix), batches_for(model, 2));
      std::string where;
      EXPECT_LE(difference(plain.gradients, padded.gradients, &where), 1e-12) << where;
      EXPECT_LE(difference(plain.parameters, padded.parameters, &where), 1e-12) << where;
    }
  }
}

// Padding that takes part turns I14 red: rows behind the last token that have a gradient, or a token that is
// counted though it is none.
TEST(NonuniformInvariants, PlantedFaultsOfPaddingAreSeen) {
  Config model = few_groups();
  model.model.calculate_per_token_loss = true;
  const Trained one = train(model, {}, batches_for(model, 2));
  const int64_t tokens = model.model.seq_length * model.train.micro_batch_size;
  const auto reds = [&](const Hook& hook) {
    return is_red(one, train_watched(apply(model, kEightSevenSix, {.sp = true}), kEightSevenSix, 2, hook));
  };
  int spoiled = 0;
  std::mutex mutex;
  EXPECT_FALSE(reds([](const std::string&, int, CommRequest&) {}));
  EXPECT_TRUE(reds([&](const std::string& group, int, CommRequest& request) {
    if (group != "tp" || request.kind != CommKind::ReduceScatter || request.input.rank() != 2) return;
    const Tensor& rows = request.input;
    if (rows.dtype() != DType::F64 || rows.shape()[0] <= tokens) return;
    auto* values = static_cast<double*>(rows.raw());
    std::fill(values + tokens * rows.shape()[1], values + rows.numel(), 1e-3);
    std::lock_guard lock(mutex);
    ++spoiled;
  })) << "padded tokens with a gradient";
  EXPECT_GT(spoiled, 0);
  spoiled = 0;
  EXPECT_TRUE(reds([&](const std::string& group, int rank, CommRequest& request) {
    if (group != "dp" || request.kind != CommKind::AllReduce || rank != 0) return;
    if (request.input.dtype() != DType::F64 || request.input.numel() != 1) return;
    *static_cast<double*>(request.input.raw()) += 1;
    ++spoiled;
  })) << "a token too many";
  EXPECT_GT(spoiled, 0);
}

// Every parameter has a bucket of its own, so that a message is of one parameter. Of what rank 6 sends only
// norms have as many elements as a hidden state or a head.
Config single_buckets(const Config& model, bool sp) {
  Config config = apply(model, kEightSevenSix, {.sp = sp});
  config.ddp.bucket_size = 1;
  return config;
}

Config with_head_norms() {
  Config config = few_groups();
  config.model.add_qkv_bias = false;
  config.model.ffn_hidden_size = 64;
  return config;
}

// Partial gradients of one norm that an extra does not send: those of whole hidden states where tokens are
// split, those of heads always.
TEST(NonuniformInvariants, PlantedFaultsOfSingleNormsTurnParityRed) {
  const Config model = with_head_norms();
  const Trained one = train(model, {}, batches_for(model, 1));
  const int64_t layers = model.model.num_layers, hidden = model.model.hidden_size,
                head = hidden / model.model.num_attention_heads;
  const auto dropped = [&](bool sp, int64_t numel, int64_t which, int64_t& seen) {
    seen = 0;  // rank 6 alone counts
    return train_watched(single_buckets(model, sp), kEightSevenSix, 1,
                         [&](const std::string& group, int rank, CommRequest& request) {
                           if (group != "fold" || request.kind != CommKind::Send || rank != 6) return;
                           if (request.input.numel() == numel && seen++ == which) zero(request.input);
                         });
  };
  int64_t seen = 0;
  for (const bool sp : {false, true}) {
    EXPECT_FALSE(is_red(one, dropped(sp, hidden, -1, seen)));
    EXPECT_EQ(seen, sp ? 2 * layers + 1 : 0);
    for (int64_t i = 0; i < seen;) {
      EXPECT_TRUE(is_red(one, dropped(sp, hidden, i, seen))) << "norm " << i;
      ++i;
    }
    dropped(sp, head, -1, seen);
    EXPECT_EQ(seen, 2 * layers);
    for (int64_t i = 0; i < 2 * layers; ++i)
      EXPECT_TRUE(is_red(one, dropped(sp, head, i, seen))) << "norm of heads " << i << (sp ? " sp" : "");
  }
}

// A copy of a norm whose gradient is another in its last bit, as where each position reduces its own: only
// the comparison of copies sees that (I7).
TEST(NonuniformInvariants, CopiesThatDriftApartAreSeen) {
  const Config model = with_head_norms();
  const Trained one = train(model, {}, batches_for(model, 1));
  const Trained many =
      train_watched(single_buckets(model, false), kEightSevenSix, 1,
                    [&](const std::string& group, int rank, CommRequest& request) {
                      if (group != "fold" || request.kind != CommKind::Send || rank >= 6) return;
                      if (request.peer != 6 || request.input.numel() != model.model.hidden_size) return;
                      auto* values = static_cast<double*>(request.input.raw());
                      for (int64_t i = 0; i < request.input.numel(); ++i)
                        values[i] = std::nextafter(values[i], 1e300);
                    });
  EXPECT_TRUE(copies_differ(many));
  EXPECT_FALSE(differs_from(one, many));
}

double squares(const WholeTensor& tensor) {
  double sum = 0;
  for (const double value : tensor.values) sum += value * value;
  return sum;
}

// The norm with one parameter counted twice, as where every holder counts it, or not at all: I9 sees every
// parameter, with either optimizer, and clipping then gives other weights.
TEST(NonuniformInvariants, NormsOfSingleParametersCountOnce) {
  Config model = with_head_norms();
  model.model.add_qkv_bias = true;
  model.optimizer.clip_grad = 1e-3;  // always
  const Trained one = train(model, {}, batches_for(model, 1));
  std::set<std::string> kinds;
  for (const auto& [name, gradient] : one.gradients) {
    std::string kind = name;
    if (const size_t at = kind.find("layers."); at != std::string::npos) kind = kind.substr(at + 9);
    if (!kinds.insert(kind).second) continue;
    const bool distributed = kinds.size() % 2 == 0, twice = kinds.size() % 4 < 2;
    SCOPED_TRACE(fmt::format("{} {}{}", name, twice ? "twice" : "never", distributed ? " distributed" : ""));
    const char* cores = distributed ? "cores" : "model-core";
    const double more = (twice ? 1 : -1) * squares(gradient);
    EXPECT_NE(more, 0);
    const Trained wrong =
        train_watched(apply(model, kFourThree, {.sp = true, .distributed = distributed}), kFourThree, 1,
                      [=](const std::string& group, int rank, CommRequest& request) {
                        if (group != cores || request.kind != CommKind::AllGather) return;
                        // The first position of each replica or, where all replicas share out the sum, of the
                        // first one.
                        if (rank == 0 || (!distributed && rank == 4))
                          *static_cast<double*>(request.input.raw()) += more;
                      });
    EXPECT_GT(std::abs(wrong.grad_norms[0] / one.grad_norms[0] - 1), 1e-12);
    EXPECT_EQ(wrong.ranks_apart, 0);
    EXPECT_TRUE(is_red(one, wrong));
  }
  EXPECT_GE(kinds.size(), 9U);
}

// After a fault a replica goes on with as few ranks as its memory allows.
TEST(NonuniformMemory, ReplicasGoOnWithAsManyRanksAsFit) {
  const Nonuniform whole{"{4,4}", 4, {{}, {}}};
  const Config config = apply(tied_gpt(), whole, {});
  const auto needed = [&](std::vector<int> inactive) {
    const Nonuniform layout{"{.,4}", 4, {std::move(inactive), {}}};
    return plan_memory(apply(tied_gpt(), layout, {}), sizes_of(layout), DType::F32).largest().bytes();
  };
  const auto fewest = [&](double bytes) { return fewest_ranks_that_fit(config, 8, DType::F32, {}, bytes); };
  const double one = needed({1, 2, 3}), two = needed({2, 3}), three = needed({3});
  EXPECT_LT(three, two);
  EXPECT_LT(two, one);
  EXPECT_EQ(fewest(one), 1);
  EXPECT_EQ(fewest(one - 1), 2);
  EXPECT_EQ(fewest(two), 2);
  EXPECT_EQ(fewest(two - 1), 3);
  EXPECT_EQ(fewest(three), 3);
  EXPECT_EQ(fewest(three - 1), 4);
}

}  // namespace
}  // namespace megatron::testing
