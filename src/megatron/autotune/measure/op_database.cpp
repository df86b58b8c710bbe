#include "megatron/autotune/measure/op_database.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

// What an op costs in one figure: bytes, and arithmetic at eight FLOPs a byte.
double work_of(double flops, double bytes) { return flops / 8 + bytes; }

double rounded(double value, double unit) { return std::round(value / unit) * unit; }

}  // namespace

double OpSample::quantile(double share) const {
  if (us.empty()) return 0;
  std::vector<double> sorted = us;
  std::sort(sorted.begin(), sorted.end());
  const double at = share * static_cast<double>(sorted.size() - 1);
  const auto low = static_cast<size_t>(at);
  const size_t high = std::min(low + 1, sorted.size() - 1);
  return sorted[low] + (at - static_cast<double>(low)) * (sorted[high] - sorted[low]);
}

double OpSample::median() const { return quantile(0.5); }

void OpDatabase::add(const std::string& key, std::string_view op, std::string_view phase, double flops,
                     double bytes, double us) {
  OpSample& sample = samples_[key];
  if (sample.us.empty()) sample = {key, std::string(op), std::string(phase), flops, bytes, {}};
  sample.us.push_back(us);
}

void OpDatabase::merge(const OpDatabase& other) {
  for (const auto& [key, sample] : other.samples_)
    for (const double us : sample.us) add(key, sample.op, sample.phase, sample.flops, sample.bytes, us);
}

std::optional<double> OpDatabase::measured(const std::string& key) const {
  const auto found = samples_.find(key);
  return found == samples_.end() ? std::nullopt : std::optional(found->second.median());
}

std::optional<double> OpDatabase::estimated(std::string_view op, std::string_view phase, double flops,
                                            double bytes) const {
  struct Near {
    double distance, rate;
  };
  std::vector<Near> near;
  const double work = std::max(1.0, work_of(flops, bytes));
  for (const auto& [key, sample] : samples_) {
    if (sample.op != op || sample.phase != phase) continue;
    const double a = std::log2((flops + 1) / (sample.flops + 1)),
                 b = std::log2((bytes + 1) / (sample.bytes + 1));
    near.push_back({std::hypot(a, b), sample.median() / std::max(1.0, work_of(sample.flops, sample.bytes))});
  }
  if (near.empty()) return std::nullopt;
  const size_t count = std::min<size_t>(3, near.size());
  std::partial_sort(near.begin(), near.begin() + static_cast<std::ptrdiff_t>(count), near.end(),
                    [](const Near& x, const Near& y) { return x.distance < y.distance; });
  double weights = 0, sum = 0;
  for (size_t i = 0; i < count; ++i) {
    const double weight = 1 / (0.01 + near[i].distance * near[i].distance);
    weights += weight;
    sum += weight * std::log(near[i].rate);
  }
  return work * std::exp(sum / weights);
}

std::optional<double> OpDatabase::seconds(const std::string& key, std::string_view op, std::string_view phase,
                                          double flops, double bytes) const {
  std::optional<double> us = measured(key);
  if (!us) us = estimated(op, phase, flops, bytes);
  return us ? std::optional(*us * 1e-6) : std::nullopt;
}

std::string OpDatabase::text() const {
  Json head = Json::object();
  head["device"] = device;
  head["library"] = library;
  std::string text = head.dump() + "\n";
  for (const auto& [key, sample] : samples_) {
    Json row = Json::object();
    row["key"] = key;
    row["op"] = sample.op;
    row["phase"] = sample.phase;
    row["flops"] = sample.flops;
    row["bytes"] = sample.bytes;
    row["us"] = rounded(sample.median(), 1e-3);
    row["p10"] = rounded(sample.quantile(0.1), 1e-3);
    row["p90"] = rounded(sample.quantile(0.9), 1e-3);
    row["n"] = static_cast<int64_t>(sample.us.size());
    text += row.dump() + "\n";
  }
  return text;
}

OpDatabase OpDatabase::parse(const std::string& text, std::string_view origin) {
  OpDatabase database;
  std::istringstream lines(text);
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (line.empty()) continue;
    const Json row = Json::parse(line, fmt::format("{}:{}", origin, number));
    if (number == 1 && row.is_object() && row.contains("device")) {
      database.device = row.at("device").as_string();
      database.library = row.contains("library") ? row.at("library").as_string() : "";
      continue;
    }
    if (!row.is_object() || !row.contains("key") || !row.contains("op") || !row.contains("us") ||
        !row.at("us").is_number() || !(row.at("us").as_double() > 0))
      throw ConfigError(fmt::format("{}:{}: needs key, op and us above 0 (got {})", origin, number, line));
    const auto number_of = [&](const char* key) {
      return row.contains(key) && row.at(key).is_number() ? row.at(key).as_double() : 0.0;
    };
    // A file keeps the spread of its measurements as three of them.
    const double us = row.at("us").as_double();
    const std::string phase = row.contains("phase") ? row.at("phase").as_string() : "";
    for (const double value : {number_of("p10"), us, number_of("p90")})
      if (value > 0)
        database.add(row.at("key").as_string(), row.at("op").as_string(), phase, number_of("flops"),
                     number_of("bytes"), value);
  }
  return database;
}

}  // namespace megatron::autotune
