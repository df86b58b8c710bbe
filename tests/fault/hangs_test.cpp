// Processes that hang: how soon the others say who, and go on.
#include <regex>

#include "fault/survival.h"

namespace megatron::testing {
namespace {

using namespace std::chrono_literals;

// A fault, settings, and what the other processes say of it.
struct Named {
  std::string fault;
  std::vector<std::string> further;
  std::string words;  // a regular expression
  double within;      // seconds, with what a busy machine may add
};

// With the time-outs that nobody has set: three median steps, which are short here, or five seconds. A
// stopped process says nothing itself, and its heartbeats cease.
TEST(Hangs, TheCulpritIsNamedSoon) {
  const char* missing_rank = R"(within 5\.0 s: missing ranks 1\b)";
  const Named cases[] = {
      {"hang@1:40", {"--enable-ft-package"}, missing_rank, 8},
      // A run that ends has asked the silent process before, and does not wait for its goodbye.
      {"stop@1:40", {"--enable-ft-package"}, missing_rank, 6.5},
      {"stop@1:40",
       {"--inprocess-restart"},
       R"(restart 1: (process 1 has not been heard of for 5\.|.*within 5\.0 s: missing ranks 1\b))",
       8}};
  constexpr size_t kCases = std::size(cases);
  TempDir dirs[kCases];
  std::vector<pid_t> children[kCases];
  for (size_t i = 0; i < kCases; ++i) {
    std::vector<std::string> args = batch_of_24(
        100'000, {"--inject-fault", cases[i].fault, "--metrics", dirs[i] / "metrics", "--log-interval", "1"});
    args.insert(args.end(), cases[i].further.begin(), cases[i].further.end());
    children[i] = start_processes(3, args, dirs[i] / "messages");
  }
  const auto said = [&](size_t i) {
    std::string text;
    for (const char* file : {"messages0", "messages2"})
      if (std::filesystem::exists(dirs[i] / file)) text += read_text(dirs[i] / file);
    return text;
  };
  const auto last_step = [&](size_t i) {
    const std::string path = dirs[i] / "metrics";
    return std::filesystem::exists(path) ? std::filesystem::last_write_time(path)
                                         : std::filesystem::file_time_type::min();
  };
  using FileClock = std::filesystem::file_time_type::clock;
  // When the last step ended, and the longest that no other one came since.
  FileClock::time_point last[kCases];
  double pause[kCases] = {};
  std::optional<double> seconds[kCases];
  const auto begun = std::chrono::steady_clock::now();
  const auto missing = [&] { return std::ranges::count(seconds, std::optional<double>()); };
  while (missing() > 0 && std::chrono::steady_clock::now() - begun < 40s) {
    std::this_thread::sleep_for(10ms);
    for (size_t i = 0; i < kCases; ++i) {
      if (seconds[i]) continue;
      // Where the others go on, further steps come before their words.
      if (const auto step = last_step(i); step != FileClock::time_point::min()) {
        if (step == last[i])
          pause[i] = std::max(pause[i], std::chrono::duration<double>(FileClock::now() - step).count());
        last[i] = step;
      }
      if (std::regex_search(said(i), std::regex(cases[i].words))) seconds[i] = pause[i];
    }
  }
  for (const std::vector<pid_t>& processes : children)
    for (const pid_t child : processes) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  for (size_t i = 0; i < kCases; ++i) {
    SCOPED_TRACE(fmt::format("{} {}", cases[i].fault, cases[i].further[0]));
    ASSERT_TRUE(seconds[i]) << said(i);
    fmt::print("{} {}: {:.2f} s\n", cases[i].fault, cases[i].further[0], *seconds[i]);
    EXPECT_GT(*seconds[i], 4);
    EXPECT_LT(*seconds[i], cases[i].within);
  }
}

// Where a process has died, nobody waits long for the answers of those that are stopped or hang beside it.
TEST(Hangs, TwoFaultsAtOnceTakeLessThanASecond) {
  for (const Division& division : {kReplicas, kTensor})
    for (const char* faults : {"kill@5:7,stop@2:7", "kill@5:7,hang@2:7", "stop@2:7,throw@6:7"}) {
      SCOPED_TRACE(faults);
      std::vector<double> seconds;
      survive(
          division, 20, faults, [](const auto&) {}, seconds);
      for (const double each : seconds) {
        fmt::print("{}: {:.2f} s\n", faults, each);
        EXPECT_LE(each, 1.0);
      }
    }
}

}  // namespace
}  // namespace megatron::testing
