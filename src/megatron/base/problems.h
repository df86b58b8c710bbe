#pragma once

#include <string>
#include <vector>

#include "megatron/base/error.h"

namespace megatron {

// Everything that is wrong with one input, told at once. The list is cut short where nobody would read on.
class Problems {
 public:
  template <class... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    if (list_.size() < 20) list_.push_back(fmt::format(format, std::forward<Args>(args)...));
    ++count_;
  }
  bool empty() const { return count_ == 0; }
  size_t count() const { return count_; }
  const std::vector<std::string>& list() const { return list_; }  // at most the first twenty

  std::string text() const {  // one indented line each
    std::string text;
    for (const std::string& problem : list_) text += "\n  " + problem;
    if (count_ > list_.size()) text += fmt::format("\n  and {} more", count_ - list_.size());
    return text;
  }
  // A ConfigError "TITLE:" and the list, where there is anything on it.
  void raise(std::string_view title) const {
    if (!empty()) throw ConfigError(fmt::format("{}:{}", title, text()));
  }

 private:
  std::vector<std::string> list_;
  size_t count_ = 0;
};

}  // namespace megatron
