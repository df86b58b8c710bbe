#pragma once

#include <csignal>

namespace megatron {

// What a second Ctrl-C does: it ends the process at once, or is remembered too.
enum class SecondInterrupt : bool { ends, remembered };

// While one exists, Ctrl-C and SIGTERM do not end the process but are remembered, so that work in pieces can
// stop between two of them and tidy up.
class Interruption {
 public:
  // `further`: a signal that is remembered as well, such as SIGUSR1 of a batch system; 0: none.
  explicit Interruption(int further = 0, SecondInterrupt second = SecondInterrupt::ends);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  int signal() const;       // that came; 0: none
  bool came_twice() const;  // a second Ctrl-C came, which was to be remembered
  void check() const;       // an Error where a signal came

 private:
  int signals_[3];
  struct sigaction before_[3];
};

}  // namespace megatron
