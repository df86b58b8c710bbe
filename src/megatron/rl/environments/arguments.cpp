#include "megatron/rl/environments/arguments.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "megatron/base/nearest.h"

namespace megatron::rl {

EnvironmentArguments::EnvironmentArguments(Json values, std::string origin, std::string folder,
                                           Problems& problems)
    : values_(std::move(values)),
      origin_(std::move(origin)),
      folder_(std::move(folder)),
      problems_(problems) {
  if (values_.is_null()) values_ = Json::object();
  if (values_.is_object()) return;
  reject("agent_args is not a mapping (got {}); write 'agent_args: {{}}' for none", values_.type_name());
  values_ = Json::object();
}

const Json* EnvironmentArguments::value(std::string_view key) {
  known_.emplace(key);
  const Json* found = values_.find(key);
  return found && !found->is_null() ? found : nullptr;
}

bool EnvironmentArguments::has(std::string_view key) { return value(key) != nullptr; }

std::string EnvironmentArguments::text(std::string_view key, std::string_view fallback) {
  const Json* found = value(key);
  if (!found) return std::string(fallback);
  if (found->is_string()) return found->as_string();
  reject("{}: expected a text, got {}", key, found->type_name());
  return std::string(fallback);
}

std::string EnvironmentArguments::choice(std::string_view key, const std::vector<std::string>& choices) {
  const std::string chosen = text(key, choices.front());
  if (std::find(choices.begin(), choices.end(), chosen) != choices.end()) return chosen;
  reject("{}: '{}' is none of {}", key, chosen, fmt::join(choices, ", "));
  return choices.front();
}

double EnvironmentArguments::number(std::string_view key, double fallback) {
  const Json* found = value(key);
  if (!found) return fallback;
  if (found->is_number() && std::isfinite(found->as_double())) return found->as_double();
  reject("{}: expected a finite number, got {}", key, found->dump());
  return fallback;
}

std::optional<int64_t> EnvironmentArguments::count(std::string_view key) {
  const Json* found = value(key);
  if (!found) return {};
  if (found->is_int() && found->as_int() >= 0) return found->as_int();
  reject("{}: expected an integer from 0 on, got {}", key, found->dump());
  return {};
}

bool EnvironmentArguments::flag(std::string_view key, bool fallback) {
  const Json* found = value(key);
  if (!found) return fallback;
  if (found->is_bool()) return found->as_bool();
  reject("{}: expected true or false, got {}", key, found->dump());
  return fallback;
}

std::optional<std::string> EnvironmentArguments::file(std::string_view key) {
  namespace fs = std::filesystem;
  const std::string name = text(key, "");
  if (name.empty()) return {};
  std::error_code ignored;
  const fs::path beside = fs::path(folder_) / name;
  const fs::path path = fs::exists(beside, ignored) ? beside : fs::path(name);
  if (!fs::exists(path, ignored)) {
    reject("{}: there is no file {} (looked in {} and in the current folder)", key, name,
           folder_.empty() ? "." : folder_);
    return {};
  }
  if (fs::is_directory(path, ignored)) {
    reject("{}: {} is a folder; name a file of JSON lines or Parquet in it", key, name);
    return {};
  }
  const std::string kind = path.extension().string();
  if (kind == ".arrow" || kind == ".csv") {
    const std::string_view reader = kind == ".csv" ? "csv" : "feather";
    reject(
        "{0}: {1} is neither JSON lines nor Parquet; convert it: python3 -c \"import pandas; "
        "pandas.read_{2}('{1}').to_json('{3}', orient='records', lines=True)\"",
        key, name, reader, fs::path(name).replace_extension(".jsonl").string());
    return {};
  }
  return path.string();
}

void EnvironmentArguments::reject_unknown() {
  const std::vector<std::string> names(known_.begin(), known_.end());
  for (const auto& [key, unused] : values_.as_object()) {
    if (known_.contains(key)) continue;
    const auto candidates = nearest(key, names);
    if (candidates.empty()) {
      reject("{}: unknown argument; known are {}", key, fmt::join(names, ", "));
    } else {
      reject("{}: unknown argument; {}", key, did_you_mean(candidates));
    }
  }
}

}  // namespace megatron::rl
