#pragma once

#include <cstdint>
#include <initializer_list>
#include <limits>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"

namespace megatron {

// The fields of a request's body. Each is read by its name once; what nobody read is unknown. A field that is
// null counts as absent. Faults are ApiErrors of status 400 that name the field.
class Fields {
 public:
  // Parses a body; malformed text is an ApiError too.
  explicit Fields(const std::string& body);

  const Json* find(const std::string& name);
  const Json& required(const std::string& name);
  bool flag(const std::string& name, bool otherwise);
  int64_t whole(const std::string& name, int64_t otherwise, int64_t min,
                int64_t max = std::numeric_limits<int64_t>::max());
  double number(const std::string& name, double otherwise, double min, double max);
  std::string text(const std::string& name, const std::string& otherwise);
  // A string or an array of strings.
  std::vector<std::string> texts(const std::string& name);
  // Fields that OpenAI's clients send and that change nothing here.
  void ignore(std::initializer_list<const char*> names);
  // An ApiError that names the first field that was not read.
  void refuse_unknown() const;

 private:
  Json body_;
  std::set<std::string, std::less<>> read_;
};

// An array of token ids below `size`.
std::vector<int64_t> token_ids(const Json& list, int64_t size, const std::string& name);

}  // namespace megatron
