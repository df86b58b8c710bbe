#include "megatron/inference/decode_graphs.h"

#include <algorithm>
#include <bit>

#include "megatron/device/host_memory.h"

namespace megatron {
namespace {

constexpr size_t kMaxGraphs = 32;  // each is a graph of some hundred kernels in the driver's memory

// Within its life, memory comes from another allocator.
class AllocatorScope {
 public:
  AllocatorScope(RankContext& ctx, std::shared_ptr<Allocator> allocator)
      : ctx_(ctx), before_(std::exchange(ctx.allocator, std::move(allocator))) {}
  ~AllocatorScope() { ctx_.allocator = std::move(before_); }
  AllocatorScope(const AllocatorScope&) = delete;
  AllocatorScope& operator=(const AllocatorScope&) = delete;

 private:
  RankContext& ctx_;
  std::shared_ptr<Allocator> before_;
};

int64_t round_up(int64_t value, int64_t to) { return (value + to - 1) / to * to; }

}  // namespace

DecodeGraphs::DecodeGraphs(RankContext& ctx, Model& model, PagedCache& cache, int64_t spare_block)
    : ctx_(ctx),
      model_(model),
      cache_(cache),
      spare_block_(spare_block),
      frequencies_(step_frequencies(ctx, model.config(), model.dtype())),
      memory_(std::make_shared<Allocator>(ctx.runtime)),
      host_memory_(make_host_allocator(ctx.runtime)) {
  require(can_capture_decode(model), "decode: steps of this model cannot be captured");
}

bool DecodeGraphs::takes(const StepInput& input) {
  return !input.sequences.empty() &&
         std::ranges::all_of(input.sequences, [](const StepInput::Sequence& sequence) {
           return sequence.tokens.size() == 1 && sequence.logits == 1;
         });
}

int64_t DecodeGraphs::padded(int64_t count) {
  if (count <= 8) return static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(count)));
  if (count <= 16) return 16;
  return round_up(count, count <= 64 ? 16 : 32);  // GEMMs of fp8 take multiples of 16 rows
}

int64_t DecodeGraphs::count() const {
  return std::ranges::count_if(kinds_, [](const auto& kind) { return kind.second.graph.has_value(); });
}

int64_t DecodeGraphs::bytes() const { return static_cast<int64_t>(memory_->statistics().reserved); }

void DecodeGraphs::forget() { kinds_.clear(); }

DecodeGraphs::Step& DecodeGraphs::step_for(const Kind& kind) {
  if (const auto found = kinds_.find(kind); found != kinds_.end()) return found->second;
  if (kinds_.size() == kMaxGraphs)
    kinds_.erase(std::ranges::min_element(
        kinds_, {}, [](const auto& one) { return one.second.used; }));  // no step is under way
  Step step{.batch = SequenceBatch(ctx_, kind.sequences, kind.blocks, cache_.block_size()),
            .draws = kind.draws ? ctx_.empty({kind.sequences, kSampleSettings}, DType::F64) : Tensor{},
            .output = {},
            .graph = {}};
  return kinds_.emplace(kind, std::move(step)).first->second;
}

void DecodeGraphs::refill(Step& step, const StepInput& input, std::span<const DeviceDraw> draws) {
  step.batch.refill(ctx_, input, spare_block_);
  if (!step.draws) return;
  std::vector<DeviceDraw> rows(draws.begin(), draws.end());
  rows.resize(static_cast<size_t>(step.draws.size(0)));  // padding takes the largest
  ctx_.runtime->copy_from_host(step.draws.raw(), rows.data(), rows.size() * sizeof(DeviceDraw),
                               ctx_.stream.native());
}

StepOutput DecodeGraphs::compute(const Step& step) {
  StepOutput output{decode_step(ctx_, model_, step.batch, cache_, frequencies_)};
  const Tensor tokens = ctx_.empty({output.logits.size(0)}, DType::I64);
  const KernelContext kernels = ctx_.kernel_context();
  require(step.draws ? ctx_.kernels->sample(kernels, {output.logits, step.draws, tokens})
                     : ctx_.kernels->argmax(kernels, {output.logits, tokens}),
          "decode: the device draws no token of {}", output.logits);
  output.drawn = step.output.drawn;
  ctx_.runtime->copy_to_host_async(output.drawn.raw(), tokens.raw(), tokens.bytes(), ctx_.stream.native());
  return output;
}

bool DecodeGraphs::capture(Step& step) {
  if (!fault_.empty()) return false;
  const AllocatorScope scope(ctx_, memory_);
  StepOutput output;
  try {
    step.graph.emplace(ctx_.runtime, ctx_.stream, *memory_, [&] { output = compute(step); });
  } catch (const Error& error) {
    fault_ = error.what();
    return false;
  }
  step.output = std::move(output);
  return true;
}

StepOutput DecodeGraphs::run(const StepInput& input, std::span<const DeviceDraw> draws) {
  size_t blocks = 1;
  for (const StepInput::Sequence& sequence : input.sequences)
    blocks = std::max(blocks, sequence.blocks.size());
  const Kind kind{.sequences = padded(std::ssize(input.sequences)),
                  .blocks = static_cast<int64_t>(std::bit_ceil(blocks)),
                  .draws = !draws.empty()};
  Step& step = step_for(kind);
  step.used = ++steps_;
  refill(step, input, draws);
  const auto without_padding = [&](const StepOutput& output) {
    const int64_t rows = std::ssize(input.sequences);
    return StepOutput{output.logits.slice(0, 0, rows), output.drawn.slice(0, 0, rows)};
  };
  const bool is_first = !step.output.drawn;
  if (is_first) step.output.drawn = Tensor::empty(host_memory_, {kind.sequences}, DType::I64);
  if (is_first || (!step.graph && !capture(step))) return without_padding(compute(step));
  step.graph->run(ctx_.stream);
  return without_padding(step.output);
}

}  // namespace megatron
