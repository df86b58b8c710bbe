#pragma once

#include <csignal>

namespace megatron {

// While one exists, Ctrl-C and SIGTERM do not end the process but are remembered, so that work in pieces can
// stop between two of them and tidy up.
class Interruption {
 public:
  Interruption();
  ~Interruption();
  Interruption(const Interruption&) = delete;

  void check() const;  // an Error where a signal came

 private:
  struct sigaction before_[2];
};

}  // namespace megatron
