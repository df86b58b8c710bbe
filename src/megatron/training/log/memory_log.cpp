#include "megatron/training/log/memory_log.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "megatron/base/counted.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/report/page.h"
#include "megatron/training/log/profiled_steps.h"

namespace megatron {
namespace {

constexpr double kMiB = 1 << 20;
constexpr size_t kMostPoints = 1500, kMostRows = 24;

using Kinds = std::array<double, kMemoryTags>;  // MiB of each tag

double sum_of(const Kinds& kinds) {
  double sum = 0;
  for (double mib : kinds) sum += mib;
  return sum;
}

std::string mib(double value) { return fmt::format("{:.2f}", value); }

// What one rank holds whenever a range of work begins or ends, or an op of it was started.
class MemoryRecorder final : public StepRecorder {
 public:
  using StepRecorder::StepRecorder;

  void op(const char* name, Phase phase, const Cost& cost) override {
    StepRecorder::op(name, phase, cost);
    sample();
  }
  void begin(const char* name) override {
    StepRecorder::begin(name);
    open_.push_back({name, sample()});
  }
  void end() override {
    StepRecorder::end();
    if (open_.empty()) return;  // of a range that began before
    const auto [name, before] = open_.back();
    open_.pop_back();
    Growth& own = ranges_[name];
    own.most = std::max(own.most, sample() - before);
    ++own.times;
  }

  // {"points": [[ms, MiB of each tag], …], "ranges": [[name, MiB at most, times], …]}
  Json json() const {
    Json result = Json::object();
    Json& points = result["points"] = Json::array();
    const size_t stretch = std::max<size_t>(1, (samples_.size() + kMostPoints - 1) / kMostPoints);
    for (size_t at = 0; at < samples_.size(); at += stretch) {
      // Of a stretch the sample that holds most, so that peaks stay.
      const auto end =
          samples_.begin() + static_cast<std::ptrdiff_t>(std::min(at + stretch, samples_.size()));
      const auto most = std::max_element(
          samples_.begin() + static_cast<std::ptrdiff_t>(at), end,
          [](const Sample& a, const Sample& b) { return sum_of(a.kinds) < sum_of(b.kinds); });
      Json point = Json::array();
      point.push_back(most->ms);
      for (double value : most->kinds) point.push_back(value);
      points.push_back(std::move(point));
    }
    std::vector<std::pair<std::string, Growth>> rows(ranges_.begin(), ranges_.end());
    std::sort(rows.begin(), rows.end(),
              [](const auto& a, const auto& b) { return a.second.most > b.second.most; });
    Json& ranges = result["ranges"] = Json::array();
    for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i)
      ranges.push_back(Json::Array{rows[i].first, rows[i].second.most, rows[i].second.times});
    return result;
  }

 private:
  struct Sample {
    double ms;
    Kinds kinds;
  };
  struct Growth {
    double most = 0;  // MiB that a range left behind
    int64_t times = 0;
  };

  // The last of several steps is kept, since the first ones also fill caches.
  void started() override {
    began_ = std::chrono::steady_clock::now();
    samples_.clear();
    ranges_.clear();
    sample();
  }
  void stopped() override {
    sample();
    open_.clear();
  }

  // The total now.
  double sample() {
    const MemoryStatistics now = ctx_.allocator->statistics();
    Sample own{std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - began_).count(),
               {}};
    for (size_t tag = 0; tag < own.kinds.size(); ++tag)
      own.kinds[tag] = static_cast<double>(now.by_tag[tag].current) / kMiB;
    samples_.push_back(own);
    return sum_of(own.kinds);
  }

  std::chrono::steady_clock::time_point began_;
  std::vector<Sample> samples_;
  std::vector<std::pair<std::string, double>> open_;  // with the total before
  std::map<std::string, Growth> ranges_;
};

// The largest parameters of a rank with what they bring along.
Json tensors_of(RankTrainer& trainer) {
  std::vector<std::pair<double, Json>> rows;
  for (const Parameter* parameter : trainer.parameters()) {
    const auto bytes = [](const Tensor& tensor) {
      return tensor
                 ? static_cast<double>(tensor.numel() * static_cast<int64_t>(size_of(tensor.dtype()))) / kMiB
                 : 0.0;
    };
    const double value = bytes(parameter->value), gradient = bytes(parameter->accumulator.main_grad);
    rows.emplace_back(
        value + gradient,
        Json(Json::Array{parameter->name, fmt::format("{}", parameter->shard.local_shape), value, gradient}));
  }
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  Json result = Json::array();
  for (size_t i = 0; i < std::min(rows.size(), kMostRows); ++i) result.push_back(std::move(rows[i].second));
  return result;
}

// A rank's curves, and what its tables say of it.
void add_rank(report::Page& page, int rank, const Json& recorded) {
  report::LineChart chart{.title = fmt::format("rank {}", rank),
                          .unit = "MiB",
                          .x = "ms",
                          .series = {},
                          .marks = {},
                          .zero = true,
                          .wide = true};
  report::LineSeries total{.name = "total", .x = {}, .y = {}};
  std::vector<report::LineSeries> kinds(kMemoryTags);
  double most = 0, when = 0;
  for (const Json& point : recorded.at("points").as_array()) {
    double sum = 0;
    for (size_t tag = 0; tag < kinds.size(); ++tag) {
      kinds[tag].x.push_back(point[0].as_double());
      kinds[tag].y.push_back(point[tag + 1].as_double());
      sum += kinds[tag].y.back();
    }
    total.x.push_back(point[0].as_double());
    total.y.push_back(sum);
    if (sum > most) most = sum, when = total.x.back();
  }
  chart.marks.push_back({when, fmt::format("peak: {} MiB", mib(most)), "save"});
  chart.series.push_back(std::move(total));
  for (size_t tag = 0; tag < kinds.size(); ++tag) {
    kinds[tag].name = name_of(static_cast<MemoryTag>(tag));
    if (std::any_of(kinds[tag].y.begin(), kinds[tag].y.end(), [](double y) { return y > 0; }))
      chart.series.push_back(std::move(kinds[tag]));
  }
  page.sections.back().charts.emplace_back(std::move(chart));
  page.tiles.push_back({mib(most), fmt::format("peak MiB of rank {}", rank)});
  if (page.tiles.size() > 1) return;  // tables of the first alone
  report::Table ranges{
      .head = {fmt::format("range of work, rank {}", rank), "MiB that it added at most", "times"},
      .rows = {}};
  for (const Json& row : recorded.at("ranges").as_array())
    ranges.rows.push_back({row[0].as_string(), mib(row[1].as_double()), fmt::format("{}", row[2].as_int())});
  report::Table tensors{.head = {fmt::format("tensor, rank {}", rank), "shape", "value MiB", "gradient MiB"},
                        .rows = {}};
  for (const Json& row : recorded.at("tensors").as_array())
    tensors.rows.push_back(
        {row[0].as_string(), row[1].as_string(), mib(row[2].as_double()), mib(row[3].as_double())});
  page.tables = {std::move(ranges), std::move(tensors)};
}

class MemoryLog final : public ProfiledSteps<MemoryRecorder> {
 public:
  explicit MemoryLog(const Log& log) : log_(log) {}

 private:
  void write(RunView& view) override {
    Json own = recorder(view).json();
    own["tensors"] = tensors_of(view.trainer);
    const std::vector<std::string> texts = all_gather_strings(view.world, own.dump());
    if (!view.is_first_rank()) return;
    const ProfilingConfig& config = view.config.profiling;
    report::Page page{
        .title = "Memory of a step",
        .subtitle = fmt::format("iteration {}, {}", view.state.iteration, counted(texts.size(), "rank")),
        .runs = {},
        .tiles = {},
        .tables = {},
        .sections = {{"memory by kind", {}}}};
    for (size_t place = 0; place < texts.size(); ++place) {
      const int rank = view.world.world_ranks()[place];
      if (!is_recorded(config, rank)) continue;
      if (config.profile_ranks.empty() && page.tiles.size() == kMostRanks) break;
      add_rank(page, rank, Json::parse(texts[place], "memory"));
    }
    std::string name = config.memory_snapshot_path;
    const size_t dot = name.rfind('.');
    if (dot != std::string::npos && name.find('/', dot) == std::string::npos) name.resize(dot);
    const std::string path = path_beside_logs(view.config, name + ".html");
    if (write_profile(log_, "--record-memory-history: the page", path, report::render(page)))
      log_.info("memory of iteration {} is in {}", view.state.iteration, path);
  }

  static constexpr size_t kMostRanks = 16;  // on a page, where none are chosen

  Log log_;
};

}  // namespace

std::shared_ptr<Callback> memory_log(const Log& log) { return std::make_shared<MemoryLog>(log); }

}  // namespace megatron
