#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <sstream>

#include "megatron/base/atomic_file.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/commands/autotune_calibrate.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

const std::string kTables = MEGATRON_GOLDEN_DIR "/autotune/";

Outcome autotune(std::vector<std::string> args) {
  args.insert(args.begin(), "autotune");
  return run_command(std::move(args));
}

std::vector<std::string> small_model(std::vector<std::string> first) {
  const std::vector<std::string> model = {
      "--num-layers",        "24",    "--hidden-size", "2048", "--num-attention-heads",     "16",
      "--vocab-size",        "50304", "--seq-length",  "2048", "--max-position-embeddings", "2048",
      "--global-batch-size", "256"};
  first.insert(first.end(), model.begin(), model.end());
  return first;
}

TEST(Autotune, PredictsATable) {
  const Outcome text = autotune({"predict", "--table", kTables + "measured-plans-a100.json", "--draws", "2"});
  ASSERT_EQ(text.code, 0) << text.err;
  EXPECT_NE(text.out.find("held out: single node"), std::string::npos) << text.out;
  const Outcome json =
      autotune({"predict", "--table", kTables + "published-performance.json", "--draws", "1", "--json"});
  ASSERT_EQ(json.code, 0) << json.err;
  const Json document = Json::parse(json.out);
  EXPECT_GT(document.at("rows").size(), 300u);
  const Json& row = document.at("rows")[0];
  for (const char* key : {"id", "predicted", "measured", "error"}) EXPECT_TRUE(row.contains(key)) << key;
  EXPECT_NEAR(row.at("predicted").as_double() / row.at("measured").as_double() - 1,
              row.at("error").as_double(), 1e-9);
  EXPECT_GE(document.at("summary").at("not_judged").size(), 5u);
}

TEST(Autotune, RanksATable) {
  const Outcome outcome =
      autotune({"rank", "--table", kTables + "measured-plans-a100.json", "--draws", "0", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json document = Json::parse(outcome.out);
  EXPECT_GE(document.at("groups").size(), 10u);
  EXPECT_GE(document.at("groups")[0].at("ids").size(), 2u);
  EXPECT_LE(document.at("summary").at("mean_loss").as_double(), 0.02);
}

TEST(Autotune, SearchWritesARecipeThatPlanTakes) {
  const testing::TempDir dir;
  const std::string path = dir.path() + "/recipe.yaml";
  const Outcome outcome = autotune(small_model(
      {"search", "--cluster", MEGATRON_SOURCE_DIR "/examples/clusters/h200-8.yaml", "--out", path}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("why the first"), std::string::npos) << outcome.out;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(path) != std::string::npos) continue;
    EXPECT_LE(line.size(), 80u) << line;
  }
  const Outcome shown = run_command({"config", "show", "--config", path, "--world-size", "8"});
  EXPECT_EQ(shown.code, 0) << shown.err << read_text_file(path);
}

TEST(Autotune, SearchWritesAPageAndChecksPlans) {
  const testing::TempDir dir;
  const std::string page = dir.path() + "/page.html", state = dir.path() + "/state";
  const std::vector<std::string> args =
      small_model({"search", "--gpu", "H100", "--gpus", "8", "--out", dir.path() + "/recipe.yaml", "--report",
                   page, "--resume", state, "--check", "3", "--json"});
  const Outcome outcome = autotune(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  for (size_t i = 0; i < 3; ++i) {
    const Json& row = json.at("candidates")[i];
    ASSERT_TRUE(row.contains("planned_gib")) << row.dump();
    EXPECT_NEAR(row.at("planned_gib").as_double() / row.at("predicted").at("mem_gib").as_double(), 1, 0.05);
  }
  EXPECT_NE(read_text_file(page).find("Front of time and memory"), std::string::npos);
  // What is finished is not priced again.
  const Json again = Json::parse(autotune(args).out);
  EXPECT_EQ(again.at("plans").as_int(), json.at("plans").as_int());
  EXPECT_EQ(again.at("candidates")[0].dump(), json.at("candidates")[0].dump());
}

TEST(Autotune, SimulatesAnIteration) {
  const testing::TempDir dir;
  const std::string trace = dir.path() + "/trace.json", picture = dir.path() + "/picture.svg";
  const Outcome outcome = autotune(small_model({"simulate", "--gpus", "16", "-tp", "2", "-pp", "4", "--bf16",
                                                "--trace", trace, "--picture", picture, "--slow", "5:1.5"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("with rank 5 (stage 1)"), std::string::npos) << outcome.out;
  std::istringstream lines(outcome.out);
  for (std::string line; std::getline(lines, line);)
    EXPECT_TRUE(line.size() <= 80 || line.find("is written") != std::string::npos) << line;
  EXPECT_GT(Json::read(trace).at("traceEvents").size(), 100u);
  EXPECT_EQ(read_text_file(picture).rfind("<svg", 0), 0u);
  EXPECT_EQ(autotune(small_model({"simulate", "--gpus", "16", "--slow", "99:2"})).code, 2);
}

std::vector<std::string> tiny_model(std::vector<std::string> first) {
  const std::vector<std::string> model = {"--num-layers",
                                          "2",
                                          "--hidden-size",
                                          "32",
                                          "--num-attention-heads",
                                          "4",
                                          "--vocab-size",
                                          "256",
                                          "--seq-length",
                                          "32",
                                          "--max-position-embeddings",
                                          "32",
                                          "--global-batch-size",
                                          "4",
                                          "--swiglu",
                                          "--disable-bias-linear",
                                          "--normalization",
                                          "RMSNorm",
                                          "--position-embedding-type",
                                          "rope",
                                          "--hidden-dropout",
                                          "0",
                                          "--attention-dropout",
                                          "0"};
  first.insert(first.end(), model.begin(), model.end());
  return first;
}

TEST(Autotune, ProfilesModulesOnRanks) {
  const testing::TempDir dir;
  const std::string cases = dir.path() + "/cases.json", database = dir.path() + "/db.jsonl";
  write_file_atomically(cases, R"({"model": "tiny", "cases": [
      {"batch_size": 2, "micro_batch_size": 2, "seqlen": 32, "shape": "bshd", "system": "megatron"},
      {"batch_size": 4, "seqlen": 32, "max_token_len": 70, "shape": "thd", "system": "megatron"}]})");
  const Outcome outcome = autotune(
      tiny_model({"profile-ops", "--device", "cpu", "-tp", "2", "--sequence-parallel", "--model-name", "tiny",
                  "--test-cases-file", cases, "--output-dir", dir.path() + "/outputs", "--database", database,
                  "--theoretical-flops", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("ops").size(), 2u * 8);
  for (const char* rank : {"rank_0", "rank_1"}) {
    const std::string folder = json.at("folder").as_string() + "/collect_data/" + rank;
    const Json timing = Json::read(folder + "/timing.json");
    const Json& leaf = timing.at("SelfAttention")
                           .at("forward")
                           .at("batch_size=2")
                           .at("seqlen=32")
                           .at("shape=bshd")
                           .at("micro_batch_size=2")
                           .at("system=megatron");
    EXPECT_GT(leaf.at("real").as_double(), 0);
    EXPECT_GT(leaf.at("estimated").as_double(), 0);
    EXPECT_TRUE(timing.at("MLPDense")
                    .at("backward")
                    .at("batch_size=4")
                    .at("seqlen=32")
                    .at("shape=thd")
                    .contains("max_token_len=64"));
    // What the forward pass left is what shapes alone say, to the byte.
    const Json kept = Json::read(folder + "/memory_activation.json");
    const Json& bytes = kept.at("MLPDense")
                            .at("batch_size=2")
                            .at("seqlen=32")
                            .at("shape=bshd")
                            .at("micro_batch_size=2")
                            .at("system=megatron");
    EXPECT_GT(bytes.at("real").as_double(), 0);
    EXPECT_EQ(bytes.at("real").as_double(), bytes.at("estimated").as_double());
  }
  const std::string lines = read_text_file(database);
  EXPECT_NE(lines.find("linear forward fp32["), std::string::npos);  // by its shape
  EXPECT_NE(lines.find("\"device\":\"CPU\""), std::string::npos) << lines.substr(0, 200);
  EXPECT_EQ(autotune(tiny_model({"profile-ops", "--device", "cpu", "--test-ops-list", "MLA"})).code, 2);
}

TEST(Autotune, ProfilesCollectives) {
  const Outcome outcome =
      autotune({"profile-comm", "--ranks", "2", "--sizes", "4,64", "--repeat", "3", "--json"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("collectives").size(), 5u);
  for (const Json& one : json.at("collectives").as_array())
    EXPECT_GT(one.at("sizes")[0].at("us").as_double(), 0);
  ASSERT_EQ(json.at("copies").size(), 2u);
  for (const Json& one : json.at("copies").as_array()) {
    EXPECT_GT(one.at("to_device_gb_per_s").as_double(), 0);
    EXPECT_GT(one.at("to_host_gb_per_s").as_double(), 0);
    EXPECT_GT(one.at("pinned_to_host_gb_per_s").as_double(), 0);
  }
  EXPECT_GT(json.at("copy_interference").at("copy_us").as_double(), 0);
  EXPECT_EQ(autotune({"profile-comm", "--device", "tpu"}).code, 2);
  const Json& both = json.at("interference");
  EXPECT_GT(both.at("gemm_us").as_double(), 0);
  EXPECT_GT(both.at("all_reduce_us").as_double(), 0);
  EXPECT_GE(both.at("hidden").as_double(), 0);
  EXPECT_LE(both.at("hidden").as_double(), 1);
}

// What profiling writes is what a run reads, and what it does with that changes its operations.
TEST(Autotune, OverlapOfLinearsIsProfiledAndRead) {
  const testing::TempDir dir;
  const std::string file = dir.path() + "/tp_comm_overlap_cfg.yaml";
  const Outcome outcome =
      autotune(tiny_model({"profile-ops", "--device", "cpu", "--tensor-model-parallel-size", "2",
                           "--tp-overlap", file, "--profile-iters", "1", "--json"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  std::map<std::string, int> chosen;
  for (const Json& one : json.at("tried").as_array())
    chosen[one.at("gemm").as_string()] += one.at("chosen").as_bool() ? 1 : 0;
  EXPECT_EQ(chosen.size(), 10u);
  for (const auto& [gemm, count] : chosen) EXPECT_EQ(count, 1) << gemm;
  const std::string text = read_text_file(file);
  for (const auto& [gemm, count] : chosen) EXPECT_NE(text.find(gemm + ":\n  method: "), std::string::npos);
  EXPECT_EQ(autotune(tiny_model({"profile-ops", "--tp-overlap", file})).code, 2);  // one rank
}

TEST(Autotune, ValidatesPlansByRunningThem) {
  const testing::TempDir dir;
  const std::string state = dir.path() + "/state", constants = dir.path() + "/cpu.json";
  const std::vector<std::string> args = tiny_model({"validate",
                                                    "--gpu",
                                                    "CPU",
                                                    "--gpus",
                                                    "2",
                                                    "--constants",
                                                    "h100",
                                                    "--top",
                                                    "3",
                                                    "--steps",
                                                    "2",
                                                    "--warmup",
                                                    "1",
                                                    "--state",
                                                    state,
                                                    "--write-constants",
                                                    constants,
                                                    "--out",
                                                    dir.path() + "/recipe.yaml",
                                                    "--json"});
  const Outcome outcome = autotune(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const Json json = Json::parse(outcome.out);
  ASSERT_EQ(json.at("plans").size(), 3u);
  // Times of a tiny model on a busy machine scatter; that constants were corrected shows in all plans
  // together.
  double corrected = 0, measured = 0;
  for (const Json& plan : json.at("plans").as_array()) {
    corrected += std::log(plan.at("corrected_ms").as_double());
    measured += std::log(plan.at("measured_ms").as_double());
  }
  EXPECT_NEAR(corrected / 3, measured / 3, std::log(2));
  // A second validation takes what was measured.
  const Json again = Json::parse(autotune(args).out);
  EXPECT_EQ(again.at("plans")[0].at("measured_ms").dump(), json.at("plans")[0].at("measured_ms").dump());
  EXPECT_EQ(autotune(tiny_model({"predict", "--gpu", "CPU", "--gpus", "2", "--constants", constants})).code,
            0);
}

// From a search to a trained model: the recipe holds all that a run needs but its data.
TEST(Autotune, RecipeOfASearchTrains) {
  const testing::TempDir dir;
  const std::string recipe = dir.path() + "/recipe.yaml";
  const Outcome searched =
      autotune(tiny_model({"search", "--gpu", "CPU", "--gpus", "2", "--constants", "h100",
                           "--tensor-model-parallel-size", "2", "--out", recipe}));
  ASSERT_EQ(searched.code, 0) << searched.err;
  const Outcome trained =
      run_command({"pretrain", "--config", recipe, "--ranks", "2", "--device", "cpu", "--mock-data",
                   "--train-iters", "2", "--lr", "1e-4", "--log-interval", "1"});
  ASSERT_EQ(trained.code, 0) << trained.err << read_text_file(recipe);
  EXPECT_NE((trained.out + trained.err).find("iteration        2/       2"), std::string::npos)
      << trained.out << trained.err;
}

// Constants of this machine come from short runs of other models, where a search has none.
TEST(AutotuneMachine, IsMeasuredBeforeASearch) {
  const testing::TempDir dir;
  const auto searched = [&](const std::vector<std::string>& more) {
    std::vector<std::string> args =
        tiny_model({"search", "--gpu", "CPU", "--gpus", "1", "--json", "--out", dir.path() + "/recipe.yaml"});
    args.insert(args.end(), more.begin(), more.end());
    return autotune(args);
  };
  const Outcome outcome = searched({}), given = searched({"--constants", "h100"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("calibrated by "), std::string::npos) << outcome.err;
  EXPECT_EQ(given.err.find("calibrated"), std::string::npos) << given.err;
  EXPECT_NE(Json::parse(given.out).at("candidates")[0].dump(),
            Json::parse(outcome.out).at("candidates")[0].dump());
  // A stopped search goes on by the same constants.
  const std::string state = dir.path() + "/state";
  const Outcome first = searched({"--resume", state});
  EXPECT_NE(first.err.find("not calibrated: --resume"), std::string::npos) << first.err;
  const std::string parts = read_text_file(state);
  searched({"--resume", state});
  EXPECT_EQ(read_text_file(state), parts);
  // Arguments are checked first.
  const Outcome wrong = searched({"--threads", "0"});
  EXPECT_EQ(wrong.code, 2);
  EXPECT_EQ(wrong.err.find("calibrated"), std::string::npos) << wrong.err;
}

TEST(AutotuneMachine, IsNotMeasuredForOnePlanOrForMoreRanksThanCores) {
  for (const char* part : {"predict", "explain", "simulate"}) {
    const Outcome outcome = autotune(tiny_model({part, "--gpu", "CPU", "--gpus", "1"}));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(outcome.err.find("calibrated"), std::string::npos) << outcome.err;
  }
  const testing::TempDir dir;
  const Outcome outcome = autotune(
      tiny_model({"search", "--gpu", "CPU", "--gpus", "65536", "--out", dir.path() + "/recipe.yaml"}));
  EXPECT_NE(outcome.err.find("not calibrated: 65536 ranks share "), std::string::npos) << outcome.err;
}

TEST(AutotuneMachine, EveryCountOfRanksHasPlansThatCalibrateIt) {
  for (const int ranks : {1, 2, 3, 4, 5, 6, 7, 8, 16, 24, 40, 64}) {
    size_t plans = 0;
    for (const CalibrationModel& model : calibration_models(ranks)) {
      plans += model.plans.size();
      for (const autotune::ParallelPlan& plan : model.plans) EXPECT_EQ(plan.gpus, ranks);
    }
    EXPECT_GE(plans, 6u) << ranks;
  }
}

TEST(Autotune, ExplainsAPlan) {
  const Outcome outcome =
      autotune(small_model({"explain", "--gpus", "16", "--tensor-model-parallel-size", "2", "--bf16"}));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("what binds"), std::string::npos);
  EXPECT_NE(outcome.out.find("twice the NIC"), std::string::npos);
}

// Bytes that a step of the real trainer allocates on shapes alone, and those of the closed form with its 3 %.
double memory_ratio(const std::vector<std::string>& layout) {
  std::vector<std::string> args = {"--num-layers",
                                   "8",
                                   "--hidden-size",
                                   "1024",
                                   "--num-attention-heads",
                                   "16",
                                   "--group-query-attention",
                                   "--num-query-groups",
                                   "4",
                                   "--ffn-hidden-size",
                                   "4096",
                                   "--swiglu",
                                   "--vocab-size",
                                   "32000",
                                   "--seq-length",
                                   "4096",
                                   "--max-position-embeddings",
                                   "4096",
                                   "--position-embedding-type",
                                   "rope",
                                   "--normalization",
                                   "RMSNorm",
                                   "--disable-bias-linear",
                                   "--micro-batch-size",
                                   "1",
                                   "--global-batch-size",
                                   "32",
                                   "--bf16",
                                   "--use-distributed-optimizer",
                                   "--hidden-dropout",
                                   "0",
                                   "--attention-dropout",
                                   "0",
                                   "--world-size",
                                   "16",
                                   "--json"};
  args.insert(args.end(), layout.begin(), layout.end());
  std::vector<std::string> plan{"plan"}, predict{"autotune", "predict"};
  plan.insert(plan.end(), args.begin(), args.end());
  predict.insert(predict.end(), args.begin(), args.end());
  const Outcome planned = run_command(plan), predicted = run_command(predict);
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  if (planned.code != 0 || predicted.code != 0) return 0;
  double most = 0, closed = 0;
  const Json planned_json = Json::parse(planned.out);
  for (const Json& rank : planned_json.at("ranks").as_array())
    most = std::max(most, rank.at("memory_bytes").at("total").as_double());
  const Json predicted_json = Json::parse(predicted.out);
  for (const auto& [kind, bytes] : predicted_json.at("memory_bytes").as_object())
    if (kind != "other") closed += bytes.as_double();
  return 1.03 * closed / most;
}

TEST(Autotune, MemoryIsThatOfAPlan) {
  const std::vector<std::vector<std::string>> layouts = {
      {},
      {"-tp", "2", "--sequence-parallel"},
      {"-tp", "4", "--sequence-parallel"},
      {"-tp", "2"},
      {"-cp", "2"},
      {"-pp", "4"},
      {"-pp", "4", "-vp", "2"},
      {"-tp", "2", "-pp", "4", "--sequence-parallel"},
      {"--recompute-granularity", "full", "--recompute-method", "uniform", "--recompute-num-layers", "1"},
  };
  for (const std::vector<std::string>& layout : layouts) {
    const double ratio = memory_ratio(layout);
    std::string name;
    for (const std::string& word : layout) name += word + " ";
    EXPECT_GE(ratio, 0.995) << name;
    EXPECT_LE(ratio, 1.15) << name;
  }
}

TEST(Autotune, RefusesWithAdvice) {
  EXPECT_EQ(autotune({}).code, 2);
  EXPECT_EQ(autotune({"rank"}).code, 2);
  EXPECT_EQ(autotune({"predict", "--table", "/nowhere.json"}).code, 1);
  EXPECT_EQ(autotune(small_model({"predict", "--gpu", "H999"})).code, 1);
  const Outcome outcome =
      autotune(small_model({"predict", "--gpus", "16", "--tensor-model-parallel-size", "16"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("tp leaves the NVLink domain"), std::string::npos) << outcome.err;
  EXPECT_EQ(autotune({"search", "--gpus", "8"}).code, 1);
  EXPECT_EQ(autotune(small_model({"search", "--gpus", "0"})).code, 2);
  const Outcome unpacked = autotune(small_model({"search", "--mean-length", "512"}));
  EXPECT_EQ(unpacked.code, 2);
  EXPECT_NE(unpacked.err.find("add --sft"), std::string::npos) << unpacked.err;
  const Outcome below =
      autotune(small_model({"search", "--sft", "--mean-length", "512", "--max-token-len", "1024"}));
  EXPECT_EQ(below.code, 2);
  EXPECT_NE(below.err.find("--max-token-len needs --seq-length (2048) or more"), std::string::npos)
      << below.err;
}

}  // namespace
}  // namespace megatron
