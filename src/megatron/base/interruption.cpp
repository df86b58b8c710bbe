#include "megatron/base/interruption.h"

#include <atomic>
#include <iterator>

#include "megatron/base/error.h"

namespace megatron {
namespace {

// A handler can reach nothing else. Threads of several ranks read it.
std::atomic<int> received = 0;
std::atomic<bool> second_ends = true, twice = false;
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<bool>::is_always_lock_free);

void remember(int signal) {
  if (signal == SIGINT && received == SIGINT) {
    twice = true;
    if (!second_ends) return;
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
  }
  received = signal;
}

}  // namespace

Interruption::Interruption(int further, SecondInterrupt second) : signals_{SIGINT, SIGTERM, further} {
  received = 0;
  twice = false;
  second_ends = second == SecondInterrupt::ends;
  struct sigaction action = {};
  action.sa_handler = remember;
  action.sa_flags = SA_RESTART;
  for (size_t i = 0; i < std::size(signals_); ++i) {
    if (signals_[i] == 0) continue;
    sigaction(signals_[i], nullptr, &before_[i]);
    if (before_[i].sa_handler != SIG_IGN) sigaction(signals_[i], &action, nullptr);
  }
}

Interruption::~Interruption() {
  for (size_t i = 0; i < std::size(signals_); ++i)
    if (signals_[i] != 0) sigaction(signals_[i], &before_[i], nullptr);
}

int Interruption::signal() const { return received; }

bool Interruption::came_twice() const { return twice; }

void Interruption::check() const {
  if (received) fail("interrupted; what was written is removed again, so start it once more");
}

}  // namespace megatron
