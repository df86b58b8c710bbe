#include "megatron/config/resolve/tp_overlap_file.h"

#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/error.h"
#include "megatron/config/resolve/resolve.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using Method = TpOverlapFile::Method;

TEST(TpOverlapFile, IsReadAndWritten) {
  const TpOverlapFile file = TpOverlapFile::parse(
      "qkv_fprop: {method: ring_exchange, aggregate: 1}\n"
      "qkv_dgrad: {method: bulk, num_sm: 4, set_sm_margin: 0}\n"
      "proj_fprop: {method: pipeline, num_splits: 8, num_sm: 32}\n"
      "fc2_wgrad: {method: bulk}\n"
      "fc1_dgrad: {method: none}\n",
      "file");
  EXPECT_EQ(file.qkv.fprop.method, Method::ring_exchange);
  EXPECT_TRUE(file.qkv.fprop.aggregate);
  EXPECT_EQ(file.qkv.dgrad.method, Method::bulk);
  EXPECT_EQ(file.proj.fprop.method, Method::pipeline);
  EXPECT_EQ(file.proj.fprop.splits, 8);
  EXPECT_EQ(file.fc1.dgrad.method, Method::none);
  EXPECT_EQ(file.fc1.fprop.method, Method::unset);
  ASSERT_EQ(file.notes.size(), 2u);
  EXPECT_NE(file.notes[0].find("fc2_wgrad"), std::string::npos) << file.notes[0];
  EXPECT_NE(file.notes[1].find("num_sm, set_sm_margin has no effect"), std::string::npos) << file.notes[1];
  const TpOverlapFile again = TpOverlapFile::parse(file.text(), "again");
  EXPECT_EQ(again.text(), file.text());
  EXPECT_TRUE(again.notes.empty());
  EXPECT_EQ(TpOverlapFile::parse("", "empty").text(), "");
}

TEST(TpOverlapFile, FieldsThatDoNotActAreNoted) {
  const auto notes = [](const char* text) { return TpOverlapFile::parse(text, "f").notes; };
  using Notes = std::vector<std::string>;
  for (const char* gemm : {"qkv_dgrad", "fc1_dgrad", "proj_fprop", "fc2_fprop"}) {
    const std::string text = std::string(gemm) + ": {method: ring_exchange, aggregate: true}";
    EXPECT_EQ(notes(text.c_str()), (Notes{std::string("f: ") + gemm +
                                          ".aggregate has no effect: no blocks are gathered around a ring"}));
  }
  EXPECT_EQ(notes("fc1_fprop: {method: none, aggregate: 1}").size(), 1u);
  EXPECT_EQ(notes("fc1_fprop: {aggregate: 1}"), Notes{});
  EXPECT_EQ(notes("fc2_dgrad: {method: ring_exchange, aggregate: 1}"), Notes{});
  EXPECT_EQ(notes("qkv_dgrad: {method: bulk, aggregate: 0}"), Notes{});
  EXPECT_EQ(notes("fc2_fprop: {method: ring_exchange, num_splits: 2}"),
            (Notes{"f: fc2_fprop.num_splits has no effect without method: pipeline"}));
  EXPECT_EQ(notes("fc2_fprop: {num_splits: 2, method: pipeline}"), Notes{});
}

// A launch script goes on where its file was not brought along: the file tunes speed alone.
TEST(TpOverlapFile, AMissingFileIsNoted) {
  const TpOverlapFile file = TpOverlapFile::read("no/such/file.yaml");
  EXPECT_EQ(file.text(), "");
  EXPECT_EQ(file.notes, (std::vector<std::string>{"no/such/file.yaml: there is no such file; linears overlap "
                                                  "as without --tp-comm-overlap-cfg"}));
}

TEST(TpOverlapFile, MalformedFilesAreRejectedByName) {
  const auto why = [](const char* text) {
    try {
      TpOverlapFile::parse(text, "f.yaml");
    } catch (const ConfigError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(why("qkv_bprop: {method: bulk}").substr(0, 33), "f.yaml: qkv_bprop: is no GEMM (kn");
  EXPECT_EQ(why("qkv_fprop: {method: bulk}"),
            "f.yaml: qkv_fprop.method: cannot be \"bulk\" (it can be none, ring_exchange)");
  EXPECT_EQ(why("fc2_dgrad: {method: 3}"),
            "f.yaml: fc2_dgrad.method: cannot be 3 (it can be none, ring_exchange)");
  EXPECT_EQ(why("fc2_fprop: {num_splits: 0}"), "f.yaml: fc2_fprop.num_splits: needs 1 to 64 (got 0)");
  EXPECT_EQ(why("fc2_fprop: {speed: 1}"), "f.yaml: fc2_fprop.speed: is no field of an overlap");
  EXPECT_EQ(why("fc2_fprop: ring_exchange"), "f.yaml: fc2_fprop: is \"ring_exchange\", not a mapping");
  EXPECT_EQ(why("- a"), "f.yaml: is no mapping of GEMMs");
}

TEST(TpOverlapFile, RunsAreToldOfTheirFile) {
  const testing::TempDir folder;
  std::ofstream(folder / "good.yaml") << "fc1_wgrad: {method: bulk, num_sm: 8}\n";
  std::ofstream(folder / "bad.yaml") << "fc1_wgrad: {method: ring_exchange}\n";
  std::ofstream(folder / "ring.yaml") << "qkv_fprop: {method: ring_exchange, aggregate: true}\n";
  std::ofstream(folder / "parts.yaml") << "fc2_fprop: {method: pipeline, num_splits: 4}\n";
  const auto resolved = [&](const char* name, const std::string& tp = "2",
                            const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"-tp",     tp, "--sequence-parallel",   "--tp-comm-overlap",
                                      "--ranks", tp, "--tp-comm-overlap-cfg", folder / name};
    words.insert(words.end(), more.begin(), more.end());
    return resolve(read_sources(parse_command_line(words)),
                   {.purpose = Purpose::inspect, .allow_unavailable = true});
  };
  EXPECT_EQ(resolved("good.yaml").config.parallel.tp_comm_overlap_cfg, folder / "good.yaml");
  const auto notes = [&](const char* name, const std::string& tp, const std::vector<std::string>& more) {
    std::string text;
    for (const std::string& note : resolved(name, tp, more).notes) text += note + "\n";
    return text;
  };
  const std::vector<std::string> model = {"--num-layers",          "2", "--hidden-size", "96",
                                          "--num-attention-heads", "12"};
  EXPECT_NE(notes("ring.yaml", "2", model).find("qkv_fprop.aggregate: 2 ranks have all blocks at once"),
            std::string::npos);
  EXPECT_NE(notes("ring.yaml", "3", model).find("qkv_fprop.aggregate has no effect on 3 ranks"),
            std::string::npos);
  EXPECT_EQ(notes("ring.yaml", "4", model).find("aggregate"), std::string::npos);
  const auto fp8 = [&](const char* length) {
    std::vector<std::string> more = model;
    for (const char* word : {"--bf16", "--fp8-format", "e4m3", "--fp8-recipe", "tensorwise",
                             "--micro-batch-size", "1", "--seq-length", length})
      more.emplace_back(word);
    return notes("parts.yaml", "2", more);
  };
  EXPECT_NE(fp8("64").find("fc2_fprop.num_splits = 4: parts of 32 rows are too small for fp8"),
            std::string::npos)
      << fp8("64");
  EXPECT_EQ(fp8("128").find("num_splits"), std::string::npos);
  EXPECT_THROW(resolved("bad.yaml"), Refused);
  EXPECT_NE(notes("absent.yaml", "2", model).find("absent.yaml: there is no such file"), std::string::npos);
}

}  // namespace
}  // namespace megatron
