#include "megatron/cli/commands/layout_conversion.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/bridge/megatron/convert.h"
#include "megatron/config/schema/catalog.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/run/rank_launch.h"
#include "megatron/training/run/run.h"

namespace megatron {
namespace {

constexpr std::string_view kFormat = "--ckpt-convert-format", kSave = "--ckpt-convert-save";

constexpr CommandFlag kFlags[] = {{kFormat, 1, "torch_dist or safetensors"},
                                  {kSave, 1, "the folder that gets the checkpoint, under the layout's name"}};

// The rest of the command line, which says what a run would be and where its checkpoint lies.
std::vector<std::string> without_flags(const std::vector<std::string>& args) {
  std::vector<std::string> rest;
  for (size_t i = 0; i < args.size(); ++i) {
    const size_t equals = args[i].find('=');
    const std::string name = canonical_flag(args[i].substr(0, equals));
    if (name != kFormat && name != kSave)
      rest.push_back(args[i]);
    else if (equals == std::string::npos)
      ++i;
  }
  return rest;
}

// Megatron-LM's legacy form becomes torch_dist by way of ours, in a new folder that goes again.
class PassingFolder {
 public:
  explicit PassingFolder(std::string path) : path_(std::move(path)) {
    const std::filesystem::path parent = std::filesystem::path(path_).parent_path();
    if (!parent.empty()) std::filesystem::create_directories(parent);
    if (!std::filesystem::create_directory(path_))
      throw ConfigError(
          fmt::format("{}: {} is there already, of another conversion that goes on or was killed; delete it",
                      kFormat, path_));
  }
  ~PassingFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  PassingFolder(const PassingFolder&) = delete;
  PassingFolder& operator=(const PassingFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

std::string convert(const LoadPlace& from, const std::string& format, const std::string& out,
                    const Log& log) {
  const bool ours = from.kind == CheckpointKind::megatron;
  if (from.local)
    throw ConfigError(fmt::format("{}: {} is spread over the machines' own disks; --load what --save wrote",
                                  kFormat, from.path));
  if ((format == "safetensors" && ours) ||
      (format == "torch_dist" && from.kind == CheckpointKind::torch_dist))
    throw ConfigError(
        fmt::format("{}: {} has the layout {} already; load it as it is", kFormat, from.path, format));
  const ImportOptions options{.note = [&](const std::string& note) { log.info("{}", note); }};
  if (format == "safetensors") return import_megatron(from.path, out, options);
  if (ours) return export_megatron(from.path, out);
  const PassingFolder passing(out + ".passing");
  return export_megatron(import_megatron(from.path, passing.path(), options), out);
}

}  // namespace

std::optional<int> convert_layout(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (!line.has(kFormat) && !line.has(kSave)) return {};
  const std::string format = line.get(kFormat), save = line.get(kSave);
  if (format.empty() || save.empty())
    throw ConfigError(fmt::format("{}: the two flags {} FORMAT and {} DIR belong together; add {}",
                                  format.empty() ? kSave : kFormat, kFormat, kSave,
                                  format.empty() ? kFormat : kSave));
  if (format != "torch_dist" && format != "safetensors")
    throw ConfigError(
        fmt::format("{}: {} is not written (got {}, expected torch_dist or safetensors); use torch_dist",
                    kFormat, format, format));
  const LaunchPlace place = launch_place();
  RunSpec spec = run_spec(without_flags(invocation.args));
  spec.log = invocation.log;
  const Resolved resolved = resolve_run(spec, place);
  const std::vector<LoadPlace> places = load_places(resolved.config.checkpoint);
  if (places.empty())
    throw ConfigError(
        fmt::format("{}: there is no checkpoint to convert; add --load DIR, which holds one", kFormat));
  if (place.process != 0) return 0;
  const std::string written = convert(places.front(), format, save + "/" + format, invocation.log);
  invocation.log.info("converted {} to {}", places.front().path, written);
  return 0;
}

}  // namespace megatron
