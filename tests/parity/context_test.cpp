#include <gtest/gtest.h>

#include <algorithm>

#include "parity/cases.h"

// Context parallelism, in all its forms, against one rank.
namespace megatron::testing {
namespace {

// Heads enough for tokens to be exchanged for heads over four ranks, tokens enough for chunks of two.
Config context_gpt() {
  Config config = small_gpt();
  config.model =
      llama_style({.layers = 4, .hidden = 32, .heads = 8, .groups = 4, .ffn = 48, .vocab = 50, .length = 16});
  config.model.make_vocab_size_divisible_by = 4;
  config.train.global_batch_size = 8;
  return config;
}

Config context_with_biases() {
  Config config = with_biases_and_layernorm();
  config.model.seq_length = config.model.max_position_embeddings = 16;
  config.train.global_batch_size = 8;
  return config;
}

Config context_with_dropout() {
  Config config = context_gpt();
  config.model.attention_dropout = 0.2;
  config.model.hidden_dropout = 0.1;
  return config;
}

Config context_with_window() {
  Config config = context_gpt();
  config.model.window_size = {5, 0};
  config.model.attn_logit_softcapping = 3;
  return config;
}

const Layout kRings[] = {
    {.name = "cp2", .cp = 2},
    {.name = "cp4", .cp = 4},
    {.name = "tp2_sp_cp2", .tp = 2, .cp = 2, .sp = true},
    {.name = "pp2_cp2", .pp = 2, .cp = 2},
    {.name = "dp2_cp2", .dp = 2, .cp = 2},
    {.name = "pp2_vpp2_cp2", .pp = 2, .vpp = 2, .cp = 2, .micro_batch = 1},
};

const Layout kOthers[] = {
    {.name = "all_gather_cp2", .cp = 2, .cp_kinds = {"all_gather"}},
    {.name = "all_gather_cp4", .cp = 4, .micro_batch = 1, .cp_kinds = {"all_gather"}},
    {.name = "all_gather_tp2_sp_cp2", .tp = 2, .cp = 2, .sp = true, .cp_kinds = {"all_gather"}},
    {.name = "a2a_cp2", .cp = 2, .micro_batch = 1, .cp_kinds = {"a2a"}},
    {.name = "a2a_cp4", .cp = 4, .cp_kinds = {"a2a"}},
    {.name = "a2a_tp2_sp_cp2", .tp = 2, .cp = 2, .sp = true, .cp_kinds = {"a2a"}},
    {.name = "hierarchical_2x2", .cp = 4, .cp_kinds = {"a2a+p2p"}, .cp_levels = {2, 2}},
    {.name = "each_layer_another",
     .cp = 4,
     .cp_kinds = {"a2a+p2p", "a2a", "all_gather", "p2p"},
     .cp_levels = {2, 2}},
};

TEST(ContextParity, RingGroupedQueryTiedRope) { check_layouts(context_gpt(), kRings); }
TEST(ContextParity, RingBiasesLearnedPositions) { check_layouts(context_with_biases(), kRings); }
TEST(ContextParity, RingDropout) { check_layouts(context_with_dropout(), kRings); }
TEST(ContextParity, RingWindow) { check_layouts(context_with_window(), kRings); }
TEST(ContextParity, OthersGroupedQueryTiedRope) { check_layouts(context_gpt(), kOthers); }
TEST(ContextParity, OthersBiasesLearnedPositions) { check_layouts(context_with_biases(), kOthers); }
TEST(ContextParity, OthersDropout) { check_layouts(context_with_dropout(), kOthers); }
TEST(ContextParity, OthersWindow) { check_layouts(context_with_window(), kOthers); }

// Several ranks that share one GPU.
TEST(CudaParity, ContextRanksThatShareAGpu) {
  for (const Config& config : {context_with_dropout(), context_with_window()}) {
    check_on_gpu(config, kRings);
    check_on_gpu(config, kOthers);
  }
}

// Rows of documents of different lengths, each of which is split over the ranks by itself.
TEST(ContextParity, Packed) {
  Config config = context_gpt();
  config.model.seq_length = config.model.max_position_embeddings = 32;
  config.model.attention_dropout = 0.2;
  config.model.hidden_dropout = 0.1;
  std::vector<std::vector<int64_t>> documents;
  for (int64_t row = 0; row < config.train.global_batch_size; ++row)
    documents.push_back(row % 3 == 0   ? std::vector<int64_t>{8, 24}
                        : row % 3 == 1 ? std::vector<int64_t>{8, 8, 16}
                                       : std::vector<int64_t>{32});
  auto batches = batches_for(config, 2);
  auto run = [&](const Layout& layout) {
    return train(apply(config, layout), sizes_of(layout), batches, DType::F64, {}, kCpu, documents);
  };
  Trained one = run({.name = "one"});
  std::string where;
  EXPECT_GT(difference(one.gradients, train(config, {}, batches).gradients, &where), 1e-6)
      << "packing must make a difference";
  std::vector<Layout> layouts(std::begin(kRings), std::end(kRings));
  layouts.insert(layouts.end(), std::begin(kOthers), std::end(kOthers));
  layouts.push_back({.name = "dp2_micro1", .dp = 2, .micro_batch = 1});
  for (const Layout& layout : layouts) {
    SCOPED_TRACE(layout.name);
    expect_equal(one, run(layout), kTolerance);
  }
}

// A group that swaps the two chunks of the n-th block that it receives.
class SwapsAChunk final : public GroupBackend {
 public:
  SwapsAChunk(ProcessGroup inner, std::shared_ptr<int> countdown)
      : inner_(std::move(inner)), countdown_(std::move(countdown)) {}
  int rank() const override { return inner_.rank(); }
  const std::vector<int>& world_ranks() const override { return inner_.world_ranks(); }
  const std::string& name() const override { return inner_.name(); }
  void abort(const std::string& reason) override { inner_.abort(reason); }
  std::string flight_record() const override { return inner_.flight_record(); }
  std::unique_ptr<PendingOp> start(std::span<CommRequest> requests) override {
    struct Started final : PendingOp {
      Work work;
      Tensor swapped;
      void wait() override {
        work.wait();
        if (!swapped) return;
        auto* data = static_cast<char*>(swapped.raw());
        std::swap_ranges(data, data + swapped.bytes() / 2, data + swapped.bytes() / 2);
      }
      bool done() override { return work.done(); }
      void withdraw() noexcept override {}
    };
    auto op = std::make_unique<Started>();
    std::vector<Message> messages;
    for (CommRequest& r : requests) {
      if (r.kind == CommKind::AllReduce) {
        op->work = inner_.all_reduce(r.input, r.op);
      } else if (r.kind == CommKind::Send) {
        messages.push_back({Message::Direction::Send, r.input, r.peer});
      } else {
        require(r.kind == CommKind::Recv, "unexpected {}", name_of(r.kind));
        messages.push_back({Message::Direction::Recv, r.output, r.peer});
        if ((*countdown_)-- == 0) op->swapped = r.output;
      }
    }
    if (!messages.empty()) op->work = inner_.batch_send_recv(messages);
    return op;
  }
  std::shared_ptr<GroupBackend> split(CommRequest r) override {
    ProcessGroup part = inner_.split(r.color, r.key, r.name);
    return part ? std::make_shared<SwapsAChunk>(part, countdown_) : nullptr;
  }

 private:
  ProcessGroup inner_;
  std::shared_ptr<int> countdown_;
};

TEST(PlantedFault, ASwappedChunkTurnsParityRed) {
  Config config = context_gpt();
  auto batches = batches_for(config, 1);
  Trained one = train(config, {}, batches);
  Layout layout{.name = "cp2", .cp = 2};
  for (int swapped : {0, 3, 9}) {
    Trained faulty =
        train(apply(config, layout), sizes_of(layout), batches, DType::F64, [&](const ProcessGroup& world) {
          auto countdown = std::make_shared<int>(world.rank() == 0 ? swapped : -1);
          return ProcessGroup(std::make_shared<SwapsAChunk>(world, countdown));
        });
    std::string where;
    EXPECT_GT(difference(one.gradients, faulty.gradients, &where), 1e-6) << "block " << swapped;
  }
}

}  // namespace
}  // namespace megatron::testing
