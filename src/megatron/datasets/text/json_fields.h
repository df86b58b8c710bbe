#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// A string, or the strings of a list end to end.
struct JsonText {
  std::string text;
  bool list = false;
  std::vector<size_t> ends;  // of each string of a list
};

// Takes the members of chosen keys, strings or lists of strings, out of JSON objects without building the
// rest. Texts are accepted and refused as by Python's json.loads on UTF-8: NaN and Infinity pass, control
// characters in strings and lone surrogates do not.
class JsonFields {
 public:
  explicit JsonFields(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  const std::vector<std::string>& keys() const { return keys_; }
  // values[k] becomes the text of key k; of a key that occurs twice, the last counts. Returns what is wrong,
  // if anything: malformed JSON, a key that is missing, a value that is neither a string nor a list of
  // strings.
  std::optional<std::string> parse(std::string_view line, std::vector<JsonText>& values) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace megatron
