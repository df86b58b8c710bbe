#include "megatron/training/step/teacher.h"

#include "megatron/parallel/micro_batch.h"

namespace megatron {
namespace {

// Where the stages cannot have equally many layers, the last one has fewer, or more where none would be left.
int64_t layers_of_last_stage(int64_t layers, int64_t stages) {
  const int64_t each = layers / stages, more = layers - (stages - 1) * each, fewer = more - (stages - 1);
  if (more == each) return 0;
  return fewer > 0 ? fewer : more;
}

// Dumps of a step are of the model that learns.
class Unseen {
 public:
  explicit Unseen(RankContext& ctx) : ctx_(ctx), probe_(std::exchange(ctx.probe, nullptr)) {}
  ~Unseen() { ctx_.probe = probe_; }
  Unseen(const Unseen&) = delete;
  Unseen& operator=(const Unseen&) = delete;

 private:
  RankContext& ctx_;
  TensorProbe* probe_;
};

}  // namespace

Config teacher_config(const Config& student, const ModelConfig& model) {
  const ParallelConfig& given = student.parallel;
  Config config;
  config.model = model;
  config.model.seq_length = student.model.seq_length;
  config.model.mtp_num_layers = 0;  // they come behind the hidden states
  config.model.make_vocab_size_divisible_by = student.model.make_vocab_size_divisible_by;
  ParallelConfig& parallel = config.parallel;
  parallel.tensor_model_parallel_size = given.tensor_model_parallel_size;
  parallel.pipeline_model_parallel_size = given.pipeline_model_parallel_size;
  parallel.context_parallel_size = given.context_parallel_size;
  parallel.sequence_parallel = given.sequence_parallel;
  parallel.cp_comm_type = given.cp_comm_type;
  parallel.hierarchical_context_parallel_sizes = given.hierarchical_context_parallel_sizes;
  if (model.num_moe_experts > 0) {
    parallel.expert_model_parallel_size = given.expert_model_parallel_size;
    parallel.expert_tensor_parallel_size = given.expert_tensor_parallel_size;
  }
  if (given.pipeline_schedule == PipelineSchedule::zb_v) {  // the first rank has the head
    parallel.pipeline_schedule = given.pipeline_schedule;
    parallel.virtual_pipeline_model_parallel_size = given.virtual_pipeline_model_parallel_size;
  } else {
    parallel.num_layers_in_last_pipeline_stage =
        layers_of_last_stage(model.num_layers, given.pipeline_model_parallel_size);
  }
  config.precision.fp16 = student.precision.fp16;
  config.precision.bf16 = student.precision.bf16;
  config.precision.params_dtype = student.precision.params_dtype;
  return config;
}

Teacher::Teacher(RankContext& ctx, const Config& config, const ParallelContext& parallel, DType dtype)
    : model_(config, parallel, dtype) {
  for (Parameter* parameter : parameters()) {
    parameter->trainable = false;
    parameter->allocate(ctx, dtype);
    ctx.kernels->fill(ctx.kernel_context(), {parameter->value, 0});  // padding, which nothing is read into
  }
}

void Teacher::initialize(RankContext& ctx, uint64_t seed) {
  for (Parameter* parameter : parameters()) parameter->initialize(ctx, seed);
}

// Mostly every step's rows are alike.
SeqInfo Teacher::sequences(RankContext& ctx, const Batch& batch) {
  const TokenRows rows = rows_of(batch);
  if (!known_rows_ || *known_rows_ != rows) {
    known_rows_ = rows;
    known_sequences_ = model_.chunks()[0]->sequences(ctx, rows);
    known_sequences_.training = false;
  }
  return known_sequences_;
}

std::vector<Tensor> Teacher::hidden_states(RankContext& ctx, std::span<const Batch> batches) {
  const TraceRange range(ctx.tracer, "teacher");
  const NoGrad no_grad(ctx);
  const Unseen unseen(ctx);
  const ContextParallel& context = model_.parallel().context;
  const auto batch = [&](int microbatch) -> const Batch& { return batches[static_cast<size_t>(microbatch)]; };
  const auto tokens = [&](int microbatch) {
    return StageTokens{.own = std::ssize(batch(microbatch).ids) / context.size()};
  };
  const auto micro_batch = [&](RankContext& rank, int microbatch, const ModelChunk& chunk) {
    MicroBatch micro =
        to_device(rank, batch(microbatch), context, {.ids = chunk.slice().embedding, .labels = false}, {},
                  accumulation_dtype(model_.dtype()), rank.stream);
    micro.seq = sequences(rank, batch(microbatch));
    return micro;
  };
  const auto last = [](RankContext&, const StageTensors& states, const MicroBatch&) { return states[0]; };
  return model_.run(ctx, {.microbatches = static_cast<int>(batches.size()),
                          .tokens = tokens,
                          .micro_batch = micro_batch,
                          .last = last});
}

}  // namespace megatron
