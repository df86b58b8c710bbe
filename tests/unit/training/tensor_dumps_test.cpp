#include "megatron/training/log/tensor_dumps.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "megatron/base/json.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/training/run/run.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

constexpr std::string_view kRun =
    "--num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --max-position-embeddings 8 "
    "--vocab-size 32 --make-vocab-size-divisible-by 2 --micro-batch-size 1 --global-batch-size 4 --lr 1e-2 "
    "--lr-decay-style constant --mock-data --device cpu --train-iters 3 --attention-dropout 0 "
    "--hidden-dropout 0 --clip-grad 0.01 ";

struct Norms : Callback {
  void on(RunEvent event, RunView& view) override {
    if (event == RunEvent::step_end && view.is_first_rank()) norms.push_back(view.report->grad_norm);
  }
  std::vector<double> norms;
};

using Values = std::map<std::string, std::vector<float>>;

Values read(const std::string& folder) {
  CheckpointReader reader(folder);
  RankContext ctx;
  Values values;
  for (const StoredTensor& tensor : reader.index().tensors) {
    const Tensor whole = ctx.empty(tensor.shape, DType::F32);
    const ShardedTensor wanted{tensor.name, ShardSpec::whole(tensor.shape), whole};
    reader.load(ctx, {&wanted, 1});
    values[tensor.name] = ctx.to_vector<float>(whole);
  }
  return values;
}

struct Dumped {
  Values wgrads, params, checkpoint;
  std::vector<double> norms;
};

Dumped train(const std::string& layout) {
  testing::TempDir folder;
  RunSpec spec = run_spec(std::string(kRun) + layout +
                          fmt::format(" --save {} --save-wgrads-interval 2 --save-params-interval 3 "
                                      "--no-save-optim",
                                      folder.path()));
  const auto norms = std::make_shared<Norms>();
  spec.callbacks = {norms};
  spec.log = Log(LogLevel::error);
  spec.out = nullptr;
  run(spec);
  return {read(folder / "wgrads/iter_0000002"), read(folder / "params/iter_0000003"), read(folder.path()),
          norms->norms};
}

void expect_near(const Values& one, const Values& other, double tolerance) {
  ASSERT_EQ(one.size(), other.size());
  for (const auto& [name, values] : one) {
    ASSERT_TRUE(other.contains(name)) << name;
    for (size_t i = 0; i < values.size(); ++i)
      ASSERT_NEAR(values[i], other.at(name)[i], tolerance) << name << " " << i;
  }
}

// Dumps hold what all ranks have together, whatever they share; gradients are those of the loss, unclipped.
TEST(TensorDumps, AreThoseOfTheWholeModel) {
  const Dumped one = train("--ranks 1");
  double sum = 0;
  for (const auto& [name, values] : one.wgrads)
    for (const float value : values) sum += static_cast<double>(value) * static_cast<double>(value);
  ASSERT_EQ(one.norms.size(), 3u);
  EXPECT_NEAR(std::sqrt(sum), one.norms[1], 1e-6 * one.norms[1]);
  EXPECT_EQ(one.params, one.checkpoint);
  EXPECT_EQ(one.wgrads.size(), one.params.size());
  for (const char* layout : {"--ranks 4 -tp 2 --use-distributed-optimizer",
                             "--ranks 4 -pp 2 --use-megatron-fsdp --calculate-per-token-loss", "--ranks 2"}) {
    SCOPED_TRACE(layout);
    const Dumped other = train(layout);
    expect_near(one.wgrads, other.wgrads, 2e-6);
    expect_near(one.params, other.params, 2e-5);
  }
}

// A mixture of experts with an MTP layer, and what its probes leave.
struct Probed {
  explicit Probed(const std::string& layout) {
    RunSpec spec = run_spec(
        std::string(kRun) + layout +
        fmt::format(
            " --position-embedding-type rope --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 8 "
            "--moe-token-dispatcher-type alltoall --mtp-num-layers 1 --disable-bias-linear "
            "--no-save-optim --save {0} --save-activations-interval 2 --save-dgrads-interval 3 "
            "--save-tokens-per-expert-interval 2 --moe-routing-trace-path {0}/trace "
            "--moe-routing-trace-max-training-iters 2 --moe-routing-trace-capture-logits "
            "--moe-routing-trace-capture-hidden-states --moe-routing-trace-dump-weights",
            folder.path()));
    spec.log = Log(LogLevel::error);
    spec.out = nullptr;
    run(spec);
  }
  SafetensorsFile tensors(const std::string& name) const { return SafetensorsFile(folder / name); }
  std::vector<Json> lines(const std::string& name) const {
    std::vector<Json> all;
    std::ifstream file(folder / name);
    for (std::string line; std::getline(file, line);) all.push_back(Json::parse(line));
    return all;
  }
  std::vector<float> values(const SafetensorsFile& file, const std::string& name) const {
    const Tensor tensor = file.tensor(name);
    return {tensor.data<float>(), tensor.data<float>() + tensor.numel()};
  }

  testing::TempDir folder;
};

TEST(StepProbe, DumpsWhatModulesReadAndMade) {
  const Probed one("--ranks 1");
  const SafetensorsFile acts = one.tensors("activations/iter_0000002/mp_rank_00_000_000.safetensors");
  const std::string layer = "decoder.layers.0.";
  for (const char* name : {"self_attention.linear_qkv/input0", "self_attention.linear_qkv/output0",
                           "self_attention.linear_proj/output0", "input_layernorm/output0",
                           "mlp.router/output0", "mlp.experts.linear_fc1/output0"})
    EXPECT_TRUE(acts.contains(layer + name)) << name;
  EXPECT_TRUE(acts.contains("embedding.word_embeddings/output0"));
  EXPECT_TRUE(acts.contains("output_layer/input0"));
  EXPECT_EQ(one.values(acts, layer + "input_layernorm/output0"),
            one.values(acts, layer + "self_attention.linear_qkv/input0"));
  EXPECT_FALSE(std::filesystem::exists(one.folder / "activations/iter_0000001"));
  EXPECT_FALSE(std::filesystem::exists(one.folder / "dgrads/iter_0000002"));

  // The gradient of a linear's input is that of its output times the weight: here by the norm that made it.
  const SafetensorsFile grads = one.tensors("dgrads/iter_0000003/mp_rank_00_000_000.safetensors");
  EXPECT_EQ(one.values(grads, layer + "input_layernorm/output0"),
            one.values(grads, layer + "self_attention.linear_qkv/input0"));
  EXPECT_EQ(grads.at(layer + "self_attention.linear_qkv/output0").shape,
            acts.at(layer + "self_attention.linear_qkv/output0").shape);
  double largest = 0;
  for (const float value : one.values(grads, layer + "self_attention.linear_qkv/output0"))
    largest = std::max(largest, std::abs(static_cast<double>(value)));
  EXPECT_GT(largest, 0);

  // Recomputed layers show the same; each tensor-parallel rank has its part.
  const Probed again("--ranks 2 -tp 2 --sequence-parallel --recompute-granularity full");
  for (const char* what : {"activations/iter_0000002", "dgrads/iter_0000003"}) {
    const SafetensorsFile whole = one.tensors(fmt::format("{}/mp_rank_00_000_000.safetensors", what));
    for (const int rank : {0, 1}) {
      const SafetensorsFile part =
          again.tensors(fmt::format("{}/mp_rank_{:02}_000_000.safetensors", what, rank));
      const auto all = one.values(whole, layer + "input_layernorm/output0");
      const auto own = again.values(part, layer + "input_layernorm/output0");
      ASSERT_EQ(2 * own.size(), all.size());
      for (size_t i = 0; i < own.size(); ++i)
        ASSERT_NEAR(own[i], all[i + (rank == 0 ? 0 : own.size())], 2e-5) << what;
    }
  }
}

// Where the ranks of a division stand, and the names of their dumps.
std::vector<std::string> names_of(const ParallelSizes& sizes) {
  const std::vector<GroupRanks> groups = parallel_groups(sizes);
  std::vector<DumpPlace> places;
  for (int rank = 0; rank < sizes.world; ++rank) {
    const auto at = [&](Axis axis) {
      for (const GroupRanks& group : groups)
        if (group.axis == alias(axis, sizes))
          for (size_t i = 0; i < group.ranks.size(); ++i)
            if (group.ranks[i] == rank) return static_cast<int>(i);
      return 0;
    };
    places.push_back({.tp = at(Axis::tp),
                      .pp = at(Axis::pp),
                      .ep = at(Axis::ep),
                      .cp = at(Axis::cp),
                      .gtp = at(Axis::gtp),
                      .replica = at(Axis::dp),
                      .first_of_experts = at(Axis::edp) == 0});
  }
  return dump_names(places);
}

using Names = std::vector<std::string>;

TEST(StepProbe, EveryRankOfAReplicaAndAllExpertsAreDumped) {
  EXPECT_EQ(names_of({.world = 2, .tp = 2, .ep = 1, .etp = 1}),
            (Names{"mp_rank_00_000_000", "mp_rank_01_000_000"}));
  EXPECT_EQ(names_of({.world = 4, .cp = 2}),
            (Names{"mp_rank_00_000_000_cp000", "mp_rank_00_000_000_cp001", "", ""}));
  EXPECT_EQ(names_of({.world = 2, .tp = 1, .ep = 1, .etp = 2}),
            (Names{"mp_rank_00_000_000_dp000", "mp_rank_00_000_000_dp001"}));
  EXPECT_EQ(names_of({.world = 4, .tp = 1, .ep = 2}),
            (Names{"mp_rank_00_000_000", "mp_rank_00_000_001", "", ""}));
  EXPECT_EQ(names_of({.world = 4, .tp = 2}), (Names{"mp_rank_00_000_000", "mp_rank_01_000_000", "", ""}));
  EXPECT_EQ(names_of({.world = 2, .pp = 2}), (Names{"mp_rank_00_000_000", "mp_rank_00_001_000"}));
}

TEST(StepProbe, RanksOfARunWriteTheirFiles) {
  const Probed run("--ranks 2 --expert-tensor-parallel-size 2");
  const SafetensorsFile first = run.tensors("activations/iter_0000002/mp_rank_00_000_000_dp000.safetensors"),
                        second = run.tensors("activations/iter_0000002/mp_rank_00_000_000_dp001.safetensors");
  const std::string name = "decoder.layers.0.mlp.experts.linear_fc1/output0";
  EXPECT_EQ(first.at(name).shape, second.at(name).shape);
  EXPECT_NE(run.values(first, name), run.values(second, name));  // halves of the experts
}

TEST(StepProbe, NoTwoRanksDumpIntoOneFile) {
  for (const int tp : {1, 2})
    for (const int cp : {1, 2})
      for (const int ep : {1, 2, 4})
        for (const int etp : {1, 2})
          for (const int pp : {1, 2}) {
            const Names names = names_of({.world = 16, .tp = tp, .pp = pp, .cp = cp, .ep = ep, .etp = etp});
            std::multiset<std::string> all(names.begin(), names.end());
            all.erase("");
            EXPECT_GE(all.size(), static_cast<size_t>(std::max(tp * cp, ep * etp) * pp));
            EXPECT_EQ(std::set<std::string>(all.begin(), all.end()).size(), all.size())
                << fmt::format("tp {} cp {} ep {} etp {} pp {}", tp, cp, ep, etp, pp);
          }
}

// A restart inside the process goes on behind the trace that is there; a run of its own begins one.
TEST(StepProbe, TracesGoOnAfterRestarts) {
  testing::TempDir folder;
  Config config;
  config.model.num_moe_experts = 2;
  config.logger.moe_routing_trace_path = folder.path();
  config.logger.moe_routing_trace_max_training_iters = 3;
  config.logger.moe_routing_trace_capture_logits = true;
  const ParallelContext alone;
  const auto steps = [&](int64_t first, int64_t last, bool restarted) {
    RankContext ctx;
    Tape tape(ctx);
    const TapeScope scope(ctx, &tape);
    StepProbe probe(ctx, config, alone, restarted);
    const std::string router = "decoder.layers.0.mlp.router.weight";
    for (int64_t i = first; i <= last; ++i) {
      probe.begin(ctx, i);
      if (!ctx.probe) continue;
      const Tensor logits = ctx.full({1, 2}, DType::F32, 1);
      for (const char* place : {"input0", "output0"}) probe.see(ctx, router, place, logits);
      probe.see(ctx, router, "experts", ctx.from_vector(std::vector<int32_t>{1}, {1, 1}));
      probe.finish(ctx, i);
    }
    std::ifstream file(folder / "router_trace_rank0.jsonl");
    std::vector<std::pair<int64_t, int64_t>> lines;  // step and offset
    for (std::string line; std::getline(file, line);) {
      const Json record = Json::parse(line);
      lines.emplace_back(record.at("step").as_int(), record.at("logit_offset").as_int());
    }
    return lines;
  };
  using Lines = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_EQ(steps(1, 2, false), (Lines{{0, 0}, {1, 4}}));
  std::ofstream(folder / "router_trace_rank0.jsonl", std::ios::app) << "{\"step\": 2, ";  // stopped here
  EXPECT_EQ(steps(2, 5, true), (Lines{{0, 0}, {1, 4}, {1, 8}, {2, 12}}));
  EXPECT_EQ(steps(1, 1, false), (Lines{{0, 0}}));
}

TEST(StepProbe, CountsRowsOfExpertsAndTracesRouters) {
  const Probed one("--ranks 1"), again("--ranks 2 -ep 2 --recompute-granularity full");
  const auto counts = one.lines("tokens_per_expert/rank0.jsonl");
  ASSERT_EQ(counts.size(), 3u);  // two layers and one of MTP, in one of three steps
  for (const Json& line : counts) {
    EXPECT_EQ(line.at("iter").as_int(), 2);
    ASSERT_EQ(line.at("tpe").size(), 4u);  // micro-batches
    for (const Json& rows : line.at("tpe").as_array()) {
      int64_t sum = 0;
      for (const Json& count : rows.as_array()) sum += count.as_int();
      EXPECT_EQ(rows.size(), 4u);
      EXPECT_EQ(sum, 8 * 2);
    }
  }
  EXPECT_EQ(counts[2].at("block").as_string(), "mtp");
  EXPECT_EQ(counts[2].at("mtp_idx").as_int(), 0);
  const auto recomputed = again.lines("tokens_per_expert/rank1.jsonl");
  ASSERT_EQ(recomputed.size(), 3u);
  for (const Json& line : recomputed) EXPECT_EQ(line.at("tpe").size(), 2u);  // each once

  const auto trace = one.lines("trace/router_trace_rank0.jsonl");
  ASSERT_EQ(trace.size(), 2u * 4 * 3);  // steps, micro-batches, routers
  const int64_t hidden = 16, experts = 4, tokens = 8;
  for (size_t i = 0; i < trace.size(); ++i) {
    EXPECT_EQ(trace[i].at("step").as_int(), static_cast<int64_t>(i) / 12);
    EXPECT_EQ(trace[i].at("top_indices").size(), static_cast<size_t>(tokens));
    EXPECT_EQ(trace[i].at("hs_offset").as_int(), static_cast<int64_t>(i) * tokens * hidden * 2);
    EXPECT_EQ(trace[i].at("logit_offset").as_int(), static_cast<int64_t>(i) * tokens * experts * 2);
  }
  const auto size = [&](const char* name) { return std::filesystem::file_size(one.folder / name); };
  EXPECT_EQ(size("trace/hidden_states_rank0.bin"), trace.size() * 8 * 16 * 2);
  EXPECT_EQ(size("trace/logits_rank0.bin"), trace.size() * 8 * 4 * 2);
  EXPECT_TRUE(
      one.tensors("trace/router_state_rank0.safetensors").contains("decoder.layers.1.mlp.router.weight"));
  // The experts of a token are those with the largest logits.
  std::ifstream logits(one.folder / "trace/logits_rank0.bin", std::ios::binary);
  std::vector<uint16_t> first(static_cast<size_t>(tokens * experts));
  logits.read(reinterpret_cast<char*>(first.data()), static_cast<std::streamsize>(2 * first.size()));
  for (int64_t t = 0; t < tokens; ++t) {
    const auto value = [&](int64_t e) {
      return std::bit_cast<float>(static_cast<uint32_t>(first[static_cast<size_t>(t * experts + e)]) << 16);
    };
    int64_t best = 0;
    for (int64_t e = 1; e < experts; ++e)
      if (value(e) > value(best)) best = e;
    EXPECT_EQ(trace[0].at("top_indices")[static_cast<size_t>(t)][size_t{0}].as_int(), best) << "token " << t;
  }
  EXPECT_EQ(again.lines("trace/router_trace_rank1.jsonl").size(), 2u * 2 * 3);
}

}  // namespace
}  // namespace megatron
