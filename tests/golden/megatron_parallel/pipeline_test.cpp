#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/parallel/pipeline/compute_order.h"
#include "megatron/parallel/pipeline/layer_split.h"
#include "megatron/parallel/pipeline/microbatches.h"
#include "megatron/parallel/pipeline/stage_layout.h"

namespace megatron {
namespace {

Json golden(const std::string& name) {
  return Json::read(std::string(MEGATRON_GOLDEN_DIR) + "/megatron_parallel/" + name + ".json");
}

int number(const Json& object, std::string_view key) { return static_cast<int>(object.at(key).as_int()); }

std::optional<int> maybe(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  if (!value || value->is_null()) return std::nullopt;
  return static_cast<int>(value->as_int());
}

Json names(const StageLayers& layers) {
  Json list = Json::array();
  for (LayerKind kind : layers) list.push_back(layer_kind_name(kind));
  return list;
}

TEST(PipelineLayout, Matches) {
  int refused = 0;
  const Json file = golden("pipeline_layout");
  for (const Json& row : file.as_array()) {
    const std::string& text = row.at("layout").as_string();
    SCOPED_TRACE(text);
    const Json& num_stages = row.at("num_stages");
    if (num_stages.contains("raises"))
      EXPECT_THROW(parse_pipeline_layout(text), ConfigError);
    else
      EXPECT_EQ(parse_pipeline_layout(text).size(), static_cast<size_t>(number(num_stages, "ok")));
    const int pp = number(row, "pp");
    if (row.at("result").contains("raises")) {
      EXPECT_THROW(StageLayout::parse(text, pp), ConfigError);
      ++refused;
      continue;
    }
    const Json& expected = row.at("result").at("ok");
    const StageLayout layout = StageLayout::parse(text, pp);
    EXPECT_EQ(layout.vpp(), number(expected, "vpp"));
    Json stages = Json::array();
    for (int p = 0; p < pp; ++p) {
      Json row_of_rank = Json::array();
      for (int v = 0; v < layout.vpp(); ++v) row_of_rank.push_back(names(layout.stage(p, v)));
      stages.push_back(row_of_rank);
    }
    EXPECT_EQ(stages.dump(), expected.at("layout").dump());
    EXPECT_EQ(names(layout.flat()).dump(), expected.at("flat").dump());
    EXPECT_EQ(layout.table(), expected.at("pretty").as_string());
    const std::optional<int> mtp = maybe(row, "mtp_num_layers");
    if (expected.at("validate").contains("raises")) {
      EXPECT_THROW(layout.validate(number(row, "num_layers"), mtp), ConfigError);
      ++refused;
    } else {
      EXPECT_EQ(layout.validate(number(row, "num_layers"), mtp), expected.at("validate").at("ok").as_bool());
    }
  }
  EXPECT_EQ(refused, 3);
}

TEST(LayersPerStage, Matches) {
  int refused = 0;
  const Json file = golden("layers_per_stage");
  for (const Json& row : file.as_array()) {
    LayerSplit split;
    split.num_layers = number(row, "num_layers");
    split.pp = number(row, "pipeline_model_parallel_size");
    split.vpp = maybe(row, "virtual_pipeline_model_parallel_size").value_or(1);
    split.first_stage_layers = maybe(row, "num_layers_in_first_pipeline_stage");
    split.last_stage_layers = maybe(row, "num_layers_in_last_pipeline_stage");
    split.account_for_embedding = row.at("account_for_embedding_in_pipeline_split").as_bool();
    split.account_for_loss = row.at("account_for_loss_in_pipeline_split").as_bool();
    for (const Json& stage : row.at("stages").as_array()) {
      const int p = number(stage, "pp_rank"), v = maybe(stage, "vp_stage").value_or(0);
      SCOPED_TRACE(stage.dump());
      if (stage.at("layers").contains("raises")) {
        EXPECT_THROW(stage_layers(split, p, v), ConfigError);
        ++refused;
        continue;
      }
      const LayerRange range = stage_layers(split, p, v);
      EXPECT_EQ(range.count, number(stage.at("layers"), "ok"));
      EXPECT_EQ(range.first, number(stage.at("offset"), "ok"));
    }
  }
  EXPECT_EQ(refused, 4);
}

TEST(Microbatches, Match) {
  int refused = 0;
  const Json file = golden("microbatches");
  for (const Json& row : file.at("cases").as_array()) {
    const Json& args = row.at("args");
    SCOPED_TRACE(args.dump());
    BatchSettings settings;
    settings.global_batch = maybe(args, "global_batch_size");
    settings.micro_batch = number(args, "micro_batch_size");
    settings.data_parallel = number(args, "data_parallel_size");
    settings.decrease_if_needed = args.contains("decrease_batch_size_if_needed");
    if (const Json* schedule = args.find("step_batch_size_schedule"))
      settings.step_schedule = schedule->as_string();
    settings.seq_length = maybe(args, "seq_length");
    if (row.at("result").contains("raises")) {
      EXPECT_THROW(BatchPlan{settings}, ConfigError);
      ++refused;
      continue;
    }
    const BatchPlan plan(settings);
    for (const Json& point : row.at("result").at("ok").as_array()) {
      const BatchPlan::Batch batch = plan.at(point[0].as_int());
      EXPECT_EQ(batch.num_microbatches, point[1].as_int()) << point.dump();
      EXPECT_EQ(batch.global_batch, point[2].as_int()) << point.dump();
      EXPECT_EQ(settings.micro_batch, point[3].as_int());
      EXPECT_EQ(batch.running_batch, point[4].as_int()) << point.dump();
    }
  }
  EXPECT_EQ(refused, 5);
}

// +(chunk+1) for a forward, -(chunk+1) for a backward.
std::vector<int64_t> compact(const std::vector<Step>& steps) {
  std::vector<int64_t> order;
  for (const Step& step : steps) {
    if (step.kind == StepKind::forward) order.push_back(step.chunk + 1);
    if (step.kind == StepKind::backward) order.push_back(-(step.chunk + 1));
  }
  return order;
}

TEST(Schedules, Match) {
  int orders = 0;
  const Json file = golden("schedules");
  for (const Json& row : file.as_array()) {
    PipelineShape shape;
    shape.pp = number(row, "pp");
    const std::optional<int> vp = maybe(row, "vp");
    shape.vpp = vp.value_or(1);
    shape.kind = shape.pp == 1 ? PipelineKind::none
                 : vp          ? PipelineKind::interleaved
                               : PipelineKind::one_f_one_b;
    shape.microbatches = number(row, "num_microbatches");
    const int group = number(row, "microbatch_group_size");
    if (shape.kind == PipelineKind::interleaved) shape.group = group;

    const std::vector<TableEntry> table = interleave_table(shape.microbatches, shape.vpp, group);
    Json entries = Json::array();
    for (auto [microbatch, chunk] : table) entries.push_back(Json(Json::Array{microbatch, chunk}));
    EXPECT_EQ(entries.dump(), row.at("table").dump());

    for (const Json& expected : row.at("ranks").as_array()) {
      SCOPED_TRACE(expected.dump());
      const int rank = number(expected, "rank");
      shape.forward_only = expected.at("forward_only").as_bool();
      shape.overlap_experts = expected.at("overlap_moe").as_bool();
      const WarmupCounts counts = warmup_counts(shape, rank);
      EXPECT_EQ(counts.total, number(expected, "total"));
      EXPECT_EQ(counts.all_warmup, expected.at("all_warmup").as_bool());
      EXPECT_EQ(counts.warmup, number(expected, "warmup"));
      EXPECT_EQ(counts.remaining, number(expected, "remaining"));
      const Json* order = expected.find("order");
      if (!order) continue;
      std::vector<int64_t> wanted;
      for (const Json& step : order->as_array()) wanted.push_back(step.as_int());
      // The whole list, messages included, must keep this order too.
      EXPECT_EQ(compact(compute_orders(shape)[static_cast<size_t>(rank)]), wanted);
      ++orders;
      const bool runs = shape.kind != PipelineKind::interleaved || shape.microbatches % group == 0 ||
                        shape.microbatches % group >= shape.pp;
      if (runs)
        EXPECT_EQ(compact(schedules(shape)[static_cast<size_t>(rank)]), wanted);
      else
        EXPECT_THROW(schedules(shape), ConfigError);
    }
  }
  EXPECT_EQ(orders, 58);
}

}  // namespace
}  // namespace megatron
