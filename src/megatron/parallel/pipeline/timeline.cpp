#include "megatron/parallel/pipeline/timeline.h"

#include <algorithm>
#include <cmath>

#include "megatron/base/error.h"

namespace megatron {
namespace {

std::string label(const Step& step, bool chunks) {
  const char letter = step.kind == StepKind::forward           ? 'F'
                      : step.kind == StepKind::backward_weight ? 'W'
                                                               : 'B';
  return chunks ? fmt::format("{}{}.{}", letter, step.microbatch, step.chunk)
                : fmt::format("{}{}", letter, step.microbatch);
}

}  // namespace

std::string pipeline_timeline(const PipelineShape& shape, const Simulation& run, int width) {
  const bool chunks = shape.vpp > 1;
  const Step longest{StepKind::forward, {}, shape.vpp - 1, shape.microbatches - 1};
  const size_t cell = label(longest, chunks).size() + 1;
  const auto units = static_cast<size_t>(std::lround(run.makespan));
  std::string text;
  for (size_t rank = 0; rank < run.timelines.size(); ++rank) {
    std::string line;
    for (size_t unit = 0; unit < units; ++unit) line += fmt::format("{:<{}}", ".", cell);
    for (const TimedStep& timed : run.timelines[rank]) {
      if (timed.step.kind == StepKind::send || timed.step.kind == StepKind::recv) continue;
      const auto begin = static_cast<size_t>(std::lround(timed.start)) * cell,
                 end = static_cast<size_t>(std::lround(timed.end)) * cell;
      std::string block = label(timed.step, chunks);
      block.resize(end - begin - 1, '-');
      line.replace(begin, end - begin, block + " ");
    }
    std::string head = fmt::format("rank {:<3}|", rank);
    line = head + line;
    if (static_cast<int>(line.size()) > width) line = line.substr(0, static_cast<size_t>(width - 4)) + " ...";
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text;
}

}  // namespace megatron
