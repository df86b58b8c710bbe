#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>

#include "fuzz/mutate.h"
#include "megatron/base/error.h"

namespace megatron::testing {

// How many times as many inputs as usual: more in `test --full`.
inline int times() {
  const char* text = std::getenv("MEGATRON_FUZZ_TIMES");
  return text ? std::stoi(text) : 1;
}

// Feeds `count` spoiled texts (times times()); each must end within ten seconds, which is a thousand times
// what it takes.
template <class Parse>
void fuzz(Mutator mutator, int count, Parse parse) {
  int taken = 0, refused = 0;
  count *= times();
  for (int i = 0; i < count; ++i) {
    std::string text = mutator.next();
    auto begin = std::chrono::steady_clock::now();
    try {
      parse(text);
      ++taken;
    } catch (const Error&) {
      ++refused;
    } catch (const std::exception& error) {
      FAIL() << "input " << i << ": " << error.what() << "\n" << text;
    }
    ASSERT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10)) << "input " << i << ":\n"
                                                                                  << text;
  }
  EXPECT_GT(refused, count / 20) << "the inputs are hardly spoiled";
  EXPECT_GT(taken, 0) << "the inputs are spoiled beyond all parsing";
}

}  // namespace megatron::testing
