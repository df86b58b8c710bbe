#include "megatron/autotune/search/search.h"

#include <gtest/gtest.h>

#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/config/resolve/pipeline_layout.h"
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
  }
}

}  // namespace
}  // namespace megatron::autotune
