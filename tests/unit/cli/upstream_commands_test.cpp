// Options of Megatron-LM's scripts that a command takes by itself, rather than as settings.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "megatron/base/json.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

using testing::golden_path;
using testing::TempDir;

std::vector<std::string> operator+(std::vector<std::string> args, std::vector<std::string> more) {
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// A training run of a tiny GPT on mock data.
std::vector<std::string> tiny_run(const std::vector<std::string>& more) {
  const std::vector<std::string> run = {"-q",
                                        "pretrain",
                                        "--num-layers",
                                        "2",
                                        "--hidden-size",
                                        "32",
                                        "--num-attention-heads",
                                        "4",
                                        "--seq-length",
                                        "16",
                                        "--max-position-embeddings",
                                        "16",
                                        "--micro-batch-size",
                                        "1",
                                        "--lr",
                                        "1e-3",
                                        "--mock-data",
                                        "--tokenizer-type",
                                        "NullTokenizer"};
  return run + more;
}

// Texts from their beginning are drawn apart, and again the same by the same seed.
TEST(UpstreamCommands, SamplesWithoutAPrompt) {
  const std::vector<std::string> common = {
      "-q",     "generate",         "--hf", golden_path("hf_models", "llama/model"), "--ignore-eos",
      "--json", "--max-new-tokens", "12"};
  const std::vector<std::string> draws = {"--num-samples", "4", "--temperature", "1.0", "--top-p", "0.9"};
  const Outcome four = run_command(common + draws), again = run_command(common + draws);
  ASSERT_EQ(four.code, 0) << four.err;
  EXPECT_EQ(four.out, again.out);
  std::istringstream lines(four.out);
  std::set<std::string> texts;
  for (std::string line; std::getline(lines, line);)
    texts.insert(Json::parse(line, "answer").find("ids")->dump());
  EXPECT_EQ(texts.size(), 4u);
  // The first draw is that of a prompt which is the end of a document alone.
  const Outcome one = run_command(
      common + std::vector<std::string>{"--prompt-ids", "2", "--temperature", "1.0", "--top-p", "0.9"});
  ASSERT_EQ(one.code, 0) << one.err;
  EXPECT_EQ(one.out, four.out.substr(0, one.out.size()));
  // --num-samples 0 stands in scripts that give prompts.
  const std::vector<std::string> prompt = {"--prompt-ids", "5,6"};
  const Outcome none = run_command(common + prompt + std::vector<std::string>{"--num-samples", "0"});
  EXPECT_EQ(none.out, run_command(common + prompt).out);
  const Outcome both = run_command(common + prompt + std::vector<std::string>{"--num-samples", "3"});
  EXPECT_EQ(both.code, 2);
  EXPECT_NE(both.err.find("without a prompt"), std::string::npos) << both.err;
}

// Megatron-LM's step of one rank without the others is for its memory, which the plan tells of all.
TEST(UpstreamCommands, RanksThatAreNotThere) {
  const std::vector<std::string> run =
      tiny_run({"--global-batch-size", "8", "--vocab-size", "64", "--train-iters", "2",
                "--tensor-model-parallel-size", "2", "--fake-process-group"});
  Outcome outcome = run_command(run + std::vector<std::string>{"--world-size", "16"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("16 ranks: tp 2, pp 1, cp 1, dp 8"), std::string::npos) << outcome.out;
  EXPECT_EQ(outcome.out.find("iteration "), std::string::npos) << outcome.out;
  ::setenv("WORLD_SIZE", "4", 1);
  outcome = run_command(run);
  ::unsetenv("WORLD_SIZE");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("4 ranks: tp 2, pp 1, cp 1, dp 2"), std::string::npos) << outcome.out;
}

// A model whose tower flags described sees pictures from its checkpoint, whose projector the flags repeat.
TEST(UpstreamCommands, PicturesOfATowerFromFlags) {
  TempDir folder;
  testing::write_text(folder / "p.ppm", "P6 2 1 255\n" + std::string(6, 'x'));
  const std::string config = golden_path("vision", "llava/model/config.json");
  const std::vector<std::string> model = {"-q",
                                          "--tokenizer-type",
                                          "HuggingFaceTokenizer",
                                          "--tokenizer-model",
                                          config.substr(0, config.rfind('/')),
                                          "--device",
                                          "cpu",
                                          "--img-h",
                                          "56",
                                          "--patch-dim",
                                          "14",
                                          "--disable-vision-class-token",
                                          "--use-pixel-shuffle-only",
                                          "--dynamic-resolution"};
  const auto run = [&](const std::string& command, const std::vector<std::string>& more) {
    std::vector<std::string> words = model + more;
    words.insert(words.begin() + 1, command);
    return run_command(words);
  };
  Outcome outcome = run("pretrain", {"--num-layers",
                                     "2",
                                     "--hidden-size",
                                     "32",
                                     "--num-attention-heads",
                                     "4",
                                     "--seq-length",
                                     "32",
                                     "--max-position-embeddings",
                                     "64",
                                     "--position-embedding-type",
                                     "rope",
                                     "--micro-batch-size",
                                     "1",
                                     "--lr",
                                     "1e-3",
                                     "--mock-data",
                                     "--train-iters",
                                     "1",
                                     "--eval-iters",
                                     "0",
                                     "--save",
                                     folder / "c"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  outcome = run("generate", {"--load", folder / "c", "--prompt", "<image>what", "--images", folder / "p.ppm",
                             "--out-seq-length", "2", "--ignore-eos"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out.find("<image>what"), 0u) << outcome.out;
}

// --ckpt-convert-format writes what --load names in another layout, and back; no step is taken.
TEST(UpstreamCommands, CheckpointsInAnotherLayout) {
  TempDir folder;
  const std::string metrics = folder / "m.jsonl";
  const std::vector<std::string> run =
      tiny_run({"--device", "cpu", "--global-batch-size", "2", "--vocab-size", "63", "--metrics", metrics});
  const auto at = [&](const std::string& steps, const std::string& load) {
    return run + std::vector<std::string>{"--train-iters", steps, "--lr-decay-style", "constant"} +
           (load.empty() ? std::vector<std::string>{} : std::vector<std::string>{"--load", load});
  };
  const auto convert = [&](const std::string& load, const std::string& format, const std::string& out) {
    return run_command(at("4", load) + std::vector<std::string>{"--ckpt-convert-format", format,
                                                                "--ckpt_convert_save=" + out});
  };
  Outcome outcome = run_command(at("2", "") + std::vector<std::string>{"--save", folder / "ours"});
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  outcome = convert(folder / "ours", "torch_dist", folder / "theirs");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(std::filesystem::exists(folder / "theirs/torch_dist/latest_checkpointed_iteration.txt"));
  outcome = convert(folder / "theirs/torch_dist", "safetensors", folder / "back");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  // The run goes on from each of the three alike.
  std::set<std::string> lasts;
  for (const char* from : {"ours", "theirs/torch_dist", "back/safetensors"}) {
    outcome = run_command(at("4", folder / from));
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream lines(testing::read_text(metrics));
    std::string last;
    for (std::string line; std::getline(lines, line);) last = line;
    const Json row = Json::parse(last, "metrics");
    EXPECT_EQ(row.find("iteration")->as_int(), 4);
    lasts.insert(row.find("lm_loss")->dump() + row.find("grad_norm")->dump());
  }
  EXPECT_EQ(lasts.size(), 1u);
  // The legacy form passes through a folder of its own, which is nobody else's.
  std::filesystem::create_directories(folder / "legacy/mp_rank_00");
  testing::write_text(folder / "legacy/mp_rank_00/model_optim_rng.pt", "not a pickle");
  std::filesystem::create_directories(folder / "taken/torch_dist.passing");
  testing::write_text(folder / "taken/torch_dist.passing/file", "kept");
  outcome = convert(folder / "legacy", "torch_dist", folder / "taken");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("torch_dist.passing is there already"), std::string::npos) << outcome.err;
  EXPECT_EQ(testing::read_text(folder / "taken/torch_dist.passing/file"), "kept");
  outcome = convert(folder / "legacy", "torch_dist", folder / "new");
  EXPECT_EQ(outcome.code, 1);
  EXPECT_NE(outcome.err.find("model_optim_rng.pt"), std::string::npos) << outcome.err;
  EXPECT_TRUE(std::filesystem::is_empty(folder / "new")) << "a folder that is left over";
  for (const auto& [wrong, text] : std::vector<std::pair<Outcome, const char*>>{
           {convert(folder / "ours", "torch", folder / "x"), "use torch_dist"},
           {convert(folder / "ours", "safetensors", folder / "x"), "already"},
           {convert(folder / "none", "torch_dist", folder / "x"), "there is no checkpoint"},
           {run_command(at("4", folder / "ours") + std::vector<std::string>{"--ckpt-convert-save", "x"}),
            "belong together"}}) {
    EXPECT_EQ(wrong.code, 1);
    EXPECT_NE(wrong.err.find(text), std::string::npos) << wrong.err;
  }
}

}  // namespace
}  // namespace megatron
