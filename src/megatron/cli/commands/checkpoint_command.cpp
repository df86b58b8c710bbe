#include "megatron/cli/commands.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "megatron/base/counted.h"
#include "megatron/base/nearest.h"
#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/cli/flags.h"

namespace megatron {

namespace fs = std::filesystem;

namespace {

struct Settings {
  std::string action, path, out;
  int64_t files = 1;
  bool json = false;
};

constexpr std::array<std::string_view, 3> actions = {"inspect", "verify", "reshard"};

std::vector<Flag> flags(Settings& settings) {
  return {
      text_flag("--out", "DIR", "reshard: where the new checkpoint goes, as --save names it", settings.out),
      int_flag("--files", "reshard: how many files the tensors are spread over (1)", settings.files, 1),
      switch_flag("--json", "one JSON document", settings.json)};
}

Settings parse(const std::vector<std::string>& args) {
  Settings settings;
  const std::vector<std::string> words = parse_flags("checkpoint", args, flags(settings));
  if (words.empty()) throw UsageError("checkpoint: say inspect, verify or reshard, and a directory");
  settings.action = words[0];
  if (std::find(actions.begin(), actions.end(), settings.action) == actions.end()) {
    const std::vector<std::string> names(actions.begin(), actions.end());
    const std::string advice = did_you_mean(nearest(settings.action, names));
    throw UsageError(fmt::format("checkpoint: there is no '{}': {}", settings.action,
                                 advice.empty() ? "say inspect, verify or reshard" : advice));
  }
  if (words.size() != 2)
    throw UsageError(
        fmt::format("checkpoint {}: needs one directory, not {}", settings.action, words.size() - 1));
  settings.path = words[1];
  if (settings.action == "reshard" && settings.out.empty())
    throw UsageError("checkpoint reshard: --out DIR is missing");
  return settings;
}

std::string readable_bytes(int64_t bytes) {
  constexpr const char* units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
  auto value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(units)) value /= 1024, ++unit;
  return unit == 0 ? fmt::format("{} bytes", bytes) : fmt::format("{:.1f} {}", value, units[unit]);
}

struct Totals {
  int64_t bytes = 0, elements = 0;
};

Totals totals_of(const CheckpointIndex& index) {
  Totals totals;
  for (const StoredFile& file : index.files) totals.bytes += file.bytes;
  for (const StoredTensor& tensor : index.tensors) totals.elements += tensor.shape.numel();
  return totals;
}

int inspect(Invocation& invocation, const std::string& path, bool json) {
  const CheckpointIndex index = read_index(path);
  const Totals totals = totals_of(index);
  if (json) {
    Json document = Json::object();
    document["path"] = path;
    document["bytes"] = totals.bytes;
    document["elements"] = totals.elements;
    document["index"] = index.to_json();
    fmt::print(invocation.out, "{}\n", document.dump());
    return 0;
  }
  fmt::print(invocation.out, "checkpoint        {}\n", path);
  fmt::print(invocation.out, "iteration         {}\n", index.state.iteration);
  fmt::print(invocation.out, "consumed samples  {}\n", index.state.consumed_samples);
  fmt::print(invocation.out, "seed              {}\n", index.state.seed);
  fmt::print(invocation.out, "files             {}, {}\n", index.files.size(), readable_bytes(totals.bytes));
  fmt::print(invocation.out, "tensors           {}, {} elements\n", index.tensors.size(), totals.elements);
  size_t width = 0;
  for (const StoredTensor& tensor : index.tensors) width = std::max(width, tensor.name.size());
  for (const StoredTensor& tensor : index.tensors) {
    std::vector<int> files;
    for (const StoredChunk& piece : tensor.pieces) files.push_back(piece.file);
    std::sort(files.begin(), files.end());
    const auto count = std::unique(files.begin(), files.end()) - files.begin();
    fmt::print(invocation.out, "  {:<{}}  {:<8}  {:<16}  {} in {}\n", tensor.name, width,
               name_of(tensor.dtype), tensor.shape.str(), counted(tensor.pieces.size(), "piece"),
               counted(count, "file"));
  }
  return 0;
}

int verify(Invocation& invocation, const std::string& path, bool json) {
  const Problems problems = verify_checkpoint(path, [&](const StoredFile& file) {
    invocation.log.info("reading {} ({})", file.name, readable_bytes(file.bytes));
  });
  if (json) {
    Json document = Json::object();
    document["path"] = path;
    document["sound"] = problems.empty();
    document["problems"] = Json::array();
    for (const std::string& problem : problems.list()) document["problems"].push_back(problem);
    fmt::print(invocation.out, "{}\n", document.dump());
    return problems.empty() ? 0 : ConfigError("").exit_code();
  }
  problems.raise(fmt::format("the checkpoint {} is damaged", path));
  const CheckpointIndex index = read_index(path);
  fmt::print(invocation.out, "{}: sound: {} tensors in {} files, {}\n", path, index.tensors.size(),
             index.files.size(), readable_bytes(totals_of(index).bytes));
  return 0;
}

int reshard(Invocation& invocation, const std::string& path, const Settings& settings) {
  if (fs::weakly_canonical(path).parent_path() == fs::weakly_canonical(settings.out))
    throw ConfigError(
        fmt::format("checkpoint reshard: --out {} would replace {} itself", settings.out, path));
  const std::string written = reshard_checkpoint(path, settings.out, static_cast<int>(settings.files));
  print_path(invocation, written, settings.json);
  return 0;
}

}  // namespace

std::string checkpoint_help() {
  Settings settings;
  return "usage: megatron checkpoint inspect|verify|reshard DIR [options]\n"
         "\n"
         "inspect  what a checkpoint holds: iteration, tensors with shapes, and how they lie in files\n"
         "verify   reads all of it and compares checksums; exit code 1 where anything is damaged\n"
         "reshard  writes it again with whole tensors, in as many files as asked (training itself loads any "
         "layout)\n"
         "\n"
         "DIR is what --save was given (then its latest checkpoint), or one iter_… directory in it.\n"
         "\n" +
         flags_help(flags(settings));
}

int run_checkpoint(Invocation& invocation) {
  const Settings settings = parse(invocation.args);
  const std::string path = resolve_checkpoint(settings.path);
  if (settings.action == "inspect") return inspect(invocation, path, settings.json);
  if (settings.action == "verify") return verify(invocation, path, settings.json);
  return reshard(invocation, path, settings);
}

}  // namespace megatron
