#include "megatron/autotune/measure/step_database.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <sstream>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

constexpr std::string_view kHeader = "megatron op times 1";

struct Operand {
  std::string_view dtype;
  std::vector<double> shape;
  double elements() const {
    double product = 1;
    for (const double size : shape) product *= size;
    return product;
  }
};

// The number that all of `word` is; none where it is not finite or does not fit.
template <typename T>
std::optional<T> whole(std::string_view word) {
  T value = 0;
  const auto [end, fault] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (fault != std::errc() || end != word.data() + word.size()) return {};
  return std::isfinite(static_cast<double>(value)) ? std::optional(value) : std::nullopt;
}

// A key taken apart.
struct KeyParts {
  std::string_view op, phase;
  std::vector<Operand> operands;
};

KeyParts parts_of(std::string_view key) {
  KeyParts parts;
  const size_t space = std::min(key.find(' '), key.size());
  parts.op = key.substr(0, space);
  size_t at = std::min(space + 1, key.size());
  for (const std::string_view phase : {"forward", "backward", "weight gradient", "other"})
    if (key.substr(at).starts_with(phase)) parts.phase = phase;
  at = std::min(at + parts.phase.size() + 1, key.size());
  while (at < key.size()) {
    const size_t open = key.find('[', at), close = key.find(']', at);
    if (open == key.npos || close == key.npos || close < open) break;
    Operand operand{key.substr(at, open - at), {}};
    std::istringstream sizes{std::string(key.substr(open + 1, close - open - 1))};
    for (std::string size; std::getline(sizes, size, ',');) operand.shape.push_back(std::stod(size));
    parts.operands.push_back(std::move(operand));
    at = close + 2;
  }
  return parts;
}

bool is_gemm(std::string_view op) {
  for (const std::string_view name : {"linear", "linear_activated", "head", "fp8_linear", "matmul"})
    if (op == name) return true;
  return false;
}

// The place in `sizes` behind the last that a kind has.
size_t size_count(OpClass kind) {
  switch (kind) {
    case OpClass::grouped_gemm:
      return 4;
    case OpClass::memory:
      return 2;
    default:
      return 3;
  }
}

OpClass class_of(std::string_view family) {
  const std::string_view op = family.substr(0, family.find(' '));
  if (op.starts_with("grouped")) return OpClass::grouped_gemm;
  if (op == "attention") return OpClass::attention;
  if (op == "fp8_linear") return OpClass::fp8_gemm;
  return is_gemm(op) ? OpClass::gemm : OpClass::memory;
}

StepOp of_parts(const KeyParts& parts, double flops, double bytes) {
  StepOp op;
  op.family = fmt::format("{} {}", parts.op, parts.phase);
  const std::vector<Operand>& operands = parts.operands;
  if (!operands.empty()) op.family += fmt::format(" {}", operands[0].dtype);
  op.kind = class_of(op.family);
  if (op.kind == OpClass::grouped_gemm) {
    const auto weight =
        std::find_if(operands.begin(), operands.end(), [](const Operand& o) { return o.shape.size() == 3; });
    if (weight != operands.end() && operands[0].shape.size() == 2) {
      // The phase tells which of its two sizes are the output's columns.
      const double inner = operands[0].shape[1], rows = operands[0].shape[0];
      const bool gradient = parts.phase == "weight gradient";
      const double n = gradient ? weight->shape[1] : operands.back().shape.back();
      op.sizes = {weight->shape[0], rows, n, gradient ? weight->shape[2] : inner};
      return op;
    }
  } else if (op.kind == OpClass::attention) {
    if (!operands.empty() && operands[0].shape.size() == 3 && flops > 0) {
      const double queries = operands[0].shape[0] * operands[0].shape[1], dim = operands[0].shape[2];
      op.family += fmt::format(" {:.0f}", dim);
      op.sizes = {queries, flops / (queries * dim), dim, 0};
      return op;
    }
  } else if (op.kind != OpClass::memory) {
    if (!operands.empty() && operands[0].shape.size() == 2 && flops > 0) {
      const double m = operands[0].shape[0], k = operands[0].shape[1];
      op.sizes = {m, flops / (2 * m * k), k, 0};
      return op;
    }
  }
  op.kind = OpClass::memory;
  const bool wide = !operands.empty() && !operands[0].shape.empty();
  op.sizes = {bytes * 1e-6, wide ? operands[0].shape.back() : 1, 0, 0};
  return op;
}

}  // namespace

StepOp step_op(std::string_view key, double flops, double bytes) {
  return of_parts(parts_of(key), flops, bytes);
}

void StepOps::add(std::string_view key, double flops, double bytes) {
  const KeyParts parts = parts_of(key);
  const bool activation = parts.op == "activation" || parts.op == "gated_activation";
  if (fuses_ && activation && !ops_.empty()) {
    // An activation right behind the GEMM whose output it reads, or whose output's gradient it takes on.
    StepOp& before = ops_.back();
    const bool forward = parts.phase == "forward" && parts.operands.size() == 2;
    const bool backward = parts.phase == "backward" && parts.operands.size() == 3;
    const std::string dtype = parts.operands.empty() ? "" : std::string(parts.operands[0].dtype);
    if ((forward && before.family == "linear forward " + dtype &&
         parts.operands[0].elements() == before.sizes[0] * before.sizes[1]) ||
        (backward && before.family == "linear backward " + dtype &&
         parts.operands[1].elements() == before.sizes[0] * before.sizes[1])) {
      before.family = fmt::format("linear_activated {} {}", parts.phase, dtype);
      return;
    }
  }
  ops_.push_back(of_parts(parts, flops, bytes));
}

std::vector<StepOp> StepOps::counted() const {
  std::map<std::pair<std::string, std::array<double, 4>>, StepOp> equal;
  for (const StepOp& op : ops_) {
    const auto [at, fresh] = equal.try_emplace({op.family, op.sizes}, op);
    if (!fresh) ++at->second.count;
  }
  std::vector<StepOp> result;
  for (auto& [key, op] : equal) result.push_back(std::move(op));
  return result;
}

std::string StepDatabase::text(double least_share) const {
  std::string text = fmt::format("{}\ndevice {}\nlibrary {}\n", kHeader, device, library);
  std::map<std::string, size_t> families;
  std::map<std::string, double> largest;  // share of a step
  for (const MeasuredStep& step : steps)
    for (const StepOp& op : step.ops) {
      families.try_emplace(op.family, 0);
      double& share = largest[op.family];
      share = std::max(share, op.us * op.count / step.us);
    }
  std::map<std::string, int> written;
  size_t next = 0;
  for (auto& [family, number] : families) {
    number = next++;
    text += fmt::format("family {} {}\n", number, family);
  }
  for (const MeasuredStep& step : steps) {
    text += fmt::format("step {:.6g} {:.6g} {:.4g} {}\n", step.us, step.op_us, step.host_us, step.name);
    for (const StepOp& op : step.ops) {
      if (op.us * op.count < least_share * step.us &&
          (written[op.family] >= 2 || largest[op.family] < least_share / 10))
        continue;
      ++written[op.family];
      text += fmt::format("{} {:.0f}", families.at(op.family), op.count);
      for (size_t i = 0; i < size_count(op.kind); ++i) text += fmt::format(" {:.5g}", op.sizes[i]);
      text += fmt::format(" {:.4g}\n", op.us);
    }
  }
  return text;
}

void StepDatabase::put(MeasuredStep step) {
  std::erase_if(steps, [&](const MeasuredStep& old) { return old.name == step.name; });
  steps.push_back(std::move(step));
}

StepDatabase StepDatabase::parse(const std::string& text, std::string_view origin) {
  StepDatabase database;
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kHeader)
    throw ConfigError(fmt::format(
        "{}: its first line is not '{}'; autotune profile-ops --grid writes such files", origin, kHeader));
  std::map<size_t, std::string> families;
  for (int number = 2; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    std::istringstream words(line);
    const auto require = [&](bool holds, std::string_view needed) {
      if (!holds)
        throw ConfigError(
            fmt::format("{}:{}: needs {} (got '{}'); autotune profile-ops --grid writes such files", origin,
                        number, needed, line));
    };
    const auto rest = [&] {
      std::string value;
      std::getline(words >> std::ws, value);
      return value;
    };
    std::string first;
    words >> first;
    if (first == "device") {
      database.device = rest();
    } else if (first == "library") {
      database.library = rest();
    } else if (first == "family") {
      std::string word;
      words >> word;
      const std::optional<size_t> at = whole<size_t>(word);
      require(at.has_value(), "a number of the family");
      require(!(families[*at] = rest()).empty(), "a name of the family");
    } else if (first == "step") {
      std::array<double, 3> us = {};
      for (double& value : us) {
        std::string word;
        words >> word;
        value = whole<double>(word).value_or(-1);
      }
      require(us[0] > 0 && us[1] > 0 && us[2] >= 0, "times of a step, of its ops and of its host");
      database.steps.push_back({rest(), us[0], us[1], us[2], {}});
    } else {
      require(!database.steps.empty(), "a step before its ops");
      const std::optional<size_t> at = whole<size_t>(first);
      const auto family = at ? families.find(*at) : families.end();
      require(family != families.end(), "the number of a family at first");
      StepOp op;
      op.family = family->second;
      op.kind = class_of(op.family);
      std::vector<double> values;
      for (std::string word; words >> word;) values.push_back(whole<double>(word).value_or(-1));
      // A GEMM without shapes was kept by its bytes.
      if (values.size() == 4) op.kind = OpClass::memory;
      require(values.size() == size_count(op.kind) + 2,
              fmt::format("a family, a count, {} sizes and a time", size_count(op.kind)));
      // An op may move no bytes. All else divides, or has its logarithm taken.
      const bool moves = op.kind == OpClass::memory;
      for (size_t i = 0; i < values.size(); ++i)
        require(values[i] > 0 || (values[i] == 0 && moves && i == 1), "numbers above 0");
      op.count = values.front();
      std::copy(values.begin() + 1, values.end() - 1, op.sizes.begin());
      op.us = values.back();
      database.steps.back().ops.push_back(std::move(op));
    }
  }
  return database;
}

}  // namespace megatron::autotune
