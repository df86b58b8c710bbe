#pragma once

#include <memory>
#include <optional>
#include <string>

#include "megatron/rl/environments/arguments.h"
#include "megatron/rl/environments/environment.h"
#include "megatron/rl/environments/row_source.h"

namespace megatron::rl {

// Rows [first, first + count) of a file.
struct RowRange {
  std::shared_ptr<const RowSource> rows;
  int64_t first = 0, count = 0;

  std::string origin(int64_t i) const { return rows->origin(first + i); }
  Json row(int64_t i) const;  // an object; a ConfigError otherwise
};

struct TaskRows {
  RowRange training, validation;
};

// How a dataset is split where arguments do not say.
struct SplitDefaults {
  bool evaluation_only = false;  // all rows are for validation
  int64_t training_rows = 0;     // of a file that has at least so many and 1024 for validation
};

// Reads dataset_file, validation_file, train_rows and validation_rows. Without a file for validation the rows
// behind the training rows serve, a tenth of the file but at most 1024. None where something was rejected.
std::optional<TaskRows> open_task_rows(EnvironmentArguments& arguments, const SplitDefaults& defaults);

// An environment whose tasks are rows of a file.
class RowEnvironment : public Environment {
 public:
  RowEnvironment(std::string name, TaskRows rows, std::string system_prompt)
      : Environment(std::move(name)), rows_(std::move(rows)), system_prompt_(std::move(system_prompt)) {}

  int64_t size() const final { return rows_.training.count; }
  RolloutTask task(int64_t index) const final { return make(rows_.training, index); }
  int64_t validation_size() const final { return rows_.validation.count; }
  RolloutTask validation_task(int64_t index) const final { return make(rows_.validation, index); }

 protected:
  // The prompt of a row; an Error, which need not name the row, where it lacks what rewards need.
  virtual std::string prompt(const Json& row) const = 0;
  // For rows whose prompt is a conversation: its messages. Without any, the prompt is the user's.
  virtual std::vector<ChatMessage> messages(const Json&) const { return {}; }

 private:
  RolloutTask make(const RowRange& range, int64_t index) const;

  TaskRows rows_;
  std::string system_prompt_;
};

// A text, or a number as JSON writes it; an Error where the row has neither.
std::string text_of(const Json& row, std::string_view key);

}  // namespace megatron::rl
