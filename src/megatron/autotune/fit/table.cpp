#include "megatron/autotune/fit/table.h"

#include <fmt/core.h>

#include <map>

#include "megatron/autotune/fit/published_rows.h"
#include "megatron/base/error.h"

namespace megatron::autotune {
namespace {

using Shapes = std::map<std::string, std::shared_ptr<const ModelShape>>;

int64_t whole(const Json& row, std::string_view key, int64_t most) {
  const int64_t value = row.at(key).as_int();
  if (value < 1 || value > most)
    throw ConfigError(fmt::format("{} is {}, must be 1 to {}", key, value, most));
  return value;
}

TableRow measured_row(const Json& row, Shapes& shapes) {
  TableRow result;
  result.id = row.at("id").as_int();
  auto shape = std::make_shared<ModelShape>();
  shape->layers = whole(row, "layers", 10000);
  shape->hidden = whole(row, "hidden", 1 << 20);
  shape->heads = shape->kv_heads = whole(row, "heads", 1 << 16);
  shape->head_dim = shape->hidden / shape->heads;
  shape->ffn = 4 * shape->hidden;
  shape->vocab = 51200;
  shape->gated = false;
  shape->tied = true;
  shape->name = fmt::format("gpt-h{}-l{}", shape->hidden, shape->layers);
  auto& known = shapes[shape->name + fmt::format("-{}", shape->heads)];
  if (!known) known = shape;
  result.model = known;
  ParallelPlan& plan = result.plan;
  plan.gpus = static_cast<int>(whole(row, "gpus", 1 << 20));
  plan.tp = static_cast<int>(whole(row, "tp", plan.gpus));
  plan.pp = static_cast<int>(whole(row, "pp", plan.gpus));
  plan.gbs = whole(row, "gbs", 1 << 30);
  plan.mbs = whole(row, "mbs", plan.gbs);
  plan.seq = whole(row, "seq", 1 << 24);
  plan.precision = Precision::fp16;
  plan.recompute = Recompute::full;
  plan.sequence_parallel = plan.dp_overlap = plan.distributed_optimizer = false;
  if (int64_t{plan.tp} * plan.pp * whole(row, "dp", plan.gpus) != plan.gpus)
    throw ConfigError("tp x pp x dp is not the number of GPUs");
  // Four NICs of 200 Gb/s serve a node's eight GPUs.
  result.cluster = cluster_of(gpu_spec("A100"), plan.gpus);
  result.cluster.nic_gbs = 12.5;
  result.stack = &stack_named("megatron-deepspeed");
  result.set = row.at("kind").as_string();
  result.family = shape->name;
  result.group = fmt::format("{} {} GPUs gbs {}", shape->name, plan.gpus, plan.gbs);
  result.configuration = fmt::format("{} {}", result.group, plan_text(plan));
  if (const Json* measured = row.find("iteration_ms"); measured != nullptr && !measured->is_null())
    result.measured = measured->as_double();
  if (result.measured < 0) throw ConfigError("iteration_ms is negative");
  result.throughput = false;
  result.fitted = result.measured > 0;
  return result;
}

}  // namespace

double TableRow::predicted(const Calibration& calibration) const {
  const Prediction prediction = predict(inputs(calibration), plan);
  return throughput ? prediction.tokens_per_second_per_gpu : prediction.seconds * 1e3;
}

Table parse_table(const Json& document, const std::string& origin) {
  Table table;
  const Json* rows = document.is_object() ? document.find("rows") : nullptr;
  if (rows == nullptr || !rows->is_array()) throw ConfigError(fmt::format("{}: has no array 'rows'", origin));
  const Json* models = document.find("models");
  table.published = models != nullptr;
  table.unit = table.published ? "tokens/s/GPU" : "ms";
  Shapes shapes;
  if (models != nullptr)
    for (const auto& [name, entry] : models->as_object())
      if (!entry.is_null()) shapes[name] = std::make_shared<ModelShape>(model_shape(name, entry));
  for (const Json& row : rows->as_array()) {
    try {
      if (!table.published) {
        table.rows.push_back(measured_row(row, shapes));
      } else if (const auto shape = shapes.find(row.at("model").as_string()); shape == shapes.end()) {
        ++table.unknown_models;
      } else if (std::optional<TableRow> made = published_row(row, shape->second)) {
        table.rows.push_back(std::move(*made));
      } else {
        ++table.no_figure;
      }
    } catch (const Error& error) {
      const Json* id = row.is_object() ? row.find("id") : nullptr;
      throw ConfigError(
          fmt::format("{}: row {}: {}", origin, id != nullptr ? id->dump() : "without id", error.what()));
    }
  }
  return table;
}

Table read_table(const std::string& path) { return parse_table(Json::read(path), path); }

}  // namespace megatron::autotune
