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
  const auto resolved = [&](const char* name) {
    const std::vector<std::string> words = {"-tp",     "2", "--sequence-parallel",   "--tp-comm-overlap",
                                            "--ranks", "2", "--tp-comm-overlap-cfg", folder / name};
    return resolve(read_sources(parse_command_line(words)),
                   {.purpose = Purpose::inspect, .allow_unavailable = true});
  };
  EXPECT_EQ(resolved("good.yaml").config.parallel.tp_comm_overlap_cfg, folder / "good.yaml");
  EXPECT_THROW(resolved("bad.yaml"), Refused);
  EXPECT_THROW(resolved("absent.yaml"), Refused);
}

}  // namespace
}  // namespace megatron
