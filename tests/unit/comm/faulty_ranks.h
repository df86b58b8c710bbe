#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/comm/patience.h"
#include "megatron/comm/process_group.h"

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

inline void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace megatron::testing
