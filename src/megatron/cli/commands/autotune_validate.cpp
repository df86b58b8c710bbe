#include "megatron/cli/commands/autotune_parts.h"

#include <algorithm>
#include <cmath>
#include <fstream>

#include "megatron/autotune/fit/correct.h"
#include "megatron/autotune/report/search_page.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/commands/autotune_calibrate.h"
#include "megatron/cli/flags.h"
#include "megatron/config/help.h"

namespace megatron {

using namespace autotune;

namespace {

constexpr CommandFlag kValidateFlags[] = {
    {"--top", 1, "plans that are run [5]"},
    {"--steps", 1, "measured steps of each [5]"},
    {"--warmup", 1, "steps before them [2]"},
    {"--state", 1, "FILE of measured plans; a stopped validation goes on there"},
    {"--write-constants", 1, "calibration that agrees with what was measured"},
    {"--report", 1, "FILE.html: the plans, predicted against measured"},
    {"--out", 1, "where the recipe of the fastest goes [autotune.yaml]"},
};

std::vector<CommandFlag> validate_flags() {
  std::vector<CommandFlag> flags = autotune_calibrated_flags();
  flags.insert(flags.end(), std::begin(kValidateFlags), std::end(kValidateFlags));
  return flags;
}

// What earlier validations measured, by the text of the recipe.
class ValidationState {
 public:
  explicit ValidationState(std::string path) : path_(std::move(path)) {
    std::ifstream file(path_);
    for (std::string line; std::getline(file, line);) {
      try {
        const Json row = Json::parse(line, path_);
        known_[row.at("recipe").as_string()] = row.at("seconds").as_double();
      } catch (const std::exception&) {
        break;  // it was being written when the validation was stopped
      }
    }
  }
  std::optional<double> find(const std::string& recipe) const {
    const auto found = known_.find(recipe);
    return found == known_.end() ? std::nullopt : std::optional(found->second);
  }
  void add(const std::string& recipe, double seconds) const {
    if (path_.empty()) return;
    Json row = Json::object();
    row["recipe"] = recipe;
    row["seconds"] = seconds;
    std::ofstream(path_, std::ios::app) << row.dump() << "\n";
  }

 private:
  std::string path_;
  std::map<std::string, double> known_;
};

// The recipe without its comments, which hold predictions.
std::string settings_of(const std::string& recipe) {
  std::string text;
  for (size_t at = 0; at < recipe.size();) {
    const size_t end = std::min(recipe.find('\n', at), recipe.size() - 1) + 1;
    if (recipe[at] != '#') text += recipe.substr(at, end - at);
    at = end;
  }
  return text;
}

}  // namespace

std::string autotune_validate_help() {
  return "usage: megatron autotune validate [settings] --gpu KIND --gpus N [options]\n"
         "\n"
         "Searches, runs the best plans for a few steps on this machine, tells predicted and measured times\n"
         "and what the first pick loses, and corrects the constants. --gpu CPU: N ranks as threads; where\n"
         "each has a core, steps of small models give the constants first, unless --constants names them.\n" +
         autotune_flags_text(validate_flags()) + "\n" + settings_overview();
}

int run_autotune_validate(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, validate_flags());
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune validate: cannot make sense of '{}'", line.words[0]));
  const auto number = [&](const char* flag, int64_t otherwise, int64_t min, int64_t max) {
    const int64_t value = line.has(flag) ? parse_int("autotune validate", flag, line.get(flag)) : otherwise;
    if (value < min || value > max)
      throw UsageError(fmt::format("autotune validate: {} needs {} to {} (got {})", flag, min, max, value));
    return value;
  };
  const int64_t top = number("--top", 5, 1, 20), steps = number("--steps", 5, 1, 10000),
                warmup = number("--warmup", 2, 0, 10000);
  if (line.has("--report")) require_file_place("--report", line.get("--report"));
  PlanSetup setup = autotune_plan_setup(line);
  const int ranks = setup.cluster.gpus();
  if (ranks > 64)
    throw UsageError(fmt::format(
        "autotune validate: this machine cannot run {} ranks; give --gpus with the ranks that it has",
        ranks));
  calibrate_cpu_ranks(invocation, line, setup);
  SearchRequest request = search_request(setup, line);
  SearchResult result = search(request);
  if (result.best.empty()) throw ConfigError("autotune validate: no plan fits");
  Json given = given_settings(setup.resolved);
  const bool cpu = setup.cluster.gpu.name == "CPU";
  if (cpu) given["run"]["device"] = "cpu";
  const ValidationState state(line.get("--state", ""));
  Progress progress(invocation.log, "plans", top);
  std::vector<Candidate> tried;
  std::map<std::string, int> left_out;
  for (Candidate& candidate : result.best) {
    if (static_cast<int64_t>(tried.size()) == top) break;
    const std::string recipe = settings_of(recipe_text(given, setup.model, candidate, setup.cluster.name));
    candidate.measured = state.find(recipe);
    if (!candidate.measured) {
      try {
        candidate.measured = run_plan_steps(invocation.log, recipe, ranks, warmup, steps);
      } catch (const ConfigError& error) {
        ++left_out[error.what()];
        continue;
      }
      state.add(recipe, *candidate.measured);
    }
    tried.push_back(candidate);
    progress.update(static_cast<int64_t>(tried.size()), plan_text(candidate.plan));
  }
  progress.clear();
  if (tried.empty())
    throw ConfigError("autotune validate: none of the plans can be run here" +
                      (left_out.empty() ? std::string() : ": " + left_out.begin()->first));
  const Calibration better = corrected(request.in, tried);
  const CostInputs again{setup.model,      setup.cluster, request.in.stack,
                         better.constants, &better,       request.in.ops};
  const auto fastest =
      std::min_element(tried.begin(), tried.end(),
                       [](const Candidate& a, const Candidate& b) { return *a.measured < *b.measured; });
  const double loss = *tried[0].measured / *fastest->measured - 1;
  if (line.has("--write-constants"))
    write_file_atomically(line.get("--write-constants"), to_json(better).dump(1) + "\n");
  const std::string path = line.get("--out", "autotune.yaml");
  write_file_atomically(path, recipe_text(given, setup.model, *fastest, setup.cluster.name));
  if (line.has("--report")) {
    SearchResult shown = result;
    shown.best = tried;
    write_file_atomically(line.get("--report"), report::render(search_page(request, shown, path)));
  }
  if (line.has("--json")) {
    Json json = Json::object();
    Json& rows = json["plans"] = Json::array();
    for (const Candidate& c : tried) {
      Json row = Json::object();
      row["plan"] = plan_text(c.plan);
      row["predicted_ms"] = c.prediction.seconds * 1e3;
      row["measured_ms"] = *c.measured * 1e3;
      row["corrected_ms"] = predict(again, c.plan).seconds * 1e3;
      rows.push_back(std::move(row));
    }
    json["loss_of_first"] = loss;
    json["fastest"] = plan_text(fastest->plan);
    json["recipe"] = path;
    fmt::print(invocation.out, "{}\n", json.dump(1));
    return 0;
  }
  fmt::print(invocation.out, "{:>2} {:<38}{:>12}{:>12}{:>12}\n", "", "plan", "predicted", "measured",
             "corrected");
  for (size_t i = 0; i < tried.size(); ++i)
    fmt::print(invocation.out, "{:>2} {:<38}{:>9.1f} ms{:>9.1f} ms{:>9.1f} ms\n", i + 1,
               plan_text(tried[i].plan).substr(0, 38), tried[i].prediction.seconds * 1e3,
               *tried[i].measured * 1e3, predict(again, tried[i].plan).seconds * 1e3);
  fmt::print(invocation.out, "\nfastest: {}; the first pick loses {:.1f} %\n", plan_text(fastest->plan),
             100 * loss);
  for (const auto& [reason, count] : left_out)
    fmt::print(invocation.out, "left out {}: {}\n", count, reason.substr(0, reason.find('\n')));
  fmt::print(invocation.out, "recipe of the fastest: megatron pretrain --config {}\n", path);
  return 0;
}

}  // namespace megatron
