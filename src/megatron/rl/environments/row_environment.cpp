#include "megatron/rl/environments/row_environment.h"

#include <algorithm>

#include "megatron/base/refuse.h"

namespace megatron::rl {
namespace {

constexpr int64_t kMaxHeldOut = 1024;

std::shared_ptr<const RowSource> open_rows(EnvironmentArguments& arguments, std::string_view key) {
  const auto path = arguments.file(key);
  if (!path) return nullptr;
  try {
    auto rows = open_row_source(*path);
    if (rows->size() > 0) return rows;
    arguments.reject("{}: {} has no rows", key, *path);
  } catch (const Error& error) {
    arguments.reject("{}: {}", key, error.what());
  }
  return nullptr;
}

}  // namespace

Json RowRange::row(int64_t i) const {
  return refuse_faults(origin(i), [&] {
    Json row = rows->row(first + i);
    require(row.is_object(), "expected an object, got {}", row.type_name());
    return row;
  });
}

std::optional<TaskRows> open_task_rows(EnvironmentArguments& arguments, const SplitDefaults& defaults) {
  const auto wanted_training = arguments.count("train_rows"),
             wanted_validation = arguments.count("validation_rows");
  const std::string hub = arguments.text("hf_dataset_name", "");
  arguments.pass_over("split");  // of a hub's dataset; a file has one
  const bool has_validation_file = arguments.has("validation_file");
  const bool named = arguments.has("dataset_file");
  if (!named && !hub.empty()) {
    arguments.reject(
        "hf_dataset_name: datasets of a hub are not fetched; give 'dataset_file: train.jsonl', which is "
        "written "
        "by python3 -c \"import datasets; datasets.load_dataset('{}', "
        "split='train').to_json('train.jsonl')\"",
        hub);
  } else if (!named) {
    arguments.reject("dataset_file: missing; name a file of JSON lines or Parquet");
  }
  const auto rows = open_rows(arguments, "dataset_file"), other = open_rows(arguments, "validation_file");
  if (!rows || (has_validation_file && !other)) return {};

  const int64_t all = rows->size();
  if (other) {
    const int64_t training = defaults.evaluation_only ? 0 : wanted_training.value_or(all);
    const int64_t held = wanted_validation.value_or(other->size());
    if (training <= all && held <= other->size()) return TaskRows{{rows, 0, training}, {other, 0, held}};
    arguments.reject("train_rows, validation_rows: the files have {} and {} rows; ask for no more", all,
                     other->size());
    return {};
  }
  if (defaults.evaluation_only)
    return TaskRows{{rows, 0, 0}, {rows, 0, std::min(all, wanted_validation.value_or(all))}};
  const bool standard = defaults.training_rows > 0 && all >= defaults.training_rows + kMaxHeldOut;
  const int64_t tenth = all < 2 ? 0 : std::clamp<int64_t>(all / 10, 1, kMaxHeldOut);
  int64_t held = wanted_validation.value_or(standard ? kMaxHeldOut : tenth);
  if (wanted_training && !wanted_validation) held = std::clamp<int64_t>(all - *wanted_training, 0, held);
  const int64_t training = wanted_training.value_or(
      standard && !wanted_validation ? defaults.training_rows : std::max<int64_t>(all - held, 0));
  if (training + held <= all) return TaskRows{{rows, 0, training}, {rows, training, held}};
  arguments.reject("train_rows, validation_rows: {} and {} rows of {}; ask for no more than there are",
                   training, held, all);
  return {};
}

RolloutTask RowEnvironment::make(const RowRange& range, int64_t index) const {
  require(index >= 0 && index < range.count, "{}: task {} of {}", name(), index, range.count);
  RolloutTask task{name(), index};
  task.data = range.row(index);
  try {
    task.messages = messages(task.data);
    task.prompt = prompt(task.data);
  } catch (const Error& error) {
    refuse("{}: {}", range.origin(index), error.what());
  }
  if (task.messages.empty()) task.messages.push_back({"user", task.prompt});
  if (!system_prompt_.empty() && task.messages.front().role != "system") {
    task.messages.insert(task.messages.begin(), {"system", system_prompt_});
    task.prompt = system_prompt_ + "\n" + task.prompt;
  }
  return task;
}

std::string text_of(const Json& row, std::string_view key) {
  const Json* found = row.find(key);
  require(found != nullptr, "the row has no '{}'", key);
  if (found->is_number()) return found->dump();
  require(found->is_string(), "'{}' is neither a text nor a number, but {}", key, found->type_name());
  return found->as_string();
}

}  // namespace megatron::rl
