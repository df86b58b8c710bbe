#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/process_group.h"
#include "unit/comm/wrap.h"

// What tests of faults between ranks share. Nothing here waits for ever: a test that fails ends.
namespace megatron::testing {

constexpr auto kLongest = std::chrono::minutes(2);  // that anything here takes, on a busy machine

// Asks again and again until `holds`.
template <class Holds>
void wait_until(const char* what, Holds&& holds) {
  for (Patience patience(kLongest); !holds(); std::this_thread::sleep_for(std::chrono::milliseconds(1)))
    require(!patience.over(), "the test has waited for two minutes: {}", what);
}

// Joins no collective and returns, by an exception, when the world is aborted.
inline void stay_away(const ProcessGroup& world) {
  wait_until("the end of the world", [&] {
    world.require_running();
    return false;
  });
}

inline void wait_for(const std::atomic<int>& count, int wanted) {
  wait_until("ranks that come", [&] { return count >= wanted; });
}

// One of four ranks: each waits for the next one in half a second, and the last one stays away.
inline void wait_in_a_row(int rank, ProcessGroup& world, std::atomic<int>& called) {
  std::vector<float> values(6);
  if (rank == 3) return stay_away(world);
  if (rank == 0) {
    wait_for(called, 2);
    world.set_timeout(std::chrono::milliseconds(500));
  }
  Work work = world.recv(wrap(values), rank + 1);
  ++called;
  work.wait();
}

inline void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace megatron::testing
