#include "megatron/cli/common/interruption.h"

#include "megatron/base/error.h"

namespace megatron {
namespace {

constexpr int kSignals[] = {SIGINT, SIGTERM};

// A handler can reach nothing else.
volatile std::sig_atomic_t received = 0;
void remember(int signal) { received = signal; }

}  // namespace

Interruption::Interruption() {
  received = 0;
  struct sigaction action = {};
  action.sa_handler = remember;
  for (size_t i = 0; i < std::size(kSignals); ++i) {
    sigaction(kSignals[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(kSignals[i], &action, nullptr);
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < std::size(kSignals); ++i) sigaction(kSignals[i], &before_[i], nullptr);
}

void Interruption::check() const {
  if (received) fail("interrupted; what was written is removed again, so start it once more");
}

}  // namespace megatron
