#include "megatron/parallel/pipeline/schedule.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/parallel/pipeline/simulator.h"

namespace megatron {
namespace {

int highest(const std::vector<int>& values) { return *std::max_element(values.begin(), values.end()); }

bool legal(const PipelineShape& shape) {
  try {
    check_pipeline(shape);
    return true;
  } catch (const ConfigError&) {
    return false;
  }
}

// Every legal shape with pp ≤ 8, vpp ≤ 4 and up to 32 micro-batches; interleaved with every group size.
std::vector<PipelineShape> all_shapes() {
  std::vector<PipelineShape> shapes;
  const auto add = [&](const PipelineShape& shape) {
    if (legal(shape)) shapes.push_back(shape);
  };
  for (int m = 1; m <= 32; ++m)
    for (int pp = 1; pp <= 8; ++pp) {
      for (PipelineKind kind :
           {PipelineKind::none, PipelineKind::gpipe, PipelineKind::one_f_one_b, PipelineKind::zb_h1})
        add({kind, pp, 1, m});
      add({PipelineKind::zb_v, pp, 2, m});
      for (int vpp = 1; vpp <= 4; ++vpp)
        for (int group = pp; group <= m; ++group) add({PipelineKind::interleaved, pp, vpp, m, group});
    }
  return shapes;
}

void check_memory(const PipelineShape& shape, const Simulation& run) {
  for (int r = 0; r < shape.pp; ++r) {
    const int activations = run.peak_activations[static_cast<size_t>(r)];
    const int in_flight = run.peak_in_flight[static_cast<size_t>(r)];
    switch (shape.kind) {
      case PipelineKind::none:
        ASSERT_EQ(activations, 1);
        break;
      case PipelineKind::gpipe:
        ASSERT_EQ(activations, shape.microbatches);
        break;
      case PipelineKind::one_f_one_b:
        ASSERT_EQ(activations, std::min(shape.pp - r, shape.microbatches));
        break;
      case PipelineKind::zb_h1:
        ASSERT_EQ(activations, std::min(shape.pp - r, shape.microbatches));
        ASSERT_LE(in_flight, shape.pp);
        break;
      case PipelineKind::zb_v:
        ASSERT_LE(in_flight, 2 * shape.pp);
        break;
      case PipelineKind::interleaved: {
        const int warmup = 2 * (shape.pp - r - 1) + (shape.vpp - 1) * shape.group;
        ASSERT_EQ(activations, std::min(warmup + 1, shape.microbatches * shape.vpp));
      }
    }
  }
}

// Weight gradients of a chunk accumulate in the order of micro-batches, whatever the schedule.
void check_weight_order(const PipelineShape& shape, const std::vector<std::vector<Step>>& lists) {
  for (const auto& list : lists) {
    std::vector<int> next(static_cast<size_t>(shape.vpp), 0);
    for (const Step& step : list)
      if (step.kind == StepKind::backward || step.kind == StepKind::backward_weight) {
        ASSERT_EQ(step.microbatch, next[static_cast<size_t>(step.chunk)]++);
      }
  }
}

TEST(Schedule, EveryShapeRunsToItsEndInOrderAndInItsMemory) {
  int shapes = 0;
  for (PipelineShape shape : all_shapes()) {
    SCOPED_TRACE(fmt::format("{} pp={} vpp={} m={} group={}", pipeline_kind_name(shape.kind), shape.pp,
                             shape.vpp, shape.microbatches, shape.group));
    const auto lists = schedules(shape);
    ASSERT_NO_THROW(simulate(shape, lists, {}, SendMode::rendezvous));
    ASSERT_NO_THROW(check_memory(shape, simulate(shape, lists, {}, SendMode::buffered)));
    check_weight_order(shape, lists);
    shape.forward_only = true;
    ASSERT_NO_THROW(simulate(shape, schedules(shape), {}, SendMode::rendezvous));
    if (HasFatalFailure()) return;
    ++shapes;
  }
  EXPECT_GT(shapes, 4000);
}

// Weight gradients that are delayed come behind their B, after the gradient of the input was sent; all else
// stands as it did.
TEST(Schedule, DelayedWeightGradientsLetGradientsGoFirst) {
  for (PipelineShape shape : {PipelineShape{PipelineKind::none, 1, 1, 3},
                              {PipelineKind::one_f_one_b, 4, 1, 6},
                              {PipelineKind::gpipe, 3, 1, 4},
                              {PipelineKind::interleaved, 2, 2, 4}}) {
    SCOPED_TRACE(pipeline_kind_name(shape.kind));
    const auto whole = schedules(shape);
    shape.delay_weights = true;
    const auto lists = schedules(shape);
    ASSERT_NO_THROW(simulate(shape, lists, {}, SendMode::rendezvous));
    ASSERT_NO_THROW(simulate(shape, lists, {}, SendMode::buffered));
    check_weight_order(shape, lists);
    for (size_t rank = 0; rank < lists.size(); ++rank) {
      const std::vector<Step>& list = lists[rank];
      for (size_t i = 0; i < list.size(); ++i) {
        ASSERT_NE(list[i].kind, StepKind::backward);
        if (list[i].kind != StepKind::backward_data) continue;
        size_t next = i + 1;
        bool sent = false;
        for (; list[next].kind == StepKind::send || list[next].kind == StepKind::recv; ++next)
          sent = sent || (list[next].kind == StepKind::send && list[next].payload == Payload::gradient);
        EXPECT_EQ(list[next].kind, StepKind::backward_weight);
        EXPECT_EQ(list[next].microbatch, list[i].microbatch);
        EXPECT_EQ(sent, model_stage(shape, static_cast<int>(rank), list[i].chunk) > 0);
      }
      const auto order_of = [](const std::vector<Step>& steps) {
        std::vector<std::string> order;
        for (const Step& step : steps)
          if (step.kind <= StepKind::backward_data)
            order.push_back(fmt::format("{}{}.{}", step.kind == StepKind::forward ? "F" : "B", step.chunk,
                                        step.microbatch));
        return order;
      };
      EXPECT_EQ(order_of(list), order_of(whole[rank]));
    }
  }
}

TEST(Schedule, ZeroBubbleKeepsMemoryAndShrinksTheBubble) {
  for (int pp = 2; pp <= 8; ++pp)
    for (int m = 1; m <= 32; ++m) {
      SCOPED_TRACE(fmt::format("pp={} m={}", pp, m));
      const PipelineShape plain{PipelineKind::one_f_one_b, pp, 1, m}, split{PipelineKind::zb_h1, pp, 1, m};
      const Simulation before = simulate(plain, schedules(plain)), after = simulate(split, schedules(split));
      ASSERT_LT(after.makespan, before.makespan);
      ASSERT_LE(highest(after.peak_activations), highest(before.peak_activations));
      ASSERT_LE(highest(after.peak_in_flight), std::max(highest(before.peak_in_flight), std::min(pp, m)));
      if (m < pp) continue;
      ASSERT_EQ(highest(after.peak_in_flight), highest(before.peak_in_flight));
      ASSERT_DOUBLE_EQ(before.makespan - 3 * m, 3 * (pp - 1));  // (p-1)(F+B+W)
      ASSERT_DOUBLE_EQ(after.makespan - 3 * m, pp - 1);         // (p-1)(F+B-W)
    }
}

TEST(Schedule, ZeroBubbleHelpsWhenCostsDiffer) {
  for (const StepCosts& costs : {StepCosts{1, 1.1, 0.8}, StepCosts{1, 1.3, 1}, StepCosts{1, 1, 0.6, 0.1}})
    for (int pp : {2, 4, 8}) {
      const PipelineShape plain{PipelineKind::one_f_one_b, pp, 1, 32}, split{PipelineKind::zb_h1, pp, 1, 32};
      EXPECT_LT(simulate(split, schedules(split), costs).bubble,
                simulate(plain, schedules(plain), costs).bubble)
          << pp;
    }
}

// Chunks of zb-v are half as large, so its unit is half of 1F1B's.
TEST(Schedule, ZeroBubbleVIsShorterStill) {
  for (int pp = 2; pp <= 8; ++pp)
    for (int m = 2 * pp; m <= 32; ++m) {
      SCOPED_TRACE(fmt::format("pp={} m={}", pp, m));
      const PipelineShape h1{PipelineKind::zb_h1, pp, 1, m}, v{PipelineKind::zb_v, pp, 2, m};
      const Simulation a = simulate(h1, schedules(h1)), b = simulate(v, schedules(v));
      ASSERT_LT(b.makespan / 2, a.makespan);
      ASSERT_DOUBLE_EQ(b.makespan - 6 * m, pp - 1);
    }
}

TEST(Schedule, InterleavingShrinksTheBubble) {
  for (int vpp = 2; vpp <= 4; ++vpp) {
    const PipelineShape plain{PipelineKind::one_f_one_b, 4, 1, 16},
        chunks{PipelineKind::interleaved, 4, vpp, 16};
    const double before = simulate(plain, schedules(plain)).bubble,
                 after = simulate(chunks, schedules(chunks)).bubble;
    EXPECT_NEAR(after / (1 - after), before / (1 - before) / vpp, 1e-12);
  }
}

TEST(Schedule, SameListForOneStage) {
  const PipelineShape shape{PipelineKind::interleaved, 4, 2, 8};
  const auto lists = schedules(shape);
  for (int stage = 0; stage < 4; ++stage)
    EXPECT_EQ(schedule(PipelineKind::interleaved, 4, stage, 2, 8), lists[static_cast<size_t>(stage)]);
}

TEST(Schedule, PlacesOfChunks) {
  const PipelineShape v{PipelineKind::zb_v, 4, 2, 8}, ring{PipelineKind::interleaved, 4, 2, 8};
  EXPECT_EQ(model_stage(v, 0, 1), 7);
  EXPECT_EQ(model_stage(v, 3, 1), 4);
  EXPECT_EQ(model_stage(ring, 3, 1), 7);
  for (const PipelineShape& shape : {v, ring})
    for (int stage = 0; stage < 8; ++stage) {
      const ChunkPlace place = chunk_at(shape, stage);
      EXPECT_EQ(model_stage(shape, place.rank, place.chunk), stage);
    }
}

TEST(Schedule, RefusesWhatCannotBe) {
  const PipelineShape wrong[] = {
      {PipelineKind::none, 2, 1, 4},           {PipelineKind::one_f_one_b, 2, 2, 4},
      {PipelineKind::zb_h1, 2, 2, 4},          {PipelineKind::zb_v, 2, 1, 4},
      {PipelineKind::interleaved, 1, 2, 4},    {PipelineKind::interleaved, 4, 2, 8, 3},
      {PipelineKind::gpipe, 0, 1, 4},          {PipelineKind::gpipe, 2, 1, 0},
      {PipelineKind::one_f_one_b, 2, 1, 4, 2}, {PipelineKind::interleaved, 4, 2, 9},
      {PipelineKind::interleaved, 4, 2, 3}};
  for (const PipelineShape& shape : wrong) EXPECT_THROW(schedules(shape), ConfigError);
}

// A pass without a way back needs no whole groups of micro-batches.
TEST(Schedule, ForwardAloneTakesAnyNumberOfMicroBatches) {
  for (const PipelineKind kind : {PipelineKind::interleaved, PipelineKind::zb_v})
    for (int microbatches : {1, 2, 3, 5, 9}) {
      PipelineShape shape{kind, 4, 2, microbatches};
      shape.forward_only = true;
      for (const std::vector<Step>& list : schedules(shape))
        EXPECT_EQ(std::count_if(list.begin(), list.end(),
                                [](const Step& step) { return step.kind == StepKind::forward; }),
                  2 * microbatches);
    }
}

std::string fault(const PipelineShape& shape, const std::vector<std::vector<Step>>& lists, SendMode mode) {
  try {
    simulate(shape, lists, {}, mode);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Simulator, FindsPlantedFaults) {
  const PipelineShape shape{PipelineKind::one_f_one_b, 2, 1, 4};
  const auto good = schedules(shape);
  const auto find = [](std::vector<Step>& list, StepKind kind) {
    return std::find_if(list.begin(), list.end(), [&](const Step& step) { return step.kind == kind; });
  };
  for (SendMode mode : {SendMode::buffered, SendMode::rendezvous}) {
    auto lists = good;
    lists[1].erase(find(lists[1], StepKind::recv));
    EXPECT_NE(fault(shape, lists, mode), "");  // a receive is missing
    lists = good;
    lists[0].erase(find(lists[0], StepKind::send));
    EXPECT_NE(fault(shape, lists, mode), "");  // a send is missing
    lists = good;
    std::iter_swap(find(lists[0], StepKind::forward), find(lists[0], StepKind::backward));
    EXPECT_NE(fault(shape, lists, mode).find("forward did not run"), std::string::npos);
    lists = good;
    lists[1].erase(find(lists[1], StepKind::backward));
    EXPECT_NE(fault(shape, lists, mode), "");
    lists = good;
    find(lists[1], StepKind::recv)->microbatch = 3;
    EXPECT_NE(fault(shape, lists, mode).find("meets"), std::string::npos);
  }
}

// Two ranks that both send before they receive: buffers carry it, a rendezvous cannot.
TEST(Simulator, TellsBufferedFromRendezvous) {
  const PipelineShape shape{PipelineKind::one_f_one_b, 2, 1, 2};
  const Step f0{StepKind::forward}, f1{StepKind::forward, {}, 0, 1};
  const Step b0{StepKind::backward}, b1{StepKind::backward, {}, 0, 1};
  const auto message = [](StepKind kind, Payload payload, int microbatch, int peer) {
    return Step{kind, payload, 0, microbatch, peer};
  };
  const Payload act = Payload::activation, grad = Payload::gradient;
  const std::vector<std::vector<Step>> lists = {
      {f0, message(StepKind::send, act, 0, 1), f1, message(StepKind::send, act, 1, 1),
       message(StepKind::recv, grad, 0, 1), b0, message(StepKind::recv, grad, 1, 1), b1},
      {message(StepKind::recv, act, 0, 0), f0, b0, message(StepKind::send, grad, 0, 0),
       message(StepKind::recv, act, 1, 0), f1, b1, message(StepKind::send, grad, 1, 0)}};
  EXPECT_EQ(fault(shape, lists, SendMode::buffered), "");
  EXPECT_NE(fault(shape, lists, SendMode::rendezvous).find("deadlock: rank 0 at step 3"), std::string::npos);
}

}  // namespace
}  // namespace megatron
