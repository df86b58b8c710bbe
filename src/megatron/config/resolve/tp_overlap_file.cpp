#include "megatron/config/resolve/tp_overlap_file.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/config/sources/yaml.h"

namespace megatron {
namespace {

using Method = TpOverlapFile::Method;

constexpr std::array kNamed{Method::none, Method::ring_exchange, Method::bulk, Method::pipeline};

// Fields that say how another library copies: NCCL chooses its own thread blocks, and GEMMs take all SMs.
constexpr std::array<std::string_view, 9> kWithoutEffect{
    "num_sm",  "cga_size",          "set_sm_margin", "atomic_gemm",  "use_ce",
    "fp8_buf", "is_reduce_scatter", "comm_priority", "gemm_priority"};

TpOverlapFile::Gemm gemm_of(const Json& entry, std::string_view linear, std::string_view pass,
                            const std::string& where, std::vector<std::string_view>& idle,
                            std::vector<std::string>& notes) {
  if (!entry.is_object()) throw ConfigError(fmt::format("{}: is {}, not a mapping", where, entry.dump()));
  TpOverlapFile::Gemm gemm;
  bool splits_given = false;
  for (const auto& [key, value] : entry.as_object()) {
    const std::string at = where + "." + key;
    if (key == "method") {
      const std::vector<Method> known = TpOverlapFile::methods(linear, pass);
      std::string names = "none";
      for (const Method one : known) names += fmt::format(", {}", method_name(one));
      for (const Method one : kNamed)
        if (value.is_string() && value.as_string() == method_name(one)) gemm.method = one;
      if (gemm.method != Method::none && std::find(known.begin(), known.end(), gemm.method) == known.end())
        throw ConfigError(fmt::format("{}: cannot be {} (it can be {})", at, value.dump(), names));
    } else if (key == "aggregate") {
      if (!value.is_bool() && !(value.is_int() && (value.as_int() == 0 || value.as_int() == 1)))
        throw ConfigError(fmt::format("{}: is {}, not true or false", at, value.dump()));
      gemm.aggregate = value.is_bool() ? value.as_bool() : value.as_int() == 1;
    } else if (key == "num_splits") {
      if (!value.is_int() || value.as_int() < 1 || value.as_int() > 64)
        throw ConfigError(fmt::format("{}: needs 1 to 64 (got {})", at, value.dump()));
      gemm.splits = static_cast<int>(value.as_int());
      splits_given = true;
    } else {
      const auto* found = std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key);
      if (found == kWithoutEffect.end()) throw ConfigError(fmt::format("{}: is no field of an overlap", at));
      if (std::find(idle.begin(), idle.end(), *found) == idle.end()) idle.push_back(*found);
    }
  }
  if (gemm.aggregate && !TpOverlapFile::can_aggregate(linear, pass, gemm.method))
    notes.push_back(where + ".aggregate has no effect: no blocks are gathered around a ring");
  if (splits_given && gemm.method != Method::pipeline)
    notes.push_back(where + ".num_splits has no effect without method: pipeline");
  return gemm;
}

}  // namespace

std::string_view method_name(Method method) {
  switch (method) {
    case Method::ring_exchange:
      return "ring_exchange";
    case Method::bulk:
      return "bulk";
    case Method::pipeline:
      return "pipeline";
    case Method::unset:
    case Method::none:
      break;
  }
  return "none";
}

std::vector<Method> TpOverlapFile::methods(std::string_view linear, std::string_view pass) {
  if (gathers_input(linear)) {
    if (pass == "fprop") return {Method::ring_exchange};
    if (pass == "wgrad") return {Method::bulk};
    return {Method::bulk, Method::ring_exchange, Method::pipeline};
  }
  if (pass == "fprop") return {Method::ring_exchange, Method::pipeline};
  if (pass == "dgrad") return {Method::ring_exchange};
  return {};
}

TpOverlapFile::Linear& TpOverlapFile::linear(std::string_view name) {
  return name == "qkv" ? qkv : name == "proj" ? proj : name == "fc1" ? fc1 : fc2;
}

TpOverlapFile::Gemm& TpOverlapFile::gemm(Linear& linear, std::string_view pass) {
  return pass == "fprop" ? linear.fprop : pass == "dgrad" ? linear.dgrad : linear.wgrad;
}

TpOverlapFile TpOverlapFile::parse(const std::string& text, const std::string& origin) {
  const Json document = parse_yaml(text, origin);
  TpOverlapFile file;
  if (document.is_null()) return file;
  if (!document.is_object()) throw ConfigError(origin + ": is no mapping of GEMMs");
  std::vector<std::string_view> idle;
  for (const auto& [key, entry] : document.as_object()) {
    const size_t at = key.find('_');
    const std::string linear = key.substr(0, at), pass = at == std::string::npos ? "" : key.substr(at + 1);
    if (std::find(kLinears.begin(), kLinears.end(), linear) == kLinears.end() ||
        std::find(kPasses.begin(), kPasses.end(), pass) == kPasses.end())
      throw ConfigError(fmt::format("{}: {}: is no GEMM (known: {} with _{})", origin, key,
                                    fmt::join(kLinears, ", "), fmt::join(kPasses, ", _")));
    if (entry.is_null()) continue;
    if (methods(linear, pass).empty()) {
      file.notes.push_back(fmt::format("{}: {}: nothing is sent beside it: no effect", origin, key));
      continue;
    }
    gemm(file.linear(linear), pass) =
        gemm_of(entry, linear, pass, fmt::format("{}: {}", origin, key), idle, file.notes);
  }
  if (!idle.empty())
    file.notes.push_back(
        fmt::format("{}: {} has no effect: NCCL chooses its SMs", origin, fmt::join(idle, ", ")));
  return file;
}

// The file tunes speed alone, so that a launch script goes on where its file was not brought along.
TpOverlapFile TpOverlapFile::read(const std::string& path) {
  if (std::filesystem::exists(path)) return parse(read_text_file(path), path);
  TpOverlapFile file;
  file.notes.push_back(path + ": there is no such file; linears overlap as without --tp-comm-overlap-cfg");
  return file;
}

std::string TpOverlapFile::text() const {
  std::string text;
  TpOverlapFile copy = *this;
  for (const std::string_view name : kLinears)
    for (const std::string_view pass : kPasses) {
      const Gemm& one = gemm(copy.linear(name), pass);
      if (one.method == Method::unset) continue;
      text += fmt::format("{}_{}:\n  method: {}\n", name, pass, method_name(one.method));
      if (one.method == Method::ring_exchange) text += fmt::format("  aggregate: {}\n", one.aggregate);
      if (one.method == Method::pipeline) text += fmt::format("  num_splits: {}\n", one.splits);
    }
  return text;
}

}  // namespace megatron
