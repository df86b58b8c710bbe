#pragma once

#include <string>
#include <vector>

#include "megatron/base/error.h"

namespace megatron {

// One thing that is wrong with a configuration.
struct Problem {
  std::string setting;  // "model.hidden_size", or the flag or file that could not be understood
  std::string value;    // as given; empty where there is none
  std::string origin;   // "--hidden-size 7", "train.yaml:3"
  std::string reason;
  std::string fix;
  bool usage = false;  // the command line could not be understood, rather than a value refused

  std::string text() const;  // one line
};

// All that is wrong, thrown together.
class Refused : public ConfigError {
 public:
  explicit Refused(std::vector<Problem> problems);
  const std::vector<Problem>& problems() const { return problems_; }
  int exit_code() const override;  // that of wrong usage where nothing else is wrong

 private:
  std::vector<Problem> problems_;
};

}  // namespace megatron
