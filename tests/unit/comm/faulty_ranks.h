#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>

#include "megatron/comm/process_group.h"

// What tests of faults between ranks share.
namespace megatron::testing {

// Joins no collective and returns, by an exception, when the world is aborted.
inline void stay_away(const ProcessGroup& world) {
  while (true) {
    world.require_running();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

inline void wait_for(const std::atomic<int>& count, int wanted) {
  while (count < wanted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

inline void expect_contains(const std::string& text, std::initializer_list<const char*> parts) {
  for (const char* part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "no \"" << part << "\" in: " << text;
}

}  // namespace megatron::testing
