// Runs tests/text/devices/*.yaml: settings and GPUs, and the lines with which a step on the meta device
// refuses them, or values that it accepts.
#include <gtest/gtest.h>

#include "megatron/config/schema/value.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/plan/plan.h"
#include "text/config/advice.h"

namespace megatron::testing {
namespace {

constexpr const char* kSmallModel = R"(
model: {num_layers: 4, hidden_size: 64, num_attention_heads: 4, seq_length: 32, max_position_embeddings: 16777216}
tokenizer: {tokenizer_type: NullTokenizer, vocab_size: 128}
train: {micro_batch_size: 1}
)";

Sources sources_on_a_small_model(const Json& test) {
  Sources sources = sources_of(test);
  sources.file = ConfigText{"small.yaml", kSmallModel};
  return sources;
}

Resolved resolve_for_gpus(const Sources& sources, const Json& test) {
  return resolve(sources, {.purpose = Purpose::model, .gpus = [gpus = gpus_of(test)] { return gpus; }});
}

std::vector<Problem> problems_of(const Sources& sources, const Json& test) {
  try {
    const Resolved resolved = resolve_for_gpus(sources, test);
    check_gpus(resolved);
    return launch_problems(resolved, plan_run(resolved).refusals);
  } catch (const Refused& refused) {
    return refused.problems();
  }
}

void run_case(const Json& test) {
  const Sources sources = sources_on_a_small_model(test);
  std::string said, expected;
  for (const Problem& problem : problems_of(sources, test)) said += problem.text() + "\n";
  if (const Json* errors = test.find("errors"))
    for (const Json& line : errors->as_array()) expected += line.as_string() + "\n";
  EXPECT_EQ(said, expected);
  const Json* values = test.find("values");
  EXPECT_EQ(values != nullptr, expected.empty()) << "a case has either errors or values";
  if (!values || !said.empty()) return;
  Config config = resolve_for_gpus(sources, test).config;
  for (const auto& [name, value] : values->as_object()) {
    const Catalog::Entry* entry = Catalog::all().find(name);
    ASSERT_NE(entry, nullptr) << name;
    EXPECT_EQ(read_value(*entry->setting, entry->section->object(config)).dump(), value.dump()) << name;
  }
}

TEST(DeviceText, AllCases) {
  size_t count = 0;
  for (const TextFile& file : text_files("devices"))
    for (const Json& test : file.cases.as_array()) {
      SCOPED_TRACE(test.at("name").as_string());
      run_case(test);
      ++count;
    }
  EXPECT_GE(count, 45u);
}

TEST(DeviceText, AdviceIsAccepted) {
  size_t followed = 0;
  for (const TextFile& file : text_files("devices"))
    for (const Json& test : file.cases.as_array()) {
      SCOPED_TRACE(test.at("name").as_string());
      const Sources sources = sources_on_a_small_model(test);
      const auto ask = [&](const Sources& given) { return problems_of(given, test); };
      for (const Problem& problem : ask(sources)) {
        const size_t ways = follow_all(problem, sources, ask);
        EXPECT_GT(ways, 0u) << "nobody can follow: " << problem.text();
        followed += ways;
      }
    }
  EXPECT_GT(followed, 30u);
}

}  // namespace
}  // namespace megatron::testing
