#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "megatron/base/json.h"
#include "megatron/base/problems.h"

namespace megatron::rl {

// The agent_args of an environment. What is wrong with them is added to `problems`; a value that was refused
// reads as its default, so that all problems of a file are found at once.
class EnvironmentArguments {
 public:
  // `origin` begins the messages; relative names of files are looked for in `folder`, then where the program
  // runs.
  EnvironmentArguments(Json values, std::string origin, std::string folder, Problems& problems);

  bool has(std::string_view key);
  std::string text(std::string_view key, std::string_view fallback);
  std::string choice(std::string_view key,
                     const std::vector<std::string>& choices);  // the first if not given
  double number(std::string_view key, double fallback);
  std::optional<int64_t> count(std::string_view key);  // an integer from 0 on
  bool flag(std::string_view key, bool fallback);
  std::optional<std::string> file(std::string_view key);
  const Json* value(std::string_view key);

  void pass_over(std::string_view key) { known_.emplace(key); }
  template <class... Args>
  void reject(fmt::format_string<Args...> format, Args&&... args) {
    problems_.add("{}: {}", origin_, fmt::format(format, std::forward<Args>(args)...));
  }
  // Rejects what nobody has asked for.
  void reject_unknown();
  const std::string& origin() const { return origin_; }

 private:
  Json values_;
  std::string origin_, folder_;
  Problems& problems_;
  std::set<std::string, std::less<>> known_;
};

}  // namespace megatron::rl
