#include "megatron/autotune/machine/cluster.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

TEST(Cluster, KnowsEveryKind) {
  for (const char* name :
       {"A100", "H100", "H200", "B200", "B300", "GB200", "GB300", "RTX4090", "CPU", "h200"})
    EXPECT_GT(gpu_spec(name).tflops16, 0) << name;
  EXPECT_THROW(gpu_spec("H1000"), ConfigError);
}

TEST(Cluster, IsReadFromYaml) {
  const Cluster c = parse_cluster(
      "name: lab\ngpu: {like: H100, name: H100-PCIe, nvlink_gbs: 32}\nnodes: 4\n"
      "gpus_per_node: 2\nnvlink_domain: 2\nnic_gbs: 25\npod_nodes: 2\noversubscription: 3\n",
      "c.yaml");
  EXPECT_EQ(c.gpus(), 8);
  EXPECT_EQ(c.name, "lab");
  EXPECT_EQ(c.gpu.name, "H100-PCIe");
  EXPECT_EQ(c.gpu.tflops16, 989);
  EXPECT_EQ(c.gpu.nvlink_gbs, 32);
  EXPECT_EQ(place_group(c, 8, 1).domains, 4);
  EXPECT_DOUBLE_EQ(network_gbs(c, place_group(c, 8, 1), 1), 2 * 25 / 3.0);
  EXPECT_DOUBLE_EQ(network_gbs(c, place_group(c, 4, 1), 1), 2 * 25);
}

TEST(Cluster, RefusesWhatItCannotUse) {
  for (const char* text :
       {"nodes: 4\n", "gpu: H100\nnods: 4\n", "gpu: H100\nnodes: 0\n", "gpu: H100\nnodes: many\n",
        "gpu: [1]\n", "gpu: {name: X}\n", "gpu: H100\nnic_gbs: -1\n", "- a\n",
        "gpu: H100\nnodes: 1000000\ngpus_per_node: 1000\n", "gpu: {like: H100, sms: 1.5}\n",
        "gpu: {like: 3}\n", "gpu: H100\nname: [x]\n"})
    EXPECT_THROW(parse_cluster(text, "c.yaml"), Error) << text;
}

TEST(Cluster, ExamplesAreRead) {
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(MEGATRON_SOURCE_DIR "/examples/clusters")) {
    EXPECT_GT(read_cluster(entry.path().string()).gpus(), 0);
    ++files;
  }
  EXPECT_GE(files, 5);
}

}  // namespace
}  // namespace megatron::autotune
