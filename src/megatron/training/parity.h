#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"
#include "megatron/datasets/batch_source.h"
#include "megatron/nn/parameter.h"
#include "megatron/optimizer/optimizer.h"
#include "megatron/parallel/parallel_groups.h"
#include "megatron/training/step/step_report.h"

// Trains a configuration under a layout, ranks as threads, and puts the pieces of all ranks together, so that
// layouts can be compared tensor by tensor.
namespace megatron {

struct WholeTensor {  // a global tensor put together
  Shape shape;
  std::vector<double> values;
  std::vector<bool> filled;
  double copies_apart = 0;  // the largest difference of two ranks' copies of an element
};
using WholeTensors = std::map<std::string, WholeTensor>;

// What a step left behind.
struct StepTensors {
  WholeTensors gradients, parameters;
};

struct TrainedLayout {
  std::vector<double> losses, grad_norms;  // by step
  std::vector<StepReport> reports;         // by step, whole
  WholeTensors gradients, parameters;      // of the last step
  double evaluated = 0;                    // the first batch's loss after the last step
  double ranks_apart = 0;                  // by how much losses and norms that ranks report differ, relative
  std::vector<StepTensors> history;        // of every step, where asked for
};

struct ParityRun {
  ParallelSizes sizes;
  DType dtype = DType::F64;
  Device device = kCpu;
  Rates lr = 1e-2;
  bool keep_history = false;
  std::vector<int64_t> lengths = {};  // of each micro-batch's sequences where they differ; one replica only
  // By row of the global batch, what is packed into it; none: every row is one sequence.
  std::vector<std::vector<int64_t>> documents = {};
  // A model that teaches, with weights of its own that are drawn; null: there is none.
  std::shared_ptr<const ModelConfig> teacher = {};
  // Where micro-batches come from in place of `batches`, of which only the number counts then.
  std::shared_ptr<const BatchSource> source = {};
  // Runs the ranks of this process; threads where empty. Where other processes have ranks too, the tensors
  // are filled as far as the ranks here know them.
  std::function<void(const std::function<void(int rank, ProcessGroup& world)>&)> launch = {};
  // Comes between a rank and its world: a test leaves out a collective, say.
  std::function<ProcessGroup(const ProcessGroup& world)> interpose = {};
};

// `batches`: one global batch per step, [global batch, length + 1].
TrainedLayout train_layout(const Config& config, const ParityRun& run,
                           const std::vector<std::vector<int64_t>>& batches);

// Tokens for `steps` global batches, drawn from a counter; with `lengths`, one for each micro-batch.
std::vector<std::vector<int64_t>> random_batches(const Config& config, int steps,
                                                 const std::vector<int64_t>& lengths = {});

// Copies a rank's part of a parameter, or of something of its shape, to where it belongs: the elements from
// `begin` on of its shard. Copies of an element on several ranks should agree.
void put_together(WholeTensors& all, const Parameter& parameter, const std::vector<double>& local,
                  int64_t begin = 0);

struct TensorDifference {
  double worst = 0;   // relative to the tensor's largest value
  std::string where;  // the tensor, or what is wrong with the sets
};
// The largest difference of two sets of tensors, or of copies within one, each relative to its tensor's
// largest value. A tensor or an element that one side lacks counts as infinitely far.
TensorDifference largest_difference(const WholeTensors& a, const WholeTensors& b);
double tensor_difference(const WholeTensor& a, const WholeTensor& b);

}  // namespace megatron
