#include "megatron/cli/commands/autotune_parts.h"

#include <fstream>

#include "megatron/autotune/report/plan_report.h"
#include "megatron/autotune/report/search_page.h"
#include "megatron/autotune/search/recipe.h"
#include "megatron/autotune/search/search_state.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/progress.h"
#include "megatron/base/writable_folder.h"
#include "megatron/cli/commands/autotune_calibrate.h"
#include "megatron/cli/commands/autotune_check.h"
#include "megatron/cli/flags.h"
#include "megatron/config/help.h"

namespace megatron {

using namespace autotune;

namespace {

constexpr CommandFlag kSearchFlags[] = {
    {"--out", 1, "where the recipe goes [autotune.yaml]"},
    {"--report", 1, "FILE.html: front, times, memory, roofline, timeline"},
    {"--check", 1, "plans that the trainer itself checks on shapes alone [10]"},
    {"--precisions", 1, "to choose from, as in bf16,fp8 [the given one]"},
    {"--lost-gpus", 1, "GPUs that are down, each in another domain [0]"},
    {"--mean-length", 1, "with --sft, of a sample: padded or packed [--seq-length]"},
    {"--max-token-len", 1, "max tokens of a packed row [4 x --seq-length]"},
    {"--threads", 1, "that price plans [cores, 8 at most]"},
    {"--resume", 1, "FILE of finished parts; a stopped search goes on there"},
};

std::vector<CommandFlag> search_flags() {
  std::vector<CommandFlag> flags = autotune_calibrated_flags();
  flags.insert(flags.end(), std::begin(kSearchFlags), std::end(kSearchFlags));
  return flags;
}

std::vector<Precision> precisions_of(std::string_view list) {
  std::vector<Precision> result;
  for (const std::string_view name : comma_separated(list)) {
    bool known = false;
    for (const Precision precision : {Precision::bf16, Precision::fp16, Precision::fp8}) {
      if (precision_name(precision) != name) continue;
      result.push_back(precision);
      known = true;
    }
    if (!known)
      throw UsageError(fmt::format("autotune search: --precisions takes bf16, fp16 and fp8 (got {})", name));
  }
  return result;
}

// Appends finished parts to the file of --resume, which begins with the search's fingerprint.
SearchMemory resumable(const SearchRequest& request, const std::string& path) {
  SearchMemory memory = read_search_state(request, path);
  if (memory.parts.empty()) write_file_atomically(path, Json(search_fingerprint(request)).dump() + "\n");
  memory.finished = [path](const std::string& name, const SearchPart& part) {
    std::ofstream file(path, std::ios::app);
    file << search_state_line(name, part);
  };
  return memory;
}

std::string left_out_text(const std::map<std::string, int>& left_out) {
  std::string text;
  for (const auto& [reason, count] : left_out) {
    std::string line = fmt::format("  {:>9} {}", count, reason);
    if (const size_t end = line.find('\n'); end != std::string::npos) line.resize(end);
    if (line.size() > 79) line = line.substr(0, 76) + "...";
    text += line + "\n";
  }
  return text.empty() ? "" : "left out by the trainer's own check\n" + text;
}

}  // namespace

std::string autotune_search_help() {
  return "usage: megatron autotune search --hf DIR --cluster FILE [settings] [options]\n"
         "\n"
         "Prices every legal plan, prints the ten fastest that fit and why the first wins, and writes it as\n"
         "a recipe. Sizes and switches that are given (--tensor-model-parallel-size 4) are kept. The best\n"
         "plans are checked by a step of the trainer on shapes alone: its rules, and its memory. --gpu CPU:\n"
         "where each rank has a core here, steps of small models give the constants first, unless\n"
         "--constants names them or --resume goes on with a search.\n" +
         autotune_flags_text(search_flags()) + "\n" + settings_overview();
}

int run_autotune_search(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, search_flags());
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune search: cannot make sense of '{}'", line.words[0]));
  PlanSetup setup = autotune_plan_setup(line);
  SearchRequest request = search_request(setup, line);
  if (line.has("--precisions")) request.precisions = precisions_of(line.get("--precisions"));
  const auto number = [&](const char* flag, int64_t otherwise, int64_t max) {
    if (!line.has(flag)) return otherwise;
    const int64_t value = parse_int("autotune search", flag, line.get(flag));
    if (value < 0 || value > max)
      throw UsageError(fmt::format("autotune search: {} needs 0 to {} (got {})", flag, max, value));
    return value;
  };
  request.lost_gpus = static_cast<int>(number("--lost-gpus", 0, setup.cluster.gpus() - 1));
  request.mean_length = number("--mean-length", 0, request.seq);
  if (request.mean_length > 0 && !setup.resolved.config.dataset.sft)
    throw UsageError("autotune search: --mean-length needs conversations, whose rows are packed; add --sft");
  request.max_token_len = number("--max-token-len", 4 * request.seq, int64_t{1} << 30);
  if (line.has("--max-token-len") && request.max_token_len < request.seq)
    throw UsageError(fmt::format(
        "autotune search: --max-token-len needs --seq-length ({}) or more (got {}); raise it, or lower "
        "--seq-length",
        request.seq, request.max_token_len));
  if (line.has("--threads")) {
    const int64_t threads = parse_int("autotune search", "--threads", line.get("--threads"));
    if (threads < 1 || threads > 1024)
      throw UsageError(fmt::format("autotune search: --threads needs 1 to 1024 (got {})", threads));
    request.threads = static_cast<int>(threads);
  }
  const int64_t check =
      line.has("--check") ? parse_int("autotune search", "--check", line.get("--check")) : 10;
  if (check < 0 || check > 20)
    throw UsageError(fmt::format("autotune search: --check needs 0 to 20 (got {})", check));
  if (line.has("--report")) require_file_place("--report", line.get("--report"));
  // The request refers to the setup's constants.
  calibrate_cpu_ranks(invocation, line, setup);
  const bool shows = invocation.log.is_terminal();
  SearchResult result;
  {
    std::optional<Progress> progress;
    if (shows)
      request.progress = [&](int64_t done, int64_t parts, int64_t plans) {
        if (!progress) progress.emplace(invocation.log, "search", parts);
        progress->update(done, fmt::format("{} plans priced", plans));
      };
    result =
        line.has("--resume") ? search(request, resumable(request, line.get("--resume"))) : search(request);
  }
  const Json given = given_settings(setup.resolved);
  std::map<std::string, int> left_out;
  if (check > 0 && !result.best.empty() && !request.forward_only) {
    Progress progress(invocation.log, "check", check);
    left_out = check_best(given, request.in, static_cast<int>(check), 12, result, [&](int done) {
      if (shows) progress.update(done, "steps on shapes alone");
    });
  }
  const std::string path = line.get("--out", "autotune.yaml");
  if (!result.best.empty())
    write_file_atomically(path, recipe_text(given, setup.model, result.best[0], setup.cluster.name));
  if (line.has("--report"))
    write_file_atomically(line.get("--report"), report::render(search_page(request, result, path)));
  if (line.has("--json")) {
    Json json = search_json(request, result);
    json["recipe"] = result.best.empty() ? Json() : Json(path);
    Json& reasons = json["left_out_by_check"] = Json::object();
    for (const auto& [reason, count] : left_out) reasons[reason] = count;
    fmt::print(invocation.out, "{}\n", json.dump(1));
  } else {
    fmt::print(invocation.out, "{}{}", search_text(request, result), left_out_text(left_out));
    if (!result.best.empty())
      fmt::print(invocation.out, "\nrecipe of the first: megatron pretrain --config {}\n", path);
    if (line.has("--report")) fmt::print(invocation.out, "page: {}\n", line.get("--report"));
  }
  return result.best.empty() ? 1 : 0;
}

}  // namespace megatron
