#include "megatron/cli/doctor/doctor.h"

#include <gtest/gtest.h>

#include "unit/cli/run_command.h"

namespace megatron {
namespace {

Outcome run(std::vector<std::string> args) {
  args.insert(args.begin(), "doctor");
  return run_command(std::move(args));
}

Machine good_machine() {
  Machine machine{.system = "Linux", .cpu = "some CPU", .cores = 8, .usable_cores = 8};
  machine.features = {"avx2", "fma", "avx512f", "avx512bw"};
  machine.memory = machine.available_memory = uint64_t{64} << 30;
  machine.disks = {{"working folder", "/data", uint64_t{500} << 30}};
  machine.open_files = 65536;
  return machine;
}

const Finding* first_not_ok(const CheckList& list) {
  for (const Finding& finding : list.findings)
    if (finding.grade != Grade::Ok) return &finding;
  return nullptr;
}

// The one thing that is not right, which must come with advice.
void expect_only(const CheckList& list, Grade grade, const std::string& subject, const std::string& advice) {
  int others = -1;
  for (const Finding& finding : list.findings) others += finding.grade != Grade::Ok;
  const Finding* found = first_not_ok(list);
  ASSERT_NE(found, nullptr);
  EXPECT_EQ(others, 0);
  EXPECT_EQ(found->grade, grade) << found->text;
  EXPECT_EQ(found->subject, subject);
  EXPECT_NE(found->advice.find(advice), std::string::npos) << found->advice;
}

Environment variables(std::vector<std::pair<std::string, std::string>> set) {
  return [set = std::move(set)](const char* name) -> const char* {
    for (const auto& [key, value] : set)
      if (key == name) return value.c_str();
    return nullptr;
  };
}

TEST(Doctor, ThisMachineComputesTheKnownLosses) {
  const Outcome outcome = run({});
  const bool wrong = outcome.out.find("WRONG") != std::string::npos;  // its disk may be full, say
  EXPECT_EQ(outcome.code, wrong ? 3 : 0) << outcome.out << outcome.err;
  for (const char* line : {"ok     cpu fp64", "ok     cpu bf16", "ok     4 thread ranks"})
    EXPECT_NE(outcome.out.find(line), std::string::npos) << line << "\n" << outcome.out;
}

TEST(Doctor, JsonSaysTheSame) {
  const Outcome outcome = run({"--json", "--no-self-test"});
  const Json json = Json::parse(outcome.out);
  EXPECT_EQ(json.at("healthy").as_bool(), outcome.code == 0);
  EXPECT_EQ(json.at("sections")[0].at("findings")[0].at("subject").as_string(), "megatron");
}

Resolved model_of(const Config& config) {
  return {.config = config, .origins = std::vector<Origin>(Catalog::all().entries().size())};
}

TEST(Doctor, AModelsShapesGetKernelsAndAMemoryBound) {
  const std::vector<std::string> model = {"--no-self-test",
                                          "--num-layers",
                                          "2",
                                          "--hidden-size",
                                          "64",
                                          "--num-attention-heads",
                                          "4",
                                          "--seq-length",
                                          "32",
                                          "--max-position-embeddings",
                                          "32",
                                          "model.vocab_size=512",
                                          "--micro-batch-size",
                                          "1",
                                          "--device",
                                          "cpu"};
  Outcome outcome = run(model);
  EXPECT_EQ(outcome.code, 0) << outcome.out << outcome.err;
  EXPECT_NE(outcome.out.find("1 x 32 tokens, 4 heads of head_dim 16, causal, with dropout, fp32: own tiles"),
            std::string::npos)
      << outcome.out;

  Config large;
  large.model.num_layers = 2, large.model.hidden_size = 65536, large.model.num_attention_heads = 512;
  large.model.ffn_hidden_size = 4 * 65536, large.model.vocab_size = 512, large.model.seq_length = 8;
  large.run.device = DeviceChoice::cpu;
  expect_only(shape_section(model_of(large), {}, good_machine()), Grade::Wrong, "memory", "megatron plan");
  large.run.device = DeviceChoice::cuda;
  expect_only(shape_section(model_of(large), {}, good_machine()), Grade::Wrong, "device", "--device cpu");
}

// Found on the meta device, before a GPU is asked to compute.
TEST(Doctor, LaunchesThatGpusRefuse) {
  Config config;
  config.model.num_layers = 2, config.model.hidden_size = 65536, config.model.num_attention_heads = 512;
  config.model.kv_channels = 128, config.model.num_query_groups = 512;
  config.model.ffn_hidden_size = 4 * 65536, config.model.vocab_size = 512, config.model.seq_length = 8;
  Resolved resolved = model_of(config);
  resolved.gpus = {{90, 227 * 1024}};
  GpuReport report{
      true, 13000, 13000, "", {{"some GPU", 90, 132, size_t{100} << 30, size_t{99} << 30, {}, ""}}};
  expect_only(shape_section(resolved, report, good_machine()), Grade::Wrong, "kernels",
              "use a smaller width");
}

// Everything that decides about the kernel, as gpt-oss and Gemma-2 have it, and each kind of layer.
TEST(Doctor, AttentionIsThatOfTheModel) {
  Config config;
  config.model.num_layers = 4, config.model.hidden_size = 256, config.model.num_attention_heads = 4;
  config.model.num_query_groups = 2, config.model.kv_channels = 64, config.model.ffn_hidden_size = 512;
  config.model.vocab_size = 512, config.model.seq_length = 64, config.train.micro_batch_size = 2;
  config.model.window_size = {15, 0}, config.model.window_attn_skip_freq = Json(2);
  config.model.softmax_type = SoftmaxType::learnable;
  config.model.attn_logit_softcapping = 50;
  config.model.attention_dropout = 0;
  config.run.device = DeviceChoice::cpu;
  std::vector<std::string> found;
  for (const Finding& finding : shape_section(model_of(config), {}, good_machine()).findings)
    if (finding.subject == "attention") found.push_back(finding.text.substr(0, finding.text.find(':')));
  const std::string shape = "2 x 64 tokens, 4 heads of head_dim 64 on 2 KV heads, causal",
                    rest = ", scores capped at 50, with sinks, fp32";
  EXPECT_EQ(found, (std::vector<std::string>{shape + ", in a window of 16" + rest, shape + rest}));
}

TEST(Doctor, WrongUsageAndRefusedSettings) {
  EXPECT_EQ(run({"what"}).code, 2);
  const Outcome refused = run({"--num-layers", "2", "--hidden-size", "-4"});
  EXPECT_EQ(refused.code, 1);
  EXPECT_NE(refused.err.find("hidden_size"), std::string::npos) << refused.err;
}

TEST(Doctor, WhatIsWrongWithAMachine) {
  EXPECT_EQ(first_not_ok(machine_section(good_machine())), nullptr);
  Machine machine = good_machine();
  machine.features = {"f16c"};
  expect_only(machine_section(machine), Grade::Wrong, "instructions", "x86-64-v3");
  machine = good_machine();
  machine.features = {"avx2", "fma"};
  expect_only(machine_section(machine), Grade::Note, "instructions", "half");
  machine = good_machine();
  machine.disks[0].free_bytes = 1 << 20;
  expect_only(machine_section(machine), Grade::Wrong, "working folder", "--save");
  machine.disks[0].free_bytes = {};
  expect_only(machine_section(machine), Grade::Wrong, "working folder", "writable");
  machine = good_machine();
  machine.memory_limit = 1 << 20;
  expect_only(machine_section(machine), Grade::Wrong, "memory", "16 bytes a parameter");
  machine = good_machine();
  machine.open_files = 256;
  expect_only(machine_section(machine), Grade::Wrong, "open files", "ulimit");
  machine = good_machine();
  machine.cpu_quota = 2;
  expect_only(machine_section(machine), Grade::Note, "cores", "quota");
}

TEST(Doctor, WhatIsWrongWithGpus) {
  const GpuInfo hopper{"some GPU", 90, 132, size_t{100} << 30, size_t{99} << 30, {}, ""};
  GpuReport report{true, 13000, 13000, "", {hopper}};
  EXPECT_EQ(first_not_ok(gpu_section(report)), nullptr);
  EXPECT_EQ(first_not_ok(gpu_section({})), nullptr);
  expect_only(gpu_section({true, 0, 13000, "no driver", {}}), Grade::Note, "driver", "CPU");
  expect_only(gpu_section({true, 12020, 13000, "", {}}), Grade::Wrong, "driver", "newer driver");
  expect_only(gpu_section({true, 13000, 13000, "hidden", {}}), Grade::Wrong, "GPUs", "CUDA_VISIBLE_DEVICES");
  report.gpus[0].free_bytes = 1 << 30;
  expect_only(gpu_section(report), Grade::Note, "cuda:0", "nvidia-smi");
  report.gpus[0] = hopper;
  report.gpus[0].compute_capability = 75;
  expect_only(gpu_section(report), Grade::Wrong, "cuda:0", "--device cpu");
  report.gpus[0] = hopper;
  report.gpus[0].fault = "busy";
  expect_only(gpu_section(report), Grade::Wrong, "cuda:0", "another program");
}

TEST(Doctor, HowRanksWereStarted) {
  EXPECT_EQ(first_not_ok(rank_section(variables({}))), nullptr);
  EXPECT_EQ(first_not_ok(
                rank_section(variables({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}))),
            nullptr);
  expect_only(rank_section(variables({{"RANK", "1"}})), Grade::Note, "launch", "both");
  expect_only(rank_section(variables({{"RANK", "2"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}})),
              Grade::Wrong, "launch", "unset");
  expect_only(rank_section(variables({{"RANK", "1"}, {"WORLD_SIZE", "2"}})), Grade::Wrong, "launch", "unset");
}

TEST(Doctor, FeaturesOfAProcessor) {
  EXPECT_EQ(cpu_features("model name\t: X\nflags\t\t: fpu avx2 avx512f avx512_bf16 foo\n"),
            (std::vector<std::string>{"avx2", "avx512f", "avx512_bf16"}));
}

}  // namespace
}  // namespace megatron
