#pragma once

#include <vector>

#include "megatron/parallel/pipeline/schedule.h"

namespace megatron {

// Runs a schedule without computing anything: times, idle time and memory, for planning and for tests.

struct StepCosts {  // of one chunk and one micro-batch
  double forward = 1;
  double backward_data = 1;
  double backward_weight = 1;
  double message = 0;
};

enum class SendMode {
  buffered,    // a send never waits; a receive is waited for by the step that uses it
  rendezvous,  // a send and its receive wait for each other
};

struct TimedStep {
  Step step;
  double start = 0;
  double end = 0;
};

struct Simulation {
  double makespan = 0;
  double bubble = 0;  // idle share of all ranks' time, 0 to 1
  std::vector<std::vector<TimedStep>> timelines;
  std::vector<int> peak_activations;  // per rank: most (chunk, micro-batch) pairs between F and B
  std::vector<int>
      peak_in_flight;  // … between F and W, as weight steps still hold inputs and output gradients
};

// Throws an Error that names rank and step where the lists deadlock, break a dependency, or leave work
// undone.
Simulation simulate(const PipelineShape& shape, const std::vector<std::vector<Step>>& lists,
                    const StepCosts& costs = {}, SendMode mode = SendMode::buffered);

}  // namespace megatron
