// What users have met and found wrong: each is refused in one line before the first step, or works.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <sstream>
#include <thread>

#include "megatron/checkpoint/safetensors.h"
#include "megatron/cli/refusal_claim.h"
#include "support/golden.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;
using testing::TempDir;
using Words = std::vector<std::string>;

std::string model_of(const std::string& name) { return testing::golden_path("hf_models", name) + "/model"; }

Outcome call(const Words& first, const std::string& more) {
  Words words = first;
  std::istringstream rest(more);
  for (std::string word; rest >> word;) words.push_back(word);
  return run_command(words);
}

constexpr const char* kSmall =
    " --num-layers 2 --hidden-size 16 --num-attention-heads 2 --max-position-embeddings 8 --vocab-size 32"
    " --micro-batch-size 1 --global-batch-size 2 --lr 1e-3 --device cpu";

Outcome pretrain(const std::string& more) { return call({"pretrain"}, kSmall + (" " + more)); }

// One message, the exit code of refused input, and nothing trained.
void expect_refused(const Outcome& outcome, const std::string& why) {
  EXPECT_EQ(outcome.code, 1) << outcome.err;
  EXPECT_NE(outcome.err.find(why), std::string::npos) << "expected: " << why << "\n" << outcome.err;
  EXPECT_EQ(outcome.out.find("iteration"), std::string::npos) << outcome.out;
}

// Whole numbers that any small vocabulary has.
std::string token_file(const TempDir& folder, const Shape& shape) {
  std::vector<int64_t> tokens(static_cast<size_t>(shape.numel()));
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int64_t>(3 + i % 20);
  const std::string path = folder / "tokens.safetensors";
  write_safetensors(path, {{"tokens", Tensor::wrap(tokens.data(), shape, DType::I64)}});
  return path;
}

TEST(Users, AReplayThatIsTooShort) {
  TempDir folder;
  const std::string file = token_file(folder, {2, 2, 9}) + ":tokens";
  expect_refused(pretrain("--train-iters 5 --replay " + file),
                 "--replay " + file + ": it has 2 iterations, the run 5; use --train-iters 2 or less");
  EXPECT_EQ(pretrain("--train-iters 2 --replay " + file).code, 0);
}

TEST(Users, ParityOfAModelWithoutABatch) {
  const Outcome outcome = call({"parity", "one", "tp2", "--hf", model_of("llama")}, "");
  expect_refused(outcome, "the batch is not given; use --micro-batch-size 1 --global-batch-size 8");
  EXPECT_EQ(call({"parity", "one", "tp2", "--hf", model_of("llama")},
                 "--micro-batch-size 1 --global-batch-size 8 --steps 1")
                .code,
            0);
}

// What a source that cannot be read says of the model is not asked for again.
TEST(Users, ASourceThatCannotBeRead) {
  for (const char* source : {"--hf nowhere", "--recipe nowhere", "--config nowhere.yaml"}) {
    const Outcome outcome = call({"plan"}, source);
    expect_refused(outcome, std::string("the configuration was refused:\n  ") + source + ": ");
    EXPECT_EQ(outcome.err.find("--num-layers"), std::string::npos) << outcome.err;
  }
}

TEST(Users, AModelThatTheMachineDoesNotHold) {
  const Outcome outcome =
      pretrain("--train-iters 1 --mock-data --seq-length 8 --num-layers 64 --hidden-size 65536");
  expect_refused(outcome, "memory: rank 0 needs ");
}

// Opening one would wait for somebody to write into it.
TEST(Users, AFifoAsWeights) {
  TempDir folder;
  fs::copy_file(model_of("llama") + "/config.json", folder / "config.json");
  ASSERT_EQ(::mkfifo((folder / "model.safetensors").c_str(), 0600), 0);
  for (const char* command : {"finetune", "plan"})
    expect_refused(call({command, "--hf", folder.path()}, "--mock-data --train-iters 1 --lr 1 --device cpu"),
                   "model.safetensors: it is not a regular file");
}

// What the file system says of a name, without the words of the C++ library.
TEST(Users, FoldersThatCannotBeRead) {
  const std::string name(300, 'a');
  for (const char* flag : {"--hf", "--ckpt"}) {
    const Outcome outcome = call({"generate", flag, name}, "--prompt-ids 1 --max-new-tokens 1");
    EXPECT_EQ(outcome.code, 1) << outcome.err;
    EXPECT_EQ(outcome.err.find("filesystem error"), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("File name too long"), std::string::npos) << outcome.err;
  }
}

TEST(Users, AnAbsurdNumberOfRanks) {
  const std::string why = "a process has at most 4096";
  expect_refused(
      pretrain("--train-iters 1 --mock-data --seq-length 8 --ranks 40000 --global-batch-size 40000"),
      "--ranks 40000: " + why);
  expect_refused(
      call({"generate", "--hf", model_of("llama")}, "--prompt-ids 3 --max-new-tokens 1 --ranks 40000"),
      "--ranks 40000: " + why);
  expect_refused(call({"parity", "one", "dp20000"}, "--global-batch-size 20000"), why);
}

// Variables of the environment for as long as it lives.
class Environment {
 public:
  explicit Environment(const std::vector<std::pair<const char*, std::string>>& values) : values_(values) {
    for (const auto& [name, value] : values_) ::setenv(name, value.c_str(), 1);
  }
  ~Environment() {
    for (const auto& [name, value] : values_) ::unsetenv(name);
  }

 private:
  std::vector<std::pair<const char*, std::string>> values_;
};

// A name that is malformed is asked of no name server, whose answer might depend on the network.
TEST(Users, AMasterThatNobodyKnows) {
  const Environment job({{"RANK", "0"},
                         {"WORLD_SIZE", "2"},
                         {"LOCAL_WORLD_SIZE", "2"},
                         {"MASTER_ADDR", "nowhere..invalid"},
                         {"MASTER_PORT", "0"}});
  expect_refused(pretrain("--train-iters 1 --mock-data --seq-length 8"),
                 "MASTER_ADDR=nowhere..invalid: this machine does not know the name");
}

// Of processes that are told the same one speaks: the first, or another where that one goes on. Claims stay
// until all have been made, so that nothing depends on how fast a process is.
TEST(Users, RefusalsAreToldOnce) {
  using Claims = std::vector<std::unique_ptr<RefusalClaim>>;
  const auto in_threads = [](const std::vector<std::function<void()>>& work) {
    std::vector<std::thread> threads;
    for (const auto& one : work) threads.emplace_back(one);
    for (std::thread& thread : threads) thread.join();
  };
  const auto claim = [](int process, const char* message) {
    return std::make_unique<RefusalClaim>(LaunchPlace{.process = process, .processes = 9}, message);
  };
  Claims told(9), untold(8);
  told[0] = claim(0, "a setting is refused");
  std::vector<std::function<void()>> making;
  for (int process = 1; process < 9; ++process) {
    making.emplace_back(
        [&, process] { told[static_cast<size_t>(process)] = claim(process, "a setting is refused"); });
    making.emplace_back(
        [&, process] { untold[static_cast<size_t>(process - 1)] = claim(process, "a file is missing"); });
  }
  in_threads(making);
  const auto own = [](const std::unique_ptr<RefusalClaim>& one) { return one->is_own(); };
  EXPECT_TRUE(told[0]->is_own());
  EXPECT_EQ(std::ranges::count_if(told, own), 1);
  EXPECT_EQ(std::ranges::count_if(untold, own), 1);
  in_threads({[&] { told.clear(); }, [&] { untold.clear(); }});  // whoever speaks waits a little
}

// A folder from which the large files were left out is enough to plan with.
TEST(Users, APlanNeedsNoWeights) {
  TempDir folder;
  fs::copy_file(model_of("llama") + "/config.json", folder / "config.json");
  const Outcome whole = call({"plan", "--hf", model_of("llama")}, ""),
                bare = call({"plan", "--hf", folder.path()}, "");
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(bare.out, whole.out) << bare.err;
  std::ofstream(folder / "model.safetensors.index.json")
      << R"({"weight_map": {"model.embed_tokens.weight": "model-00001-of-00002.safetensors"}})";
  EXPECT_EQ(call({"plan", "--hf", folder.path()}, "").out, whole.out);
  EXPECT_TRUE(whole.out.starts_with("1 rank: ")) << whole.out;
  EXPECT_NE(whole.out.find("60.1 k parameters; a step is 1 micro-batch of"), std::string::npos) << whole.out;
  const Outcome large = call({"plan"},
                             "--num-layers 126 --hidden-size 16384 --num-attention-heads 128 --seq-length 64"
                             " --max-position-embeddings 64 --vocab-size 128256 --lr 1");
  EXPECT_NE(large.out.find(" B parameters"), std::string::npos) << large.out << large.err;
}

// As a terminal of 50 columns shows it.
TEST(Users, HelpIsAsWideAsTheTerminal) {
  const int terminal = ::posix_openpt(O_RDWR | O_NOCTTY);
  ASSERT_GE(terminal, 0);
  ASSERT_EQ(::grantpt(terminal), 0);
  ASSERT_EQ(::unlockpt(terminal), 0);
  std::FILE* out = std::fopen(::ptsname(terminal), "w");
  ASSERT_NE(out, nullptr);
  const winsize size{.ws_row = 24, .ws_col = 50, .ws_xpixel = 0, .ws_ypixel = 0};
  ASSERT_EQ(::ioctl(fileno(out), TIOCSWINSZ, &size), 0);
  const Command one{"one", "does a single thing",
                    [] {
                      return std::string("usage: megatron one\n\n") + std::string(30, 'a') + " " +
                             std::string(30, 'b') + "\n";
                    },
                    [](Invocation&) { return 0; }};
  Capture err;
  EXPECT_EQ(run_cli({&one, 1}, {"one", "--help"}, out, err.file()), 0);
  std::fflush(out);
  std::string shown;
  char text[512];
  while (shown.find('b') == std::string::npos || !shown.ends_with("\n")) {  // it comes in parts
    const ssize_t count = ::read(terminal, text, sizeof text);
    ASSERT_GT(count, 0) << shown;
    shown.append(text, static_cast<size_t>(count));
  }
  std::fclose(out);
  ::close(terminal);
  EXPECT_NE(shown.find(std::string(30, 'a') + "\r\n" + std::string(30, 'b')), std::string::npos) << shown;
}

TEST(Users, HelpMarksWhatIsMissingAndListsOwnFlagsFirst) {
  const std::string settings = call({"help", "settings"}, "").out;
  EXPECT_NE(settings.find("(not available yet: in_memory"), std::string::npos);
  for (const char* command : {"plan", "parity", "logits", "generate", "compare"}) {
    const std::string page = call({command, "--help"}, "").out;
    const size_t own = page.find("options:"), all = page.find("settings by Megatron's names");
    EXPECT_LT(own, all) << command;
    EXPECT_NE(own, std::string::npos) << command;
  }
}

// A rule is one of the settings that it joins, not of all that they are computed from.
TEST(Users, ExplainListsRulesOfTheSetting) {
  const std::string heads = call({"explain", "--num-attention-heads"}, "").out;
  EXPECT_NE(heads.find("key heads divide the query heads"), std::string::npos) << heads;
  const char* lengths = "model and data have one sequence length";
  EXPECT_EQ(heads.find(lengths), std::string::npos) << heads;
  EXPECT_NE(call({"explain", "--seq-length"}, "").out.find(lengths), std::string::npos);
}

TEST(Users, RowsThatAreLongerThanLearnedPositions) {
  TempDir folder;
  const std::string rows = token_file(folder, {2, 2, 81});
  const std::string why = "a row has 80 tokens, this model has learned positions for 64; use shorter rows";
  expect_refused(call({"finetune", "--hf", model_of("gpt2"), "--replay", rows + ":tokens"},
                      "--micro-batch-size 1 --global-batch-size 2 --lr 1e-3 --device cpu"),
                 why);
  const std::string row = token_file(folder, {1, 80});
  expect_refused(
      call({"logits", "--hf", model_of("gpt2"), "--tokens", row, "--out", folder / "out.safetensors"},
           "--device cpu"),
      why);
}

// By name, not as a tensor that no file holds.
TEST(Users, SettingsThatContradictAFolder) {
  const auto tune = [](const std::string& more) {
    return call(
        {"finetune", "--hf", model_of("llama")},
        "--mock-data --train-iters 1 --seq-length 8 --micro-batch-size 1 --global-batch-size 1 --lr 1e-3"
        " --device cpu " +
            more);
  };
  expect_refused(tune("--hidden-size 200"), "model.hidden_size = 200 (--hidden-size 200): the weights of ");
  expect_refused(tune("--num-experts 4"), "model.num_moe_experts = 4 (--num-experts 4): the weights of ");
  expect_refused(tune("--normalization LayerNorm"), "have RMSNorm; leave it out");
  expect_refused(tune("--add-qkv-bias"), "model.add_qkv_bias = true (--add-qkv-bias): the weights of ");
  EXPECT_EQ(tune("--swiglu --normalization RMSNorm --rotary-base 500").code, 0);

  TempDir folder;
  ASSERT_EQ(call({"convert", "import", "--hf", model_of("llama"), "--out", folder / "c"}, "").code, 0);
  expect_refused(
      call({"finetune", "--load", folder / "c"},
           "--finetune --num-layers 2 --hidden-size 200 --num-attention-heads 4 --vocab-size 192 --mock-data "
           "--train-iters 1 --seq-length 8 --max-position-embeddings 8 --micro-batch-size 1 "
           "--global-batch-size 1 --lr 1e-3 --device cpu"),
      "is of another model: hidden_size is 48 there and 200 here");
}

// The weight of the one expert is 1, as in the model's own library; nothing is to be added to the command.
TEST(Users, AMixtralWithOneExpertAToken) {
  TempDir folder;
  fs::copy(model_of("mixtral"), folder / "one");
  Json config = Json::read(folder / "one/config.json");
  config["num_experts_per_tok"] = 1;
  std::ofstream(folder / "one/config.json") << config.dump();
  const Outcome text =
      call({"generate", "--hf", folder / "one"}, "--prompt-ids 3,4 --max-new-tokens 2 --device cpu");
  EXPECT_EQ(text.code, 0) << text.err;
  const Outcome tuned =
      call({"finetune", "--hf", folder / "one"},
           "--mock-data --train-iters 1 --seq-length 8 --micro-batch-size 1 --global-batch-size 1 "
           "--lr 1e-3 --device cpu");
  EXPECT_EQ(tuned.code, 0) << tuned.err;
}

// A run from an imported checkpoint hands on what came with the model, also where a fault or another start
// comes between.
TEST(Users, ATrainedImportGoesBackToHuggingFace) {
  TempDir folder;
  ASSERT_EQ(call({"convert", "import", "--hf", model_of("llama"), "--out", folder / "c"}, "").code, 0);
  const auto tune = [&](const std::string& from, const std::string& more) {
    return call({"-q", "finetune", "--use-checkpoint-args", "--load", from, "--save", folder / "tuned"},
                "--mock-data --seq-length 8 --micro-batch-size 1 --global-batch-size 2 --lr 1e-3"
                " --lr-decay-style constant --device cpu " +
                    more);
  };
  const auto export_to = [&](const std::string& out) {
    const Outcome outcome =
        call({"convert", "export", "--ckpt", folder / "tuned", "--out", folder / out}, "");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(testing::read_text(folder / (out + "/config.json")),
              testing::read_text(model_of("llama") + "/config.json"));
  };
  Outcome outcome = tune(folder / "c", "--finetune --train-iters 2");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  export_to("first");
  outcome = tune(folder / "tuned", "--train-iters 5 --inprocess-restart --inject-fault throw@0:4");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  export_to("second");
}

TEST(Users, ATokenizerStaysWithItsModel) {
  TempDir folder;
  std::ofstream(folder / "text") << "the checkpoint keeps the tokenizer that the text was made with\n";
  ASSERT_EQ(
      call({"tokenizer", "train", "--input", folder / "text", "--out", folder / "tok"}, "--vocab-size 270")
          .code,
      0);
  const auto train = [&](const std::string& tokenizer, const std::string& out, const std::string& more) {
    return call({"-q", "pretrain", "--tokenizer-model", tokenizer, "--save", out},
                "--tokenizer-type HuggingFaceTokenizer --mock-data --num-layers 2 --hidden-size 16"
                " --num-attention-heads 2 --seq-length 8 --max-position-embeddings 16 --micro-batch-size 1"
                " --global-batch-size 2 --train-iters 1 --lr 1e-3 --device cpu " +
                    more);
  };
  const auto write = [&](const std::string& checkpoint) {
    return call({"generate", "--ckpt", checkpoint}, "--prompt the --max-new-tokens 2");
  };
  for (const char* tokenizer : {"tok", "tok/tokenizer.json"}) {
    const std::string out = folder / (std::string(tokenizer) == "tok" ? "folder" : "file");
    const Outcome run = train(folder / tokenizer, out, "");
    ASSERT_EQ(run.code, 0) << run.err;
    const Outcome text = write(out);
    EXPECT_EQ(text.code, 0) << text.err;
    EXPECT_TRUE(text.out.starts_with("the")) << text.out;
  }
  ASSERT_EQ(train(folder / "tok", folder / "without", "--no-save-tokenizer-assets").code, 0);
  expect_refused(write(folder / "without"), "no tokenizer came with ");
}

// A checkpoint that says nothing of the end of a text was trained on documents that its tokenizer ends.
TEST(Users, ATextEndsWhereItsTokenizerEndsDocuments) {
  TempDir folder;
  std::ofstream rows(folder / "rows.jsonl");
  for (int i = 0; i < 300; ++i) rows << "{\"text\": \"a\"}\n";
  rows.close();
  const std::string tokenizer =
      " --tokenizer-type HuggingFaceTokenizer --tokenizer-model " + folder / "tok" + " ";
  for (const std::string& words :
       {"tokenizer train --vocab-size 257 --input " + folder / "rows.jsonl" + " --out " + folder / "tok",
        "preprocess --append-eod --input " + folder / "rows.jsonl" + " --output-prefix " + folder / "d" +
            tokenizer,
        "pretrain --num-layers 2 --hidden-size 16 --num-attention-heads 2 --seq-length 8 --split 1,0,0"
        " --max-position-embeddings 16 --micro-batch-size 2 --global-batch-size 2 --train-iters 30 --lr 1e-2"
        " --attention-dropout 0 --hidden-dropout 0 --device cpu --data-path " +
            folder / "d_text_document" + " --save " + folder / "c" + tokenizer}) {
    const Outcome outcome = call({"-q"}, words);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
  }
  const auto ids = [&](const std::string& more) {
    const Outcome outcome = call({"generate", "--ckpt", folder / "c"},
                                 "--prompt a --json --max-new-tokens 3 --device cpu " + more);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return Json::parse(outcome.out, "answer").at("ids").dump();
  };
  EXPECT_EQ(ids(""), "[0]");
  EXPECT_EQ(ids("--ignore-eos").substr(0, 3), "[0,");
}

// Its checkpoint is read in fp32, where that setting asks for nothing.
TEST(Users, AnFp32StreamOfABf16Run) {
  TempDir folder;
  const Outcome run = pretrain(
      "-q --seq-length 8 --mock-data --train-iters 1 --bf16 "
      "--fp32-residual-connection --save " +
      folder / "c");
  ASSERT_EQ(run.code, 0) << run.err;
  const Outcome text = call({"generate", "--ckpt", folder / "c"}, "--prompt-ids 1,2 --max-new-tokens 2");
  EXPECT_EQ(text.code, 0) << text.err;
}

// What an earlier conversion that was killed has left is in nobody's way.
TEST(Users, LeftoversOfAnExport) {
  TempDir folder;
  ASSERT_EQ(call({"convert", "import", "--hf", model_of("llama"), "--out", folder / "c"}, "").code, 0);
  fs::create_directories(folder / "hf.partial/deep");
  std::ofstream(folder / "hf.partial/deep/file") << "x";
  const Outcome outcome = call({"convert", "export", "--ckpt", folder / "c", "--out", folder / "hf"}, "");
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_TRUE(fs::exists(folder / "hf/config.json"));
}

}  // namespace
}  // namespace megatron
