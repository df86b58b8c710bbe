#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "megatron/inference/request.h"
#include "megatron/server/marker_scanner.h"
#include "megatron/server/served_model.h"

namespace megatron {

struct TextOptions {
  std::vector<std::string> stop;
  bool include_stop = false;  // the stop string itself belongs to the text
  bool skip_special_tokens = true;
  std::set<int64_t> shown_special_tokens =
      {};  // although others are skipped: those that begin calls of tools
};

// Turns the tokens of one answer into its text, as far as it is certain: whole characters that begin no stop
// string.
class AnswerText {
 public:
  AnswerText(const ServedModel& model, TextOptions options);

  // The text that a token completes.
  std::string push(int64_t token);
  // What was held back; nothing behind a stop string.
  std::string finish();
  // Whether a stop string has come.
  bool stopped() const { return stop_.has_value(); }
  const std::optional<std::string>& stop() const { return stop_; }

 private:
  std::string scan(const std::string& text);

  const ServedModel* model_;
  TextOptions options_;
  StreamDecoder decoder_;
  MarkerScanner scanner_;
  std::optional<std::string> stop_;
};

}  // namespace megatron
