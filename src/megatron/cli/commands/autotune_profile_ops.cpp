#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <filesystem>
#include <mutex>

#include "megatron/autotune/machine/gpu_spec.h"
#include "megatron/base/atomic_file.h"
#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/bench/module_bench.h"
#include "megatron/cli/commands/autotune_parts.h"
#include "megatron/cli/commands/autotune_setup.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"
#include "megatron/config/help.h"
#include "megatron/device/gpu_info.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/parallel/planned_group.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/training/plan/device_speed.h"
#include "megatron/training/run/rank_launch.h"

namespace megatron {
namespace {

constexpr CommandFlag kProfileFlags[] = {
    {"--model-name", 1, "name of the folder of results [model]"},
    {"--test-cases-file", 1, "JSON: {\"cases\": [{batch_size, micro_batch_size, seqlen, ...}]}"},
    {"--test-ops-list", 1, "operators, as in SelfAttention,MLPDense [all]"},
    {"--test-case-idxs", 1, "cases of the file, from 0, as in 0,2 [all]"},
    {"--run-one-data", 0, "the first case alone"},
    {"--profile-mode", 1, "0 times and memory, 2 traces, 3 memory by tag [0]"},
    {"--warmup-iters", 1, "passes before the measured ones [2]"},
    {"--profile-iters", 1, "measured passes [2]"},
    {"--theoretical-flops", 0, "beside times: FLOPs and what they take at full speed"},
    {"--theoretical-activations", 0, "beside activations: those of the shapes alone [on]"},
    {"--no-theoretical-activations", 0, "leave those out"},
    {"--output-dir", 1, "where the tree of results goes [outputs]"},
    {"--database", 1, "JSON lines that take the time of every op"},
    {"--grid", 0, "with --database: ops of small models of many shapes, in training steps"},
    {"--tp-overlap", 1, "FILE.yaml: fastest overlap of four linears, for --tp-comm-overlap-cfg"},
    {"--seconds", 1, "with --grid: measured steps of each model [1]"},
    {"--json", 0, "one JSON document"},
};

struct ProfileRun {
  std::string model;
  std::vector<std::string> ops;
  std::vector<ModuleCase> cases;
  ModuleBench bench;
  int64_t mode = 0;
  bool theory_flops = false, theory_activations = true;
};

std::vector<ModuleCase> read_cases(const CommandLine& line, const Config& config) {
  if (!line.has("--test-cases-file")) {
    ModuleCase usual;
    usual.seqlen = config.model.seq_length > 0 ? config.model.seq_length : 1024;
    usual.micro_batch_size = usual.batch_size = std::max<int64_t>(1, config.train.micro_batch_size);
    return {usual};
  }
  const std::string path = line.get("--test-cases-file");
  const Json document = Json::read(path);
  if (!document.is_object() || !document.contains("cases") || !document.at("cases").is_array())
    throw ConfigError(fmt::format("{}: needs {{\"cases\": [...]}}", path));
  std::vector<ModuleCase> cases;
  for (const Json& row : document.at("cases").as_array()) {
    const auto number = [&](const char* key, int64_t otherwise) {
      if (!row.is_object()) throw ConfigError(fmt::format("{}: a case is an object", path));
      if (!row.contains(key) || row.at(key).is_null()) return otherwise;
      if (!row.at(key).is_int() || row.at(key).as_int() < 1)
        throw ConfigError(
            fmt::format("{}: {}: needs a number from 1 (got {})", path, key, row.at(key).dump()));
      return row.at(key).as_int();
    };
    ModuleCase one;
    one.batch_size = number("batch_size", 1);
    one.micro_batch_size = number("micro_batch_size", one.batch_size);
    one.seqlen = number("seqlen", 1024);
    const bool packed =
        row.contains("shape") && row.at("shape").is_string() && row.at("shape").as_string() == "thd";
    // A packed micro-batch holds as many whole sequences as fit.
    if (packed) {
      const int64_t most = number("max_token_len", one.seqlen * one.micro_batch_size);
      one.max_token_len = std::max<int64_t>(1, std::min(most / one.seqlen, one.batch_size)) * one.seqlen;
    }
    cases.push_back(one);
  }
  if (cases.empty()) throw ConfigError(fmt::format("{}: there is no case", path));
  if (line.has("--run-one-data")) cases.resize(1);
  if (line.has("--test-case-idxs")) {
    std::vector<ModuleCase> chosen;
    const std::string list = line.get("--test-case-idxs");  // the words lie in it
    for (const std::string_view word : comma_separated(list)) {
      const int64_t at = parse_int("autotune profile-ops", "--test-case-idxs", word);
      if (at < 0 || at >= static_cast<int64_t>(cases.size()))
        throw UsageError(fmt::format("autotune profile-ops: --test-case-idxs: there are {} cases (got {})",
                                     cases.size(), at));
      chosen.push_back(cases[static_cast<size_t>(at)]);
    }
    cases = std::move(chosen);
  }
  return cases;
}

ProfileRun profile_run(const CommandLine& line, const Config& config) {
  ProfileRun run;
  run.model = line.get("--model-name", "model");
  run.cases = read_cases(line, config);
  const std::vector<std::string> known = bench_modules(config.model);
  run.ops = known;
  if (line.has("--test-ops-list")) {
    run.ops.clear();
    const std::string list = line.get("--test-ops-list");  // the words lie in it
    for (const std::string_view word : comma_separated(list)) {
      if (std::find(known.begin(), known.end(), word) == known.end())
        throw UsageError(fmt::format("autotune profile-ops: --test-ops-list: the model has no {} (it has {})",
                                     word, fmt::join(known, ", ")));
      run.ops.emplace_back(word);
    }
  }
  const auto number = [&](const char* flag, int64_t otherwise, int64_t least, int64_t most) {
    const int64_t value =
        line.has(flag) ? parse_int("autotune profile-ops", flag, line.get(flag)) : otherwise;
    if (value < least || value > most)
      throw UsageError(
          fmt::format("autotune profile-ops: {} needs {} to {} (got {})", flag, least, most, value));
    return value;
  };
  run.bench.warmup = static_cast<int>(number("--warmup-iters", 2, 0, 1000));
  run.bench.iterations = static_cast<int>(number("--profile-iters", 2, 1, 1000));
  run.mode = number("--profile-mode", 0, 0, 3);
  if (run.mode == 1)
    throw UsageError(
        "autotune profile-ops: --profile-mode 1 is for nsys: run nsys profile megatron autotune profile-ops "
        "--profile-mode 0");
  run.bench.spans = run.mode == 2;
  run.theory_flops = line.has("--theoretical-flops");
  run.theory_activations = !line.has("--no-theoretical-activations");
  return run;
}

// The grid brings its own models and writes to the database alone.
void reject_beside_grid(const CommandLine& line) {
  std::string other;
  for (const auto& [flag, values] : line.own)
    if (flag != "--grid" && flag != "--database" && flag != "--seconds" && flag != "--test-case-idxs")
      other = flag;
  if (!line.sources.flags.empty()) other = line.sources.flags[0].name;
  if (!line.sources.overrides.empty()) other = line.sources.overrides[0];
  if (!line.config_path.empty()) other = "--config";
  if (!line.recipe_name.empty()) other = "--recipe";
  if (!line.hf_dir.empty()) other = "--hf";
  if (!other.empty())
    throw UsageError(
        fmt::format("autotune profile-ops: {} has no effect with --grid, which has its own models; leave it "
                    "out, or leave out --grid",
                    other));
}

int run_grid(Invocation& invocation, const CommandLine& line) {
  if (!line.has("--database")) throw UsageError("autotune profile-ops: --grid needs --database FILE");
  reject_beside_grid(line);
  std::vector<size_t> chosen;
  const std::string list = line.get("--test-case-idxs", "");  // the words lie in it
  for (const std::string_view word : comma_separated(list)) {
    const int64_t at = parse_int("autotune profile-ops", "--test-case-idxs", word);
    if (at < 0)
      throw UsageError(
          fmt::format("autotune profile-ops: --test-case-idxs needs numbers from 0 (got {})", at));
    chosen.push_back(static_cast<size_t>(at));
  }
  return profile_grid_steps(invocation, line.get("--database"),
                            parse_positive("autotune profile-ops", "--seconds", line.get("--seconds", "1")),
                            chosen);
}

std::string time_stamp() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  localtime_r(&now, &parts);
  return fmt::format("{:04}-{:02}-{:02}_{:02}-{:02}-{:02}", parts.tm_year + 1900, parts.tm_mon + 1,
                     parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec);
}

// The leaf of a case in a tree of results: op, pass, batch_size=, seqlen=, shape=, ..., system=.
Json& leaf(Json& root, const std::string& op, const char* pass, const ModuleCase& one) {
  const bool packed = one.max_token_len > 0;
  Json* at = &root;
  const auto down = [&](const std::string& key) {
    if (!at->contains(key)) (*at)[key] = Json::object();
    at = &(*at)[key];
  };
  down(op);
  if (pass != nullptr) down(pass);
  down(fmt::format("batch_size={}", one.batch_size));
  down(fmt::format("seqlen={}", one.seqlen));
  down(packed ? "shape=thd" : "shape=bshd");
  down(packed ? fmt::format("max_token_len={}", one.max_token_len)
              : fmt::format("micro_batch_size={}", one.micro_batch_size));
  return (*at)["system=megatron"] = Json::object();
}

struct Measured {
  std::string op;
  ModuleCase one;
  ModuleFigures real, theory;
};

double seconds_of(const DeviceSpeed& speed, double flops, double bytes) {
  return std::max(flops / speed.flops, bytes / speed.bytes);
}

void write_collected(const std::string& folder, const ProfileRun& run, const std::vector<Measured>& rows,
                     const DeviceSpeed& speed) {
  Json timing = Json::object(), activations = Json::object(), weights = Json::object();
  for (const Measured& row : rows) {
    for (const bool forward : {true, false}) {
      Json& time = leaf(timing, row.op, forward ? "forward" : "backward", row.one);
      time["real"] = forward ? row.real.forward : row.real.backward;
      if (run.theory_flops) {
        const double flops = forward ? row.theory.forward_flops : row.theory.backward_flops;
        time["estimated_flops"] = flops;
        time["estimated"] =
            seconds_of(speed, flops, forward ? row.theory.forward_bytes : row.theory.backward_bytes);
      }
    }
    Json& kept = leaf(activations, row.op, nullptr, row.one);
    kept["real"] = row.real.activation_bytes;
    if (run.theory_activations) kept["estimated"] = row.theory.activation_bytes;
    Json& held = leaf(weights, row.op, nullptr, row.one);
    held["real"] = row.real.weight_bytes;
    held["estimated"] = row.theory.weight_bytes;
  }
  std::filesystem::create_directories(folder);
  write_file_atomically(folder + "/timing.json", timing.dump(2) + "\n");
  write_file_atomically(folder + "/memory_activation.json", activations.dump(2) + "\n");
  write_file_atomically(folder + "/memory_weights.json", weights.dump(2) + "\n");
}

void write_trace(const std::string& path, const report::Trace& trace, int64_t rank) {
  Json document = Json::parse(report::chrome_trace(trace), path);
  if (rank >= 0) {
    document["distributedInfo"] = Json::object();
    document["distributedInfo"]["rank"] = rank;
  }
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  write_file_atomically(path, document.dump() + "\n");
}

}  // namespace

std::string autotune_profile_ops_help() {
  return "usage: megatron autotune profile-ops [settings] [options]\n"
         "\n"
         "Runs the model's modules one at a time, forward and backward, on ranks that share them as the\n"
         "settings say (-tp, -cp, -ep), and writes times and memory beside theory to "
         "OUTPUT-DIR/TIME/MODEL.\n" +
         autotune_flags_text(kProfileFlags) + "\n" + settings_overview();
}

int run_autotune_profile_ops(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kProfileFlags);
  if (!line.words.empty())
    throw UsageError(fmt::format("autotune profile-ops: cannot make sense of '{}'", line.words[0]));
  if (line.has("--grid")) return run_grid(invocation, line);
  if (line.has("--seconds"))
    throw UsageError(
        "autotune profile-ops: --seconds is for --grid; --profile-iters tells how many passes are measured");
  Config config = resolve(read_sources(line, {.hf = read_hf_settings, .recipe = read_recipe}),
                          {.purpose = Purpose::model, .allow_unavailable = true})
                      .config;
  if (config.parallel.pipeline_model_parallel_size > 1)
    throw UsageError(
        "autotune profile-ops: modules run without stages; leave out pipeline_model_parallel_size");
  if (line.has("--tp-overlap"))
    return profile_tp_overlap(
        invocation, config, line.get("--tp-overlap"),
        parse_int("autotune profile-ops", "--profile-iters", line.get("--profile-iters", "5")),
        line.has("--json"));
  const ProfileRun run = profile_run(line, config);
  const int64_t shared = config.parallel.tensor_model_parallel_size * config.parallel.context_parallel_size;
  const int64_t experts = config.model.num_moe_experts > 0
                              ? config.parallel.expert_model_parallel_size *
                                    std::max<int64_t>(1, config.parallel.expert_tensor_parallel_size)
                              : 1;
  const int64_t ranks = std::max({config.run.ranks, shared, experts});
  config.run.ranks = ranks;
  const ParallelSizes sizes = parallel_sizes(config, ranks);
  check_parallel(sizes);
  const bool cuda = device_type(config) == DeviceType::Cuda;
  const DType dtype = config.precision.bf16 ? DType::BF16 : config.precision.fp16 ? DType::F16 : DType::F32;
  const std::string device = cuda ? gpu_name(0) : "CPU";
  const DeviceSpeed speed =
      peak_speed(device, dtype).value_or(speed_of(cuda ? DeviceType::Cuda : DeviceType::Cpu, dtype));

  std::vector<std::vector<Measured>> by_rank(static_cast<size_t>(ranks));
  std::vector<MemoryStatistics> memory(static_cast<size_t>(ranks));
  std::vector<autotune::OpDatabase> databases(static_cast<size_t>(ranks));
  run_on_ranks(config, launch_place(), invocation.log, [&](RankContext& ctx, const ProcessGroup& world) {
    const ParallelContext parallel = ParallelContext::from_sizes(world, sizes);
    const auto rank = static_cast<size_t>(ctx.rank);
    ModuleBench bench = run.bench;
    if (line.has("--database")) bench.database = &databases[rank];
    for (const std::string& op : run.ops)
      for (const ModuleCase& one : run.cases) {
        Measured row{op, one, bench_module(ctx, config, parallel, dtype, op, one, bench), {}};
        // The same on shapes alone is the theory.
        RankContext shapes(kMeta, 1, ctx.rank);
        auto log = std::make_shared<TrafficLog>();
        const ParallelContext planned =
            ParallelContext::from_sizes(planned_world(sizes, ctx.rank, log), sizes);
        row.theory = bench_module(shapes, config, planned, dtype, op, one, {});
        by_rank[rank].push_back(std::move(row));
        if (rank == 0) invocation.log.info("{} {} x {}: done", op, one.micro_batch_size, one.seqlen);
      }
    memory[rank] = ctx.allocator->statistics();
  });

  const std::string root =
      fmt::format("{}/{}/{}", line.get("--output-dir", "outputs"), time_stamp(), run.model);
  report::Trace merged;
  for (size_t rank = 0; rank < by_rank.size(); ++rank) {
    const std::string name = fmt::format("rank_{}", rank);
    if (run.mode == 0)
      write_collected(fmt::format("{}/collect_data/{}", root, name), run, by_rank[rank], speed);
    if (run.mode == 2) {
      report::Trace trace;
      for (const Measured& row : by_rank[rank])
        trace.spans.insert(trace.spans.end(), row.real.spans.begin(), row.real.spans.end());
      merged.spans.insert(merged.spans.end(), trace.spans.begin(), trace.spans.end());
      write_trace(fmt::format("{}/torch_profiler/{}/{}.pt.trace.json", root, name, run.model), trace,
                  static_cast<int64_t>(rank));
    }
    if (run.mode == 3) {
      Json tags = Json::object();
      for (size_t tag = 0; tag < kMemoryTags; ++tag) {
        Json& entry = tags[std::string(name_of(static_cast<MemoryTag>(tag)))] = Json::object();
        entry["peak"] = static_cast<int64_t>(memory[rank].by_tag[tag].peak);
        entry["allocations"] = static_cast<int64_t>(memory[rank].by_tag[tag].allocations);
      }
      const std::string folder = fmt::format("{}/memory_snapshot/{}", root, name);
      std::filesystem::create_directories(folder);
      write_file_atomically(folder + "/memory.json", tags.dump(2) + "\n");
    }
  }
  if (run.mode == 2) write_trace(root + "/torch_profiler/merged.json", merged, -1);
  if (line.has("--database")) {
    const std::string path = line.get("--database");
    autotune::OpDatabase database;
    if (std::filesystem::exists(path)) database = autotune::OpDatabase::parse(read_text_file(path), path);
    if (!database.device.empty() && database.device != device)
      throw ConfigError(
          fmt::format("{}: holds times of {}, not of {}; give another file", path, database.device, device));
    database.device = device;
    database.library = std::string(build_info().version);
    for (const autotune::OpDatabase& part : databases) database.merge(part);
    write_file_atomically(path, database.text());
  }
  if (line.has("--json")) {
    Json document = Json::object();
    document["folder"] = root;
    document["device"] = device;
    Json& list = document["ops"] = Json::array();
    for (const Measured& row : by_rank[0]) {
      Json entry = Json::object();
      entry["op"] = row.op;
      entry["tokens"] = row.one.tokens();
      entry["forward_s"] = row.real.forward;
      entry["backward_s"] = row.real.backward;
      entry["forward_flops"] = row.theory.forward_flops;
      entry["activation_bytes"] = row.real.activation_bytes;
      entry["estimated_activation_bytes"] = row.theory.activation_bytes;
      entry["weight_bytes"] = row.real.weight_bytes;
      list.push_back(std::move(entry));
    }
    fmt::print(invocation.out, "{}\n", document.dump(1));
    return 0;
  }
  fmt::print(invocation.out, "{} on {}, {} ranks: tp {} cp {} ep {}\n\n", run.model, device, ranks, sizes.tp,
             sizes.cp, sizes.ep);
  fmt::print(invocation.out, "{:<17}{:>8}{:>11}{:>11}{:>10}{:>11}{:>10}\n", "rank 0", "tokens", "forward ms",
             "backward ms", "GFLOP/s", "kept MiB", "theory");
  for (const Measured& row : by_rank[0])
    fmt::print(invocation.out, "{:<17}{:>8}{:>11.3f}{:>11.3f}{:>10.1f}{:>11.2f}{:>10.2f}\n", row.op,
               row.one.tokens(), row.real.forward * 1e3, row.real.backward * 1e3,
               (row.theory.forward_flops + row.theory.backward_flops) / 1e9 /
                   std::max(1e-12, row.real.forward + row.real.backward),
               row.real.activation_bytes / (1 << 20), row.theory.activation_bytes / (1 << 20));
  fmt::print(invocation.out, "\n{}\n", root);
  return 0;
}

}  // namespace megatron
