#include "megatron/report/run_log.h"

#include <charconv>
#include <cmath>
#include <filesystem>
#include <limits>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"

namespace megatron::report {
namespace {

namespace fs = std::filesystem;

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

// The lines of a text but for a last one without an end.
template <class Visit>
void for_each_line(std::string_view text, Visit visit) {
  int number = 1;
  for (size_t at = 0, end; (end = text.find('\n', at)) != std::string_view::npos; at = end + 1, ++number)
    visit(text.substr(at, end - at), number);
}

// A folder's metrics.jsonl, or its only .jsonl file.
fs::path metrics_of(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) {
    if (!fs::is_regular_file(path, ignored))
      throw ConfigError(fmt::format("report: {}: there is no such file or folder", path.string()));
    return path;
  }
  if (fs::is_regular_file(path / "metrics.jsonl", ignored)) return path / "metrics.jsonl";
  std::vector<fs::path> found;
  for (const fs::directory_entry& entry : fs::directory_iterator(path))
    if (entry.path().extension() == ".jsonl") found.push_back(entry.path());
  if (found.size() == 1) return found.front();
  throw ConfigError(
      fmt::format("report: {}: {} .jsonl files and none is metrics.jsonl; name the file that --metrics wrote",
                  path.string(), found.empty() ? "no" : "several"));
}

class Reader {
 public:
  explicit Reader(std::string origin) : origin_(std::move(origin)) {}

  void row(std::string_view line, int number) {
    if (line.empty()) return;
    const std::string where = fmt::format("{}:{}", origin_, number);
    Json row;
    try {
      row = Json::parse(line, where);
    } catch (const Error& error) {
      throw ConfigError(fmt::format("report: {}", error.what()));
    }
    const Json* iteration = row.is_object() ? row.find("iteration") : nullptr;
    if (!iteration || !iteration->is_number())
      throw ConfigError(fmt::format("report: {}: a row is an object with an iteration", where));
    const double at = iteration->as_double();
    if (const Json* event = row.find("event")) return add_event(at, *event, where);
    if (!log.iterations.empty() && at <= log.iterations.back())
      throw ConfigError(fmt::format("report: {}: iteration {} follows {}", where, at, log.iterations.back()));
    log.iterations.push_back(at);
    for (const auto& [key, value] : row.as_object()) {
      if (key == "iteration") continue;
      if (value.is_number() || value.is_null())
        place(log.metrics[key], value.is_null() ? kNone : value.as_double(), kNone);
      if (value.is_array()) place(log.lists[key], numbers(value), {});
      if (key == "skipped" && value == Json(true))
        log.events.push_back({at, fmt::format("update of iteration {} skipped", at), "skip", 0});
    }
  }

  void finish() {
    for (auto& [key, values] : log.metrics) values.resize(log.iterations.size(), kNone);
    for (auto& [key, values] : log.lists) values.resize(log.iterations.size());
  }

  RunLog log;

 private:
  // Rows may lack a key for a while.
  template <class Value>
  void place(std::vector<Value>& values, Value value, const Value& none) {
    values.resize(log.iterations.size() - 1, none);
    values.push_back(std::move(value));
  }

  static std::vector<double> numbers(const Json& list) {
    std::vector<double> values;
    for (const Json& value : list.as_array()) values.push_back(value.is_number() ? value.as_double() : kNone);
    return values;
  }

  void add_event(double at, const Json& event, const std::string& where) {
    if (!event.is_string())
      throw ConfigError(fmt::format("report: {}: event is {}", where, event.type_name()));
    log.events.push_back({at, fmt::format("{}, iteration {}", event.as_string(), at), event.as_string(), 0});
  }

  std::string origin_;
};

// --log-progress: "…\tSaved checkpoint\tIteration: 500\t…", and "…\tStarting job" before those of a start.
void read_progress(const std::string& text, RunLog& log) {
  double last = 0;
  int starts = 0;
  for_each_line(text, [&](std::string_view line, int) {
    if (line.find("Starting job") != std::string_view::npos && ++starts > 1)
      log.events.push_back({last, fmt::format("started again after iteration {}", last), "restart", 0});
    constexpr std::string_view field = "Iteration: ";
    const size_t at = line.find(field);
    if (line.find("Saved checkpoint") == std::string_view::npos || at == std::string_view::npos) return;
    double iteration = 0;
    const char* begin = line.data() + at + field.size();
    if (std::from_chars(begin, line.data() + line.size(), iteration).ec != std::errc()) return;
    last = iteration;
    log.events.push_back({iteration, fmt::format("saved, iteration {}", iteration), "save", 0});
  });
}

}  // namespace

const std::vector<double>* RunLog::find(const std::string& key) const {
  const auto found = metrics.find(key);
  return found == metrics.end() ? nullptr : &found->second;
}

RunLog read_run_log(const std::string& path) {
  const fs::path file = metrics_of(path);
  Reader reader(file.string());
  for_each_line(read_text_file(file.string()),
                [&](std::string_view line, int number) { reader.row(line, number); });
  reader.finish();
  if (reader.log.iterations.empty())
    throw ConfigError(fmt::format("report: {}: it has no rows", file.string()));
  std::error_code ignored;
  if (const fs::path progress = file.parent_path() / "progress.txt"; fs::is_regular_file(progress, ignored))
    read_progress(read_text_file(progress.string()), reader.log);
  // A folder's name may have dots: runs/lr0.1.
  const bool by_folder = file.stem() == "metrics";
  reader.log.name = (by_folder ? fs::absolute(file).parent_path().filename() : file.stem()).string();
  return std::move(reader.log);
}

}  // namespace megatron::report
