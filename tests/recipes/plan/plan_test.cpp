// What plan --recipe tells: each recipe fits the GPUs that it names, or is listed with the reason why it does
// not.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <sstream>

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/training/plan/plan.h"
#include "megatron/training/setup/run_settings.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// "name<tab>a part of the reason"
std::map<std::string, std::string> read_exceptions() {
  std::map<std::string, std::string> result;
  std::istringstream text(read_text_file(MEGATRON_SOURCE_DIR "/tests/recipes/plan/does_not_fit.tsv"));
  for (std::string line; std::getline(text, line);)
    if (const size_t tab = line.find('\t'); !line.starts_with('#') && tab != std::string::npos)
      result[line.substr(0, tab)] = line.substr(tab + 1);
  return result;
}

struct Verdict {
  std::string refusal;  // "" where it fits
  double share = 0;     // of the GPU's memory
};

// A few micro-batches need the memory of all.
Verdict verdict(const Recipe& recipe) {
  Verdict result;
  try {
    Sources sources;
    sources.recipe = read_recipe(recipe.name);
    sources.processes = recipe.gpus;
    const Resolved resolved = resolve(sources, {.purpose = Purpose::model});
    const ParallelSizes sizes = parallel_sizes(resolved.config, recipe.gpus);
    const RunPlan plan = plan_memory(resolved.config, sizes, model_dtype(resolved.config));
    const double memory = autotune::gpu_spec(recipe.gpu).memory_gib * (1 << 30);
    result.share = plan.largest().bytes() / memory;
    check_fits(resolved.config, plan, memory);
  } catch (const Error& error) {
    result.refusal = error.what();
  }
  return result;
}

TEST(RecipePlan, FitsOrSaysWhyNot) {
  std::map<std::string, std::string> exceptions = read_exceptions();
  size_t fits = 0;
  for (const Recipe& recipe : all_recipes()) {
    if (!recipe.needs.empty()) continue;
    const bool tiny = recipe.is_tiny();
    const Verdict found = tiny ? Verdict{} : verdict(recipe);
    fits += found.refusal.empty() && !tiny;
    const auto exception = exceptions.find(recipe.name);
    const std::string expected = exception == exceptions.end() ? "" : exception->second;
    if (exception != exceptions.end()) exceptions.erase(exception);
    if (std::abs(found.share - 1) < 0.05) continue;  // a little more or less of anything decides
    EXPECT_EQ(found.refusal.empty(), expected.empty()) << recipe.name << ": " << found.refusal;
    EXPECT_NE(found.refusal.find(expected), std::string::npos) << recipe.name << ": " << found.refusal;
  }
  for (const auto& [name, reason] : exceptions) ADD_FAILURE() << name << " is no recipe";
  EXPECT_GT(fits, 100u);
}

TEST(RecipePlan, CommandTakesTheGpusOfTheRecipe) {
  const Outcome fits = run_command({"plan", "--recipe", "llama32_1b_sft_1gpu_h100_bf16"});
  EXPECT_EQ(fits.code, 0) << fits.err;
  EXPECT_EQ(fits.out.find("1 rank: "), 0u) << fits.out;
  const Outcome more =
      run_command({"plan", "--recipe", "llama32_1b_sft_1gpu_h100_bf16", "--world-size", "4"});
  EXPECT_EQ(more.out.find("4 ranks: "), 0u) << more.out << more.err;
  const Outcome large =
      run_command({"plan", "--recipe", "llama3_8b_pretrain_2gpu_h100_bf16", "--global-batch-size", "4"});
  EXPECT_EQ(large.code, 1);
  EXPECT_NE(large.err.find("GiB and 79.60 are there"), std::string::npos) << large.err;
}

}  // namespace
}  // namespace megatron
