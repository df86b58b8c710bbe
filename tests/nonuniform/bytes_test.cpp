#include <gtest/gtest.h>

#include <numeric>

#include "megatron/parallel/replica_layout.h"
#include "nonuniform/watched.h"

// The ranks of unequal replicas send each other as many bytes as they must (invariant I13). What that is
// comes from the units of parameters alone: nothing here asks the code that plans messages.
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

// How many of `units` the part of one of `ranks` has, the longer parts first.
int64_t chunk(int64_t units, int64_t ranks, int64_t rank) {
  return units / ranks + (rank < units % ranks ? 1 : 0);
}

// The units of each position: those before `sync` keep the head of their chunk of `sync`, and the others
// share out the tails in order.
std::vector<std::vector<int64_t>> owned_units(int64_t units, int64_t n, int64_t sync) {
  std::vector<std::vector<int64_t>> owned(static_cast<size_t>(n));
  std::vector<int64_t> tails;
  for (int64_t i = 0, unit = 0; i < sync; ++i)
    for (int64_t k = 0; k < chunk(units, sync, i); ++k, ++unit)
      (k < chunk(units, n, i) ? owned[static_cast<size_t>(i)] : tails).push_back(unit);
  auto tail = tails.begin();
  for (int64_t i = sync; i < n; ++i)
    for (int64_t k = 0; k < chunk(units, n, i); ++k) owned[static_cast<size_t>(i)].push_back(*tail++);
  return owned;
}

// A parameter of `units` with as many elements each, or one that every rank has whole.
struct Counted {
  int64_t units, elements;
  bool always_partial = false;  // ranks have parts of its gradient, however tokens are split
  int64_t padding = 0;          // elements of the last unit that are in memory only

  static Counted whole(int64_t elements) { return {0, elements}; }
  bool is_whole() const { return units == 0; }
  int64_t numel() const { return std::max<int64_t>(1, units) * elements - padding; }
  int64_t numel_of(const std::vector<int64_t>& owned) const {
    const bool has_last = std::ranges::count(owned, units - 1) > 0;
    return std::ssize(owned) * elements - (has_last ? padding : 0);
  }
};

// Rows are cut into units of the largest power of two that leaves no rank more than 1.02 of its share, or the
// nearest to that. Those of a vocabulary may end within a unit.
Counted rows(int64_t count, int64_t elements, const std::vector<int>& sizes, bool may_pad = false) {
  int64_t best = 0;
  double least = 1e9;
  for (int64_t extent = 128; extent > 0 && least > 1.02; extent /= 2) {
    if (!may_pad && count % extent != 0) continue;
    const int64_t units = (count + extent - 1) / extent;
    double worst = 1;
    for (const int64_t size : sizes)
      worst = std::max(worst, static_cast<double>(chunk(units, size, 0) * size) / static_cast<double>(units));
    if (worst < least) {
      least = worst;
      best = extent;
    }
  }
  const int64_t units = (count + best - 1) / best;
  return {.units = units, .elements = best * elements, .padding = (units * best - count) * elements};
}

// From the last to the first, as buckets have them but for experts. Heads are units of attention.
std::vector<Counted> parameters_of(const ModelConfig& model, const std::vector<int>& sizes) {
  const int64_t h = model.hidden_size, heads = model.num_attention_heads;
  const Counted norm = Counted::whole(h), vocabulary = rows(model.vocab_size, h, sizes, true);
  std::vector<Counted> list = {norm};
  const auto add_mlp = [&](int64_t columns) {
    const Counted out = rows(columns, h, sizes);
    list.insert(list.end(), {out, {out.units, 2 * out.elements}});
  };
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    if (model.num_moe_experts > 0) {
      add_mlp(model.moe_shared_expert_intermediate_size);
      for (int64_t expert = 0; expert < model.num_moe_experts; ++expert) add_mlp(model.moe_ffn_hidden_size);
      // The router, of whose tokens each rank has a part.
      list.push_back({.units = 0, .elements = model.num_moe_experts * h, .always_partial = true});
    } else {
      add_mlp(model.ffn_hidden_size);
    }
    list.insert(list.end(), {norm, {heads, h * h / heads}, {heads, 3 * h * h / heads}, norm});
  }
  list.push_back(vocabulary);
  return list;
}

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Elements that each of `positions` reduces with its peers, by the layout of buckets alone: a bucket is full
// by what a position has on average, every tensor begins at a multiple of 64 and the bucket ends at one of
// `end`, with padding. Whole tensors are owned in turn.
std::vector<int64_t> reduced_elements(const std::vector<Counted>& parameters, int64_t positions,
                                      int64_t bucket_size, int64_t end) {
  std::vector<int64_t> elements(static_cast<size_t>(positions), 0), open = elements;
  int64_t average = 0;
  const auto close = [&] {
    for (size_t i = 0; i < open.size(); ++i) {
      elements[i] += round_up(open[i], end);
      open[i] = 0;
    }
    average = 0;
  };
  for (size_t number = 0; number < parameters.size(); ++number) {
    const Counted& parameter = parameters[number];
    for (size_t i = 0; i < open.size(); ++i) {
      const bool owner = number % open.size() == i;
      const int64_t own = parameter.is_whole() ? (owner ? parameter.elements : 0)
                                               : chunk(parameter.units, positions, static_cast<int64_t>(i)) *
                                                     parameter.elements;
      if (own > 0) open[i] = round_up(open[i], 64) + own;
    }
    average = round_up(average, 64) + round_up(parameter.numel(), positions) / positions;
    if (bucket_size > 0 && average >= bucket_size) close();
  }
  close();
  return elements;
}

// Bytes that the ranks of a replica send and get, by position.
struct Bytes {
  std::vector<int64_t> sent, received;
};

// Gradients of 4 bytes go to their owners and come `back`, as these or as values of 2 bytes. A rank beyond
// `sync` owns nothing; one before it lacks what its chunk of `sync` has more than its part of `n`.
Bytes expected_bytes(const std::vector<Counted>& parameters, int64_t n, int64_t sync, bool sp, int64_t back) {
  Bytes bytes{std::vector<int64_t>(static_cast<size_t>(n), 0),
              std::vector<int64_t>(static_cast<size_t>(n), 0)};
  for (size_t number = 0; number < parameters.size(); ++number) {
    const Counted& parameter = parameters[number];
    const int64_t owner = static_cast<int64_t>(number) % sync, u = parameter.units, e = parameter.elements;
    const int64_t folded = sp || parameter.always_partial ? 4 : 0;
    for (int64_t i = 0; i < n; ++i) {
      const auto index = static_cast<size_t>(i);
      int64_t &sent = bytes.sent[index], &received = bytes.received[index];
      const int64_t held = parameter.is_whole() ? 0 : parameter.numel_of(owned_units(u, n, sync)[index]);
      if (parameter.is_whole()) {
        sent += i == owner ? (n - 1) * e * back : e * folded;
        received += i == owner ? (n - 1) * e * folded : e * back;
      } else if (i < sync) {
        const int64_t lacks = parameter.numel_of(owned_units(u, sync, sync)[index]) - held;
        sent += lacks * back;
        received += lacks * 4;
      } else {
        sent += held * 4;
        received += held * back;
      }
    }
  }
  return bytes;
}

int64_t sum(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Units of all kinds divide by no size: 8 heads, 40 columns and 50 rows of the vocabulary.
Config uneven_units() { return tied_gpt(); }

Config uneven_experts() {
  Config config = experts();
  config.model.moe_ffn_hidden_size = 22;
  config.model.moe_shared_expert_intermediate_size = 14;
  return config;
}

std::vector<int> sizes_in(const Nonuniform& layout) {
  std::vector<int> sizes;
  for (const std::vector<int>& inactive : layout.inactive)
    sizes.push_back(layout.tp - static_cast<int>(inactive.size()));
  return sizes;
}

// Where it is not told who owns which whole tensor: ranks that own nothing, and all of a replica.
void expect_sums(Traffic& traffic, const std::vector<int>& ranks, int64_t sync, const Bytes& bytes) {
  int64_t sent = 0, received = 0;
  for (size_t i = 0; i < ranks.size(); ++i) {
    sent += traffic.folded[ranks[i]];
    received += traffic.received[ranks[i]];
    if (static_cast<int64_t>(i) < sync) continue;
    EXPECT_EQ(traffic.folded[ranks[i]], bytes.sent[i]) << "sent at " << i;
    EXPECT_EQ(traffic.received[ranks[i]], bytes.received[i]) << "received at " << i;
  }
  EXPECT_EQ(sent, sum(bytes.sent));
  EXPECT_EQ(received, sum(bytes.received));
}

void check_bytes(const Config& model, const Nonuniform& layout, bool sp, bool distributed,
                 int64_t bucket_size) {
  SCOPED_TRACE(fmt::format("{} buckets of {}", name_of(layout, {sp, distributed}), bucket_size));
  const std::vector<int> sizes = sizes_in(layout);
  const std::vector<Counted> parameters = parameters_of(model.model, sizes);
  const ReplicaLayout replicas(sizes_of(layout));
  const int64_t sync = replicas.sync();
  Config config = apply(model, layout, {sp, distributed});
  config.ddp.bucket_size = bucket_size;
  Traffic traffic = traffic_of(config, layout);
  // Peers reduce as much as a rank of the smallest replica has: N / Ns times the even share.
  const int64_t end = distributed ? std::lcm(std::ssize(sizes), 128) : 1;  // shards are even
  const std::vector<int64_t> reduced = reduced_elements(parameters, sync, bucket_size, end);
  for (int replica = 0; replica < static_cast<int>(sizes.size()); ++replica) {
    const std::vector<int>& ranks = replicas.ranks(replica, 0, 0);
    const Bytes bytes = expected_bytes(parameters, std::ssize(ranks), sync, sp, distributed ? 2 : 4);
    EXPECT_EQ(sum(bytes.sent), sum(bytes.received));
    for (size_t i = 0; i < ranks.size(); ++i) {
      const bool core = i < reduced.size();
      EXPECT_EQ(traffic.folded[ranks[i]], bytes.sent[i]) << "sent at " << replica << "." << i;
      EXPECT_EQ(traffic.received[ranks[i]], bytes.received[i]) << "received at " << replica << "." << i;
      EXPECT_EQ(traffic.reduced[ranks[i]], core ? 4 * reduced[i] : 0) << "reduced at " << replica << "." << i;
      EXPECT_EQ(traffic.gathered[ranks[i]], core && distributed ? 2 * reduced[i] : 0)
          << "gathered at " << replica << "." << i;
    }
  }
}

TEST(NonuniformBytes, AreThoseOfTheClosedForm) {
  const Config model = even_units();
  int64_t sharded = 0, whole = 0;
  for (const Counted& each : parameters_of(model.model, {8, 6}))
    (each.is_whole() ? whole : sharded) += each.numel();
  // P · b · (N − Ns) / N of the whole replica, and (N − 1) · R · b.
  EXPECT_EQ(sum(expected_bytes(parameters_of(model.model, {8, 6}), 8, 6, true, 4).sent),
            sharded * 8 * 2 / 8 + 7 * whole * 8);
  for (const auto& [sp, bucket_size] :
       {std::pair{false, int64_t{1500}}, {true, int64_t{1500}}, {true, int64_t{0}}, {false, int64_t{700}}})
    for (const bool distributed : {false, true}) check_bytes(model, kEightSix, sp, distributed, bucket_size);
}

TEST(NonuniformBytes, OfUnevenUnits) {
  check_bytes(uneven_units(), kFourThree, false, false, 0);
  check_bytes(uneven_units(), kEightSix, true, false, 1500);
  check_bytes(uneven_units(), kEightSevenSix, true, true, 700);
  check_bytes(uneven_units(), kFourOne, false, true, 1500);
}

TEST(NonuniformBytes, OfExperts) {
  const Config model = uneven_experts();
  for (const Nonuniform& layout : {kFourThree, kEightSevenSix})
    for (const bool distributed : {false, true}) {
      const bool sp = distributed == (layout.tp == 4);
      SCOPED_TRACE(name_of(layout, {sp, distributed}));
      const ReplicaLayout replicas(sizes_of(layout));
      const std::vector<Counted> parameters = parameters_of(model.model, sizes_in(layout));
      Traffic traffic = traffic_of(apply(model, layout, {sp, distributed}), layout);
      for (int replica = 0; replica < std::ssize(layout.inactive); ++replica) {
        const std::vector<int>& ranks = replicas.ranks(replica, 0, 0);
        expect_sums(traffic, ranks, replicas.sync(),
                    expected_bytes(parameters, std::ssize(ranks), replicas.sync(), sp, distributed ? 2 : 4));
      }
    }
}

// Two groups of four heads over more ranks: each rank has the keys and values of the groups that its heads
// are of, with a part of their gradient, and the owner of a group's first head owns them. Norms of heads have
// parts of their gradients on all ranks, whether tokens are split or not.
TEST(NonuniformBytes, OfGroupsThatRanksShare) {
  const Config model = few_groups();
  const int64_t h = model.model.hidden_size, heads = model.model.num_attention_heads, each = h / heads,
                per_group = heads / model.model.num_query_groups, keys = 2 * each * (h + 1);
  for (const Nonuniform& layout : {kFourThree, kEightSevenSix})
    for (const bool distributed : {false, true}) {
      const bool sp = distributed == (layout.tp == 4);
      SCOPED_TRACE(name_of(layout, {sp, distributed}));
      const std::vector<int> sizes = sizes_in(layout);
      const int64_t back = distributed ? 2 : 4;
      std::vector<Counted> parameters;
      for (const Counted& parameter : parameters_of(model.model, sizes))
        if (parameter.units != heads || parameter.elements != 3 * h * h / heads)
          parameters.push_back(parameter);
        else  // queries and their biases, and two norms
          parameters.insert(parameters.end(), {{heads, each * (h + 1)}, {0, each, true}, {0, each, true}});
      parameters.push_back(parameters.back());  // the output has its own rows
      const ReplicaLayout replicas(sizes_of(layout));
      const int64_t sync = replicas.sync();
      Traffic traffic = traffic_of(apply(model, layout, {sp, distributed}), layout);
      for (int replica = 0; replica < static_cast<int>(sizes.size()); ++replica) {
        const std::vector<int>& ranks = replicas.ranks(replica, 0, 0);
        const int64_t n = std::ssize(ranks);
        Bytes bytes = expected_bytes(parameters, n, sync, sp, back);
        const auto owned = owned_units(heads, n, sync), owners = owned_units(heads, sync, sync);
        for (int64_t layer = 0; layer < model.model.num_layers; ++layer)
          for (int64_t group = 0; group < model.model.num_query_groups; ++group) {
            const auto has = [&](const std::vector<int64_t>& units, int64_t count) {
              return std::ranges::any_of(units, [&](int64_t head) {
                return head >= group * per_group && head < group * per_group + count;
              });
            };
            const auto owner = static_cast<size_t>(
                std::ranges::find_if(owners, [&](const auto& units) { return has(units, 1); }) -
                owners.begin());
            for (size_t i = 0; i < owned.size(); ++i) {
              if (i == owner || !has(owned[i], per_group)) continue;
              bytes.sent[i] += 4 * keys;
              bytes.received[owner] += 4 * keys;
              bytes.sent[owner] += back * keys;
              bytes.received[i] += back * keys;
            }
          }
        expect_sums(traffic, ranks, sync, bytes);
      }
    }
}

}  // namespace
}  // namespace megatron::testing
