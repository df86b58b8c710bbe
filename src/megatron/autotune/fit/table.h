#pragma once

#include <memory>
#include <string>
#include <vector>

#include "megatron/autotune/cost/cost_model.h"
#include "megatron/base/json.h"

namespace megatron::autotune {

// One measured configuration of a table.
struct TableRow {
  int64_t id = 0;
  std::string configuration;  // rows with equal text differ in release alone and stay on one side of a split
  std::string group;          // rows with equal text differ in plan alone
  std::string set;            // "H100 dense", "single node": what errors are reported by
  std::string family;
  std::string release;   // of which system and software; pairs are compared inside one
  std::string excluded;  // why the row is not judged; "" where it is
  bool fitted = false;   // may constants be fitted on it
  bool moe = false;
  std::shared_ptr<const ModelShape> model;
  Cluster cluster;
  ParallelPlan plan;
  const Stack* stack = nullptr;
  double measured = 0;     // tokens/s of a GPU, or ms of an iteration; 0: not known
  bool throughput = true;  // which of the two
  double memory_gib = 0;   // measured peak; 0: not known

  // What the model says in the row's unit.
  double predicted(const Calibration& calibration) const;
  CostInputs inputs(const Calibration& c) const { return {*model, cluster, *stack, c.constants, &c}; }
};

// Rows that the cost model can price, and how many of the file it cannot.
struct Table {
  std::vector<TableRow> rows;
  std::string unit;       // "tokens/s/GPU" or "ms"
  bool published = true;  // figures of many systems, or plans measured on one
  int unknown_models = 0, no_figure = 0;
};

// Reads published-performance.json or measured-plans-a100.json, known by their fields. Malformed rows give a
// ConfigError that names the file and the row.
Table read_table(const std::string& path);
Table parse_table(const Json& document, const std::string& origin);

}  // namespace megatron::autotune
