#include "megatron/autotune/search/search.h"

#include <gtest/gtest.h>

#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/report/search_page.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/autotune/search/search_state.h"
#include "megatron/base/atomic_file.h"
#include "megatron/config/resolve/pipeline_layout.h"
#include "support/temp_dir.h"
#include "unit/autotune/models.h"

namespace megatron::autotune {
namespace {

struct Searched {
  ModelShape model;
  Cluster cluster;
  Calibration calibration = shipped_calibration("h100");
  CostInputs in() const {
    return {model, cluster, stack_named("megatron-cpp"), calibration.constants, &calibration};
  }
  SearchRequest request(int64_t gbs, int64_t seq) const { return {.in = in(), .gbs = gbs, .seq = seq}; }
};

Searched on_h100(ModelShape model, int gpus) {
  return {std::move(model), cluster_of(gpu_spec("H100"), gpus)};
}

TEST(Search, EveryPlanIsLegalFitsAndStandsInOrder) {
  const Searched s = on_h100(llama_70b(), 64);
  const SearchResult r = search(s.request(256, 8192));
  ASSERT_GE(r.best.size(), 10u);
  EXPECT_EQ(r.plans, r.fitting + r.refused.at("memory"));
  for (const Candidate& c : r.best) {
    EXPECT_EQ(illegal(s.model, s.cluster, c.plan), "") << plan_text(c.plan);
    EXPECT_TRUE(fits(s.in(), memory_use(s.in(), c.plan))) << plan_text(c.plan);
    EXPECT_NEAR(predict(s.in(), c.plan).seconds, c.prediction.seconds, 1e-12);
    EXPECT_GE(c.prediction.seconds, r.front[0].prediction.seconds);
  }
  // One per cent is the most that simplicity may cost.
  EXPECT_LE(r.best[0].prediction.seconds, 1.01 * r.front[0].prediction.seconds);
}

TEST(Search, FrontIsNotDominated) {
  const Searched s = on_h100(llama_8b(), 16);
  const SearchResult r = search(s.request(64, 4096));
  ASSERT_GE(r.front.size(), 3u);
  for (size_t i = 1; i < r.front.size(); ++i) {
    EXPECT_GT(r.front[i].prediction.seconds, r.front[i - 1].prediction.seconds);
    EXPECT_LT(r.front[i].bytes, r.front[i - 1].bytes);
  }
}

TEST(Search, KeepsWhatIsGiven) {
  const Searched s = on_h100(llama_8b(), 16);
  SearchRequest request = s.request(64, 4096);
  request.tp = 4;
  request.pp = 2;
  request.mbs = 2;
  for (const Candidate& c : search(request).best) {
    EXPECT_EQ(c.plan.tp, 4);
    EXPECT_EQ(c.plan.pp, 2);
    EXPECT_EQ(c.plan.mbs, 2);
  }
}

// Whether a search finds a plan of that kind among its best or on its front.
template <class Has>
bool finds(const SearchRequest& request, Has has) {
  const SearchResult r = search(request);
  for (const std::vector<Candidate>* list : {&r.best, &r.front})
    for (const Candidate& c : *list)
      if (has(c.plan)) return true;
  return false;
}

TEST(Search, AllAxesAreSearched) {
  const Searched s = on_h100(llama_70b(), 64);
  SearchRequest exchange = s.request(256, 32768);
  exchange.cp_exchange = ContextExchange::all_to_all;
  exchange.cp = 2;
  EXPECT_TRUE(
      finds(exchange, [](const ParallelPlan& p) { return p.cp_exchange == ContextExchange::all_to_all; }));
  for (const Schedule schedule : {Schedule::zb_h1, Schedule::zb_v}) {
    SearchRequest zero_bubble = s.request(256, 8192);
    zero_bubble.schedule = schedule;
    EXPECT_TRUE(finds(zero_bubble, [&](const ParallelPlan& p) { return p.schedule == schedule; }));
  }
  SearchRequest selective = s.request(256, 8192);
  selective.recompute = Recompute::selective;
  EXPECT_TRUE(finds(selective, [](const ParallelPlan& p) { return p.modules != 0; }));
  SearchRequest narrow = s.request(256, 8192);
  narrow.precisions = {Precision::fp8};
  EXPECT_TRUE(finds(narrow, [](const ParallelPlan& p) { return p.precision == Precision::fp8; }));
  SearchRequest forward = s.request(256, 8192);
  forward.forward_only = true;
  const SearchResult passes = search(forward), training = search(s.request(256, 8192));
  ASSERT_FALSE(passes.best.empty());
  EXPECT_LT(passes.best[0].prediction.seconds, 0.45 * training.best[0].prediction.seconds);
  // The same plan needs less where nothing goes back; another one may fill what that leaves.
  ParallelPlan plan = training.best[0].plan;
  const double trained = memory_use(s.in(), plan).total();
  plan.forward_only = true;
  EXPECT_LT(memory_use(s.in(), plan).total(), 0.8 * trained);
}

TEST(Search, RecomputeSetsGrowAndSave) {
  for (const ModelShape& model : {llama_70b(), deepseek_v3()}) {
    const Searched s = on_h100(model, 64);
    ParallelPlan plan{.gpus = 64, .tp = 4, .gbs = 64, .seq = 8192};
    double kept = kept_activation_bytes(s.in(), plan);
    const std::vector<uint8_t> sets = recompute_sets(s.in(), plan);
    EXPECT_GE(sets.size(), 2u);
    for (const uint8_t set : sets) {
      plan.recompute = Recompute::selective;
      plan.modules = set;
      const double bytes = kept_activation_bytes(s.in(), plan);
      EXPECT_LE(bytes, kept);
      // Two bytes of every layer's input stay at least.
      EXPECT_GE(bytes, 2.0 * 8192 * static_cast<double>(model.hidden * model.layers) / 4 * (1 - 1e-9));
      kept = bytes;
    }
  }
}

TEST(Search, IsFast) {
  const Searched s = on_h100(deepseek_v3(), 1024);
  SearchRequest request = s.request(8192, 4096);
  const SearchResult r = search(request);
  EXPECT_GE(static_cast<double>(r.plans) / r.seconds, 1e5);
  EXPECT_LT(r.seconds, 20);
}

TEST(Search, GoesOnWhereItWasStopped) {
  const Searched s = on_h100(llama_8b(), 16);
  const SearchRequest request = s.request(64, 4096);
  const testing::TempDir dir;
  const std::string path = dir.path() + "/state";
  std::string text = Json(search_fingerprint(request)).dump() + "\n";
  SearchMemory memory;
  memory.finished = [&](const std::string& name, const SearchPart& part) {
    text += search_state_line(name, part);
  };
  const SearchResult whole = search(request, memory);
  // The last line was being written.
  write_file_atomically(path, text.substr(0, text.size() - 20));
  const SearchMemory known = read_search_state(request, path);
  EXPECT_GE(known.parts.size(), 3u);
  const SearchResult again = search(request, known);
  EXPECT_EQ(again.resumed, static_cast<int>(known.parts.size()));
  EXPECT_EQ(again.plans, whole.plans);
  EXPECT_EQ(again.fitting, whole.fitting);
  ASSERT_EQ(again.best.size(), whole.best.size());
  for (size_t i = 0; i < whole.best.size(); ++i) {
    EXPECT_EQ(plan_text(again.best[i].plan), plan_text(whole.best[i].plan));
    EXPECT_DOUBLE_EQ(again.best[i].prediction.seconds, whole.best[i].prediction.seconds);
  }
  SearchRequest other = request;
  other.gbs = 128;
  EXPECT_TRUE(read_search_state(other, path).parts.empty());
}

TEST(Search, ThreadsFindTheSame) {
  const Searched s = on_h100(llama_70b(), 64);
  SearchRequest request = s.request(256, 8192);
  const SearchResult one = search(request);
  request.threads = 3;
  const SearchResult three = search(request);
  EXPECT_EQ(one.plans, three.plans);
  ASSERT_EQ(one.best.size(), three.best.size());
  for (size_t i = 0; i < one.best.size(); ++i)
    EXPECT_EQ(plan_text(one.best[i].plan), plan_text(three.best[i].plan));
}

TEST(Search, TakesShortSequences) {
  const Searched s = on_h100(llama_8b(), 16);
  EXPECT_FALSE(search(s.request(64, 64)).best.empty());
}

TEST(Search, SaysThatNothingFits) {
  const Searched s = on_h100(llama_405b(), 8);
  const SearchRequest request = s.request(64, 8192);
  const SearchResult r = search(request);
  EXPECT_TRUE(r.best.empty());
  EXPECT_NE(search_text(request, r).find("no plan fits"), std::string::npos);
}

TEST(Search, MoeKeepsExpertsInGroupsThatDivide) {
  const Searched s = on_h100(deepseek_v3(), 1024);
  const SearchResult r = search(s.request(8192, 4096));
  ASSERT_FALSE(r.best.empty());
  for (const Candidate& c : r.best) {
    EXPECT_EQ(256 % c.plan.ep, 0);
    EXPECT_EQ(c.plan.gpus / c.plan.pp % (c.plan.ep * c.plan.etp), 0);
  }
  EXPECT_GT(r.plans, 10000);
  EXPECT_LT(r.seconds, 20);
}

TEST(Search, NamesWhatIsIllegal) {
  const Searched s = on_h100(llama_8b(), 16);
  EXPECT_EQ(illegal(s.model, s.cluster, {.gpus = 16, .tp = 16, .gbs = 16}), "tp leaves the NVLink domain");
  EXPECT_EQ(illegal(s.model, s.cluster, {.gpus = 16, .tp = 3, .gbs = 16}),
            "tp x pp x cp does not divide the GPUs");
  EXPECT_EQ(illegal(s.model, s.cluster, {.gpus = 16, .ep = 2, .gbs = 16}), "the model has no experts");
  EXPECT_EQ(illegal(s.model, s.cluster, {.gpus = 16, .gbs = 24}), "mbs x dp does not divide the batch");
  EXPECT_EQ(illegal(s.model, s.cluster, {.gpus = 16, .tp = 0, .gbs = 16}), "sizes below 1");
}

TEST(Recipe, LayoutHoldsEveryLayer) {
  for (const int last : {0, 7, 8, 9})
    for (const int vpp : {1, 2, 5}) {
      ParallelPlan plan{.gpus = 64, .tp = 4, .pp = 8, .vpp = vpp, .gbs = 64};
      plan.last_stage_layers = last;
      const std::string text = pipeline_layout_text(llama_70b(), plan);
      const auto stages = parse_pipeline_layout(text);
      EXPECT_EQ(check_pipeline_layout(stages, 8, 80, 0), "") << text;
      EXPECT_EQ(stages.size(), static_cast<size_t>(8 * vpp));
    }
}

Resolved resolve_yaml(const std::string& text) {
  Sources sources;
  sources.file = ConfigText{"recipe.yaml", text};
  sources.flags = {{"--world-size", {"64"}, false}};
  return resolve(sources, {.purpose = Purpose::model});
}

TEST(Recipe, IsAConfigurationThatPassesEveryRule) {
  Sources sources;
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--num-layers", "80"},
                                                        {"--hidden-size", "8192"},
                                                        {"--num-attention-heads", "64"},
                                                        {"--num-query-groups", "8"},
                                                        {"--ffn-hidden-size", "28672"},
                                                        {"--vocab-size", "128256"},
                                                        {"--max-position-embeddings", "8192"},
                                                        {"--seq-length", "8192"}})
    sources.flags.push_back({flag, {value}, false});
  sources.flags.push_back({"--group-query-attention", {}, false});
  sources.flags.push_back({"--swiglu", {}, false});
  const Resolved given =
      resolve(sources, {.purpose = Purpose::inspect, .allow_unavailable = true, .rules = false});
  Searched s = on_h100(model_shape(given.config.model), 64);
  const SearchResult found = search(s.request(256, 8192));
  ASSERT_FALSE(found.best.empty());
  for (const std::vector<Candidate>* list : {&found.best, &found.front})
    for (const Candidate& c : *list) {
      const std::string text = recipe_text(given_settings(given), s.model, c, "64 x H100");
      const Resolved resolved = resolve_yaml(text);
      EXPECT_EQ(resolved.config.parallel.tensor_model_parallel_size, c.plan.tp) << text;
      EXPECT_EQ(resolved.config.parallel.pipeline_model_parallel_size, c.plan.pp);
      EXPECT_EQ(resolved.config.train.micro_batch_size, c.plan.mbs);
      EXPECT_EQ(resolved.config.model.num_layers, 80);
      EXPECT_EQ(resolved.config.model.ffn_hidden_size, 28672);
      EXPECT_TRUE(resolved.config.precision.bf16);
    }
}

TEST(Recipe, KeepsWhatNoPlanDecides) {
  Sources sources;
  for (const auto& [flag, value] :
       std::vector<std::pair<std::string, std::string>>{{"--num-layers", "4"},
                                                        {"--hidden-size", "512"},
                                                        {"--num-attention-heads", "8"},
                                                        {"--tensor-model-parallel-size", "4"},
                                                        {"--tp-comm-overlap-cfg", "overlap.yaml"},
                                                        {"--tp-spares", "1"},
                                                        {"--num-reduced-tp-dp-ranks", "2"},
                                                        {"--non-active-ranks", "1:2"}})
    sources.flags.push_back({flag, {value}, false});
  for (const char* flag : {"--tp-comm-overlap", "--parallel-residual"})
    sources.flags.push_back({flag, {}, false});
  const Json given = given_settings(
      resolve(sources, {.purpose = Purpose::inspect, .allow_unavailable = true, .rules = false}));
  const Json& model = given.at("model");
  EXPECT_EQ(model.at("tp_comm_overlap_cfg").as_string(), "overlap.yaml");
  EXPECT_TRUE(model.at("parallel_residual").as_bool());
  for (const char* name : {"tensor_model_parallel_size", "tp_comm_overlap", "tp_spares",
                           "num_reduced_tp_dp_ranks", "non_active_ranks_per_dp"})
    EXPECT_FALSE(model.contains(name)) << name;
}

size_t widest_line(const std::string& text) {
  size_t widest = 0, start = 0;
  for (size_t end; (end = text.find('\n', start)) != std::string::npos; start = end + 1)
    widest = std::max(widest, end - start);
  return widest;
}

TEST(PlanReport, FitsEightyColumns) {
  for (const ModelShape& model : {llama_8b(), llama_405b(), deepseek_v3()}) {
    const Searched s = on_h100(model, 1024);
    const SearchRequest request = s.request(8192, 4096);
    const SearchResult r = search(request);
    ASSERT_FALSE(r.best.empty());
    const std::string text = search_text(request, r);
    EXPECT_LE(widest_line(text), 80u) << text;
    EXPECT_NE(text.find("why the first"), std::string::npos);
    const std::string why = explain_text(s.in(), r.best[0].plan);
    EXPECT_LE(widest_line(why), 80u) << why;
    EXPECT_NE(why.find("what binds"), std::string::npos);
    EXPECT_EQ(search_json(request, r).at("candidates").size(), r.best.size());
    const std::string page = report::render(search_page(request, r, "autotune.yaml"));
    for (const char* part : {"Front of time and memory", "Where the time goes", "Roofline", "Timeline"})
      EXPECT_NE(page.find(part), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace megatron::autotune
