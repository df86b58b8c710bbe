#include "megatron/training/log/trace_log.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <optional>

#include "megatron/base/counted.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/models/parallel_setup.h"
#include "megatron/report/trace.h"
#include "megatron/training/log/profiled_steps.h"

namespace megatron {
namespace {

using report::TraceLane;

constexpr std::string_view kPipelineRanges[] = {"forward",         "backward",      "weight gradients",
                                                "forward send",    "backward send", "forward receive",
                                                "backward receive"};
constexpr std::string_view kDataRanges[] = {"read batches", "load checkpoint", "save checkpoint"};

bool is_among(std::span<const std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

TraceLane lane_of(std::string_view range) {
  if (is_among(kPipelineRanges, range)) return TraceLane::pipeline;
  if (is_among(kDataRanges, range)) return TraceLane::data;
  // Collectives are called by kind and group.
  for (CommKind kind : {CommKind::AllReduce, CommKind::ReduceScatter, CommKind::AllGather, CommKind::AllToAll,
                        CommKind::Broadcast, CommKind::Send, CommKind::Recv, CommKind::Barrier})
    if (range.starts_with(name_of(kind)) && range.substr(name_of(kind).size()).starts_with(' '))
      return TraceLane::communication;
  return TraceLane::compute;
}

// Microseconds of a clock that processes share.
double trace_clock() {
  return std::chrono::duration<double, std::micro>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The ranges of one rank, while it is asked to listen.
class RangeRecorder final : public StepRecorder {
 public:
  using StepRecorder::StepRecorder;

  void begin(const char* name) override {
    StepRecorder::begin(name);
    // While a CUDA graph is captured, nothing runs that could be timed.
    const bool untimed =
        base_ && (std::string_view(name) == "capture" || (!open_.empty() && open_.back() == kUntimed));
    open_.push_back(untimed ? kUntimed : ranges_.size());
    if (untimed) return;
    ranges_.push_back({name, lane_of(name), trace_clock(), 0, mark(), 0});
  }
  void end() override {
    StepRecorder::end();
    if (open_.empty()) return;  // of a range that began before
    const size_t at = open_.back();
    open_.pop_back();
    if (at == kUntimed) return;
    Range& range = ranges_[at];
    range.end_event = mark();
    range.end = trace_clock();
  }

  // Every range that ended, as [lane, name, begin, end].
  std::string text() {
    if (base_) ctx_.stream.synchronize();
    Json list = Json::array();
    for (const Range& range : ranges_) {
      if (range.end == 0) continue;
      const bool on_device = base_ && (range.lane == TraceLane::compute || range.lane == TraceLane::pipeline);
      Json row = Json::array();
      row.push_back(static_cast<int>(range.lane));
      row.push_back(range.name);
      row.push_back(on_device ? device_time(range.begin_event) : range.begin);
      row.push_back(on_device ? device_time(range.end_event) : range.end);
      list.push_back(std::move(row));
    }
    ranges_.clear();
    events_.clear();
    return list.dump();
  }

 private:
  struct Range {
    std::string name;
    TraceLane lane;
    double begin, end;  // of the host; end 0: still open
    size_t begin_event, end_event;
  };

  void started() override {
    if (!ctx_.device.is_cuda() || base_) return;
    base_.emplace(ctx_.runtime, true);
    base_->record(ctx_.stream);
    ctx_.stream.synchronize();
    base_time_ = trace_clock();
  }
  void stopped() override { open_.clear(); }

  size_t mark() {
    if (!base_) return 0;
    events_.emplace_back(ctx_.runtime, true);
    events_.back().record(ctx_.stream);
    return events_.size() - 1;
  }
  double device_time(size_t event) const { return base_time_ + 1e6 * events_[event].seconds_since(*base_); }

  static constexpr size_t kUntimed = static_cast<size_t>(-1);

  std::vector<Range> ranges_;
  std::vector<size_t> open_;
  std::optional<Event> base_;  // of a GPU: its clock against the host's
  double base_time_ = 0;
  std::deque<Event> events_;
};

// Stages pass activations to the next rank of their ring and gradients to the one before, but in a V.
void add_ends(const report::TraceSpan& span, const std::vector<int>& stages,
              std::vector<report::TraceEnd>& ends) {
  const auto own = std::find(stages.begin(), stages.end(), span.rank);
  if (own == stages.end() || stages.size() < 2) return;
  const bool forward = span.name.starts_with("forward "), sends = span.name.ends_with(" send");
  if (!sends && !span.name.ends_with(" receive")) return;
  const size_t place = static_cast<size_t>(own - stages.begin()),
               step = forward == sends ? 1 : stages.size() - 1;
  ends.push_back({span.rank, stages[(place + step) % stages.size()], sends,
                  forward ? "activations" : "gradients", sends ? span.begin : span.end});
}

class TraceLog final : public ProfiledSteps<RangeRecorder> {
 public:
  explicit TraceLog(const Log& log) : log_(log) {}

 private:
  bool records(const RunView& view) const override {
    return is_recorded(view.config.profiling, view.ctx.rank);
  }

  void write(RunView& view) override {
    const std::vector<std::string> texts = all_gather_strings(view.world, recorder(view).text());
    if (!view.is_first_rank()) return;
    report::Trace trace;
    std::vector<report::TraceEnd> ends;
    for (size_t place = 0; place < texts.size(); ++place) {
      const int rank = view.world.world_ranks()[place];
      std::vector<int> stages;
      if (view.config.parallel.pipeline_schedule != PipelineSchedule::zb_v)
        for (const GroupRanks& group : view.trainer.parallel().lists())
          if (group.axis == Axis::pp && std::count(group.ranks.begin(), group.ranks.end(), rank) > 0)
            stages.assign(group.ranks.begin(), group.ranks.end());
      const Json ranges = Json::parse(texts[place], "trace");
      for (const Json& row : ranges.as_array()) {
        trace.spans.push_back({int64_t{rank}, static_cast<TraceLane>(row[0].as_int()), row[1].as_string(),
                               row[2].as_double(), row[3].as_double()});
        add_ends(trace.spans.back(), stages, ends);
      }
    }
    trace.messages = report::match_messages(ends);
    const std::string path = path_beside_logs(view.config, "trace.json");
    if (write_profile(log_, "--profile: the trace", path, report::chrome_trace(trace)))
      log_.info("profile: {} ranges of {} are in {}; ui.perfetto.dev or chrome://tracing open it",
                trace.spans.size(), counted(texts.size(), "rank"), path);
  }

  Log log_;
};

}  // namespace

std::shared_ptr<Callback> trace_log(const Log& log) { return std::make_shared<TraceLog>(log); }

}  // namespace megatron
