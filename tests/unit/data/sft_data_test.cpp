// --sft from files to losses: packed or not, on one rank or many, the same.
#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/datasets/parquet/parquet_writer.h"
#include "megatron/models/decoder_shape.h"
#include "megatron/training/parity.h"
#include "megatron/training/run/run_data.h"
#include "support/capture.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::TempDir;
using testing::write_text;

constexpr int64_t kVocab = 256, kLength = 48, kRows = 12;

constexpr const char* kTemplate =
    "{% for m in messages %}{% if m.role == 'assistant' %}A:{% generation %}{{ m.content }};{% endgeneration "
    "%}{% else %}U:{{ m.content }};{% endif %}{% endfor %}";

// Conversations of unequal lengths, one of them longer than a row.
std::string write_chats(const TempDir& dir, const std::string& name = "chat.jsonl") {
  std::string text;
  for (int64_t i = 0; i < kRows; ++i) {
    const std::string answer =
        std::string(static_cast<size_t>(2 + i * 5 % 11 + (i == 7 ? 60 : 0)), static_cast<char>('a' + i));
    text += fmt::format(
        R"({{"messages": [{{"role": "user", "content": "q{}"}}, {{"role": "assistant", "content": "{}"}}]}})",
        i, answer);
    text += i == 3 ? "\n\n" : "\n";  // a blank line is no row
  }
  write_text(dir / name, text);
  write_text(dir / "template.jinja", kTemplate);
  return dir / name;
}

Config sft_run(const TempDir& dir, const std::string& path) {
  Config config;
  config.model = llama_style(
      {.layers = 2, .hidden = 32, .heads = 4, .groups = 2, .ffn = 64, .vocab = kVocab, .length = kLength});
  config.model.make_vocab_size_divisible_by = 1;
  config.model.calculate_per_token_loss = true;
  config.train.micro_batch_size = 1;
  config.train.global_batch_size = kRows;
  config.train.train_iters = 2;
  config.tokenizer.tokenizer_type = TokenizerKind::byte_level;
  config.tokenizer.vocab_size = kVocab;
  config.tokenizer.chat_template = dir / "template.jinja";
  config.dataset.sft = true;
  config.dataset.data_path = {path};
  config.dataset.split = "1,0,0";
  return config;
}

std::vector<Batch> whole_step(const Config& config) {
  const Shares shares = Shares::even(config.train.global_batch_size, config.train.micro_batch_size, 1);
  return run_data(config).train->step({0, 0, shares.of_replica[0]});
}

// The text of what is learned, rows and sequences end to end.
std::string learned(const std::vector<Batch>& batches) {
  std::string text;
  for (const Batch& batch : batches)
    for (int64_t label : batch.labels)
      if (label >= 0) text += static_cast<char>(label);
  return text;
}

TEST(SftData, AnswersAloneAreLearned) {
  TempDir dir;
  Config config = sft_run(dir, write_chats(dir));
  const std::vector<Batch> batches = whole_step(config);
  ASSERT_EQ(batches.size(), static_cast<size_t>(kRows));
  EXPECT_EQ(learned({batches[0]}), "aa;");
  EXPECT_EQ(learned({batches[1]}), "bbbbbbb;");
  EXPECT_EQ(batches[7].ids.size(), static_cast<size_t>(kLength));  // cut
  config.dataset.answer_only_loss = false;
  EXPECT_EQ(learned({whole_step(config)[0]}), ":q0;A:aa;");
}

TEST(SftData, PromptsAndCompletionsEndWithEos) {
  TempDir dir;
  write_text(dir / "pairs.jsonl",
             "{\"input\": \"2+2=\", \"output\": \"4\"}\n{\"prompt\": \"a\", \"completion\": \"bc\"}\n");
  Config config = sft_run(dir, dir / "pairs.jsonl");
  config.tokenizer.chat_template.clear();
  config.train.global_batch_size = 2;
  const std::vector<Batch> batches = whole_step(config);
  EXPECT_EQ(learned({batches[0]}), std::string("4\0", 2));
  EXPECT_EQ(learned({batches[1]}), std::string("bc\0", 3));
}

// The same rows give the same loss and gradients, however they share rows of the batch.
TEST(SftData, PackedAndUnpackedAreTheSame) {
  TempDir dir;
  const std::string path = write_chats(dir);
  const auto trained = [&](Packing packing, int64_t micro, ParallelSizes sizes = {},
                           DType dtype = DType::F64) {
    Config config = sft_run(dir, path);
    config.dataset.packing = packing;
    config.dataset.packed_metadata = dir / "packed.json";
    config.parallel.variable_seq_lengths = packing == Packing::batch;
    config.parallel.tensor_model_parallel_size = sizes.tp;
    config.parallel.pipeline_model_parallel_size = sizes.pp;
    config.parallel.context_parallel_size = sizes.cp;
    config.train.micro_batch_size = micro;
    config.run.world_size = sizes.world;
    RunData data = run_data(config);
    if (packing == Packing::offline) {  // a step reads every bin once
      const Json metadata = Json::read(dir / "packed.json")[0];
      config.train.global_batch_size =
          static_cast<int64_t>(static_cast<double>(kRows) / metadata.at("packing_factor").as_double() + 0.5);
      EXPECT_LT(config.train.global_batch_size, kRows);
    }
    return train_layout(config, {.sizes = sizes, .dtype = dtype, .source = data.train}, {{}});
  };
  const TrainedLayout plain = trained(Packing::none, 1);
  const auto expect_same = [&](const char* name, const TrainedLayout& other) {
    SCOPED_TRACE(name);
    EXPECT_NEAR(other.losses[0], plain.losses[0], 1e-12 * plain.losses[0]);
    EXPECT_NEAR(other.grad_norms[0], plain.grad_norms[0], 1e-11 * plain.grad_norms[0]);
    const TensorDifference apart = largest_difference(plain.gradients, other.gradients);
    EXPECT_LT(apart.worst, 1e-10) << apart.where;
  };
  expect_same("micro-batches of 3", trained(Packing::none, 3));
  expect_same("batch", trained(Packing::batch, 4));
  expect_same("offline", trained(Packing::offline, 1));
  const ParallelSizes layout{.world = 4, .tp = 2, .pp = 2};
  expect_same("tp2 pp2", trained(Packing::none, 2, layout));
  expect_same("batch, tp2 pp2", trained(Packing::batch, 3, layout));
  expect_same("offline, tp2 pp2", trained(Packing::offline, 1, layout));
  expect_same("batch, cp2", trained(Packing::batch, 4, {.world = 2, .cp = 2}));

  const double single = trained(Packing::none, 1, {}, DType::F32).losses[0];
  EXPECT_NEAR(single, plain.losses[0], 1e-5);
  const auto expect_loss = [&](const char* name, const TrainedLayout& other) {
    EXPECT_NEAR(other.losses[0], single, 1e-6) << name;
  };
  expect_loss("batch, fp32", trained(Packing::batch, 4, {}, DType::F32));
  expect_loss("offline, fp32", trained(Packing::offline, 1, {}, DType::F32));
  expect_loss("batch, tp2 pp2, fp32", trained(Packing::batch, 3, layout, DType::F32));
  expect_loss("offline, tp2 pp2, fp32", trained(Packing::offline, 1, layout, DType::F32));
}

TEST(SftData, ReadsPackedFiles) {
  TempDir dir;
  write_chats(dir);
  ParquetWriter writer(dir / "packed.parquet", {{"input_ids", ParquetKind::int32_list},
                                                {"loss_mask", ParquetKind::int32_list},
                                                {"seq_start_id", ParquetKind::int32_list}});
  const std::vector<std::variant<ParquetWriter::Texts, ParquetWriter::Lists>> columns = {
      ParquetWriter::Lists{{10, 11, 12, 20, 21}}, ParquetWriter::Lists{{0, 1, 0, 1, 0}},
      ParquetWriter::Lists{{0, 3}}};
  writer.write_rows(columns);
  writer.commit();
  Config config = sft_run(dir, dir / "packed.parquet");
  config.dataset.packing = Packing::offline;
  config.train.global_batch_size = 1;
  const std::vector<Batch> batches = whole_step(config);
  EXPECT_EQ(batches[0].lengths, (std::vector<int64_t>{2, 1, kLength - 3}));
  EXPECT_EQ(std::vector<int64_t>(batches[0].labels.begin(), batches[0].labels.begin() + 4),
            (std::vector<int64_t>{kIgnoredLabel, 12, 21, kIgnoredLabel}));
}

TEST(SftData, MegatronsFormatPacksConversationsOfARow) {
  TempDir dir;
  write_text(
      dir / "rows.jsonl",
      "{\"messages\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}, "
      "{\"role\": \"assistant\", \"content\": \"yes\"}, {\"role\": \"system\", \"content\": \"t\"}]}\n");
  write_chats(dir);
  Config config = sft_run(dir, dir / "rows.jsonl");
  config.train.global_batch_size = 1;
  config.dataset.sft_tokenizer_prompt_format = "default";
  const std::vector<Batch> batches = whole_step(config);
  ASSERT_EQ(batches[0].lengths.size(), 2u);
  EXPECT_EQ(batches[0].lengths[0], static_cast<int64_t>(std::string("U:s;U:u;A:yes;").size()));
  config.dataset.sft_tokenizer_prompt_format = "nemotron-h-aligned";
  EXPECT_THROW(whole_step(config), ConfigError);  // bytes have no token that pads
}

TEST(SftData, MegatronsFormatReadsSoManyRows) {
  TempDir dir;
  Config config = sft_run(dir, write_chats(dir));
  config.dataset.sft_tokenizer_prompt_format = "default";
  config.dataset.max_train_samples = 2;
  const std::vector<Batch> batches = whole_step(config);
  EXPECT_NE(batches[0].ids, batches[1].ids);
  EXPECT_EQ(batches[0].ids, batches[2].ids) << "the rows start again";
}

TEST(SftData, RowsWithoutAnswersAreNamedOnce) {
  TempDir dir;
  write_chats(dir);
  std::string rows;
  for (int i = 0; i < 9; ++i)
    rows += i == 1
                ? R"({"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]})"
                  "\n"
                : "{\"messages\": [{\"role\": \"user\", \"content\": \"only a question\"}]}\n";
  write_text(dir / "rows.jsonl", rows);
  for (Packing packing : {Packing::none, Packing::batch, Packing::offline}) {
    Config config = sft_run(dir, dir / "rows.jsonl");
    config.dataset.packing = packing;
    Capture told;
    const RunData data = run_data(config, Log(LogLevel::warning, told.file()));
    const Shares shares = Shares::even(kRows, 1, 1);
    for (int64_t step : {0, 1}) data.train->step({step, step * kRows, shares.of_replica[0]});
    const std::string text = told.text();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 5) << text;
    EXPECT_NE(text.find("rows.jsonl line 1: no token of this row is learned"), std::string::npos) << text;
    EXPECT_EQ(text.find("rows.jsonl line 2:"), std::string::npos) << text;
    EXPECT_NE(text.find("further such rows are not named"), std::string::npos) << text;
  }
}

// A prompt that is too long gives way to its answer.
TEST(SftData, LongPromptsKeepTheirAnswers) {
  TempDir dir;
  std::string rows;
  for (int64_t i = 0; i < kRows; ++i)
    rows += fmt::format("{{\"input\": \"{}\", \"output\": \"ab\"}}\n", std::string(200, 'x'));
  write_text(dir / "long.jsonl", rows);
  Config config = sft_run(dir, dir / "long.jsonl");
  config.tokenizer.chat_template.clear();
  const std::string text = learned(whole_step(config));
  EXPECT_EQ(std::count(text.begin(), text.end(), 'b'), kRows) << text;
}

// A split without rows is refused before anything is computed, however rows are packed.
TEST(SftData, EmptySplitsAreRefused) {
  TempDir dir;
  Config config = sft_run(dir, write_chats(dir));
  config.validation.eval_iters = config.validation.eval_interval = 1;
  config.dataset.split = "999,1,0";
  for (Packing packing : {Packing::none, Packing::batch, Packing::offline}) {
    config.dataset.packing = packing;
    EXPECT_THROW(run_data(config), ConfigError);
  }
}

TEST(SftData, RefusesByNameAndLine) {
  TempDir dir;
  write_chats(dir);
  write_text(dir / "bad.jsonl",
             "{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}\n\n{\"messages\": 3}\n");
  Config config = sft_run(dir, dir / "bad.jsonl");
  config.train.global_batch_size = 2;
  try {
    whole_step(config);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("bad.jsonl line 3"), std::string::npos) << error.what();
  }
  config = sft_run(dir, dir / "chat.jsonl");
  config.tokenizer.chat_template.clear();
  EXPECT_THROW(whole_step(config), ConfigError);
  config.tokenizer.chat_template = dir / "nowhere.jinja";
  EXPECT_THROW(run_data(config), ConfigError);
  config = sft_run(dir, dir / "nowhere.jsonl");
  EXPECT_THROW(run_data(config), Error);
}

}  // namespace
}  // namespace megatron
