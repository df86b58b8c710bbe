#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron {

// Takes the string members of chosen keys out of JSON objects without building the rest. Texts are accepted
// and refused as by Python's json.loads on UTF-8: NaN and Infinity pass, control characters in strings and
// lone surrogates do not.
class JsonFields {
 public:
  explicit JsonFields(std::vector<std::string> keys) : keys_(std::move(keys)) {}

  const std::vector<std::string>& keys() const { return keys_; }
  // values[k] becomes the text of key k; of a key that occurs twice, the last counts. Returns what is wrong,
  // if anything: malformed JSON, a key that is missing, a value that is no string.
  std::optional<std::string> parse(std::string_view line, std::vector<std::string>& values) const;

 private:
  std::vector<std::string> keys_;
};

}  // namespace megatron
