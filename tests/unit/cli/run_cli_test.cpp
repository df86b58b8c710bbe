#include <gtest/gtest.h>

#include <sstream>

#include "megatron/base/error.h"
#include "megatron/cli/command.h"
#include "megatron/cli/help_text.h"
#include "megatron/cli/version.h"
#include "support/capture.h"

namespace megatron {
namespace {

int echo(Invocation& invocation) {
  for (const std::string& arg : invocation.args) fmt::print(invocation.out, "[{}]", arg);
  invocation.log.warning("w");
  invocation.log.info("i");
  invocation.log.debug("d");
  return 0;
}

int raise(Invocation& invocation) {
  const std::string kind = invocation.args.at(0);
  if (kind == "config") throw ConfigError("tp=8 does not divide heads=4");
  if (kind == "usage") throw UsageError("raise: wrong");
  if (kind == "fault") fail("disk: full");
  return 17;
}

constexpr Command table[] = {
    {"echo", "prints its arguments", [] { return std::string("usage: megatron echo\n"); }, echo},
    {"raise", "throws", [] { return std::string("usage: megatron raise\n"); }, raise},
};

struct Outcome {
  int code;
  std::string out, err;
};

Outcome run(std::vector<std::string> args) {
  Capture out, err;
  const int code = run_cli(table, std::move(args), out.file(), err.file());
  return {code, out.text(), err.text()};
}

TEST(RunCli, HelpListsTheTable) {
  for (const auto& args : {std::vector<std::string>{}, {"--help"}, {"-h"}, {"help"}}) {
    const Outcome outcome = run(args);
    EXPECT_EQ(outcome.code, 0);
    EXPECT_NE(outcome.out.find("  echo   prints its arguments\n  raise  throws\n"), std::string::npos)
        << outcome.out;
    EXPECT_EQ(outcome.err, "");
  }
}

TEST(RunCli, HelpOfOneCommand) {
  EXPECT_EQ(run({"echo", "a", "--help"}).out, "usage: megatron echo\n");
  EXPECT_EQ(run({"help", "raise"}).out, "usage: megatron raise\n");
  EXPECT_EQ(run({"echo", "--", "--help"}).out, "[--][--help]");
}

TEST(RunCli, UnknownCommandNamesTheNearest) {
  const Outcome outcome = run({"ehco"});
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.err, "megatron: there is no command 'ehco': did you mean 'echo'?\n");
  EXPECT_EQ(run({"--verison"}).err, "megatron: there is no option '--verison': did you mean '--version'?\n");
  EXPECT_EQ(run({"zzzzzz"}).err, "megatron: there is no command 'zzzzzz': see megatron --help\n");
}

TEST(RunCli, VerbosityStandsAnywhere) {
  EXPECT_EQ(run({"echo", "a"}).err, "warning: w\ni\n");
  EXPECT_EQ(run({"-q", "echo", "a"}).err, "warning: w\n");
  EXPECT_EQ(run({"echo", "a", "-v"}).err, "warning: w\ni\nd\n");
  EXPECT_EQ(run({"echo", "-v", "a", "--", "-q"}).out, "[a][--][-q]");
}

TEST(RunCli, ErrorsBecomeExitCodes) {
  EXPECT_EQ(run({"raise", "config"}).code, 1);
  EXPECT_EQ(run({"raise", "config"}).err, "megatron: tp=8 does not divide heads=4\n");
  EXPECT_EQ(run({"raise", "usage"}).code, 2);
  EXPECT_EQ(run({"raise", "fault"}).code, 3);
  EXPECT_EQ(run({"raise"}).code, 3);  // an exception that is no Error
  EXPECT_EQ(run({"raise", "none"}).code, 17);
}

TEST(RunCli, FullOutputIsAFault) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  Capture err;
  EXPECT_EQ(run_cli(table, {"--help"}, full, err.file()), 3);
  EXPECT_EQ(err.text(), "megatron: cannot write the results: the output is full or closed\n");
  std::fclose(full);
}

TEST(RunCli, EveryCommandHasItsTexts) {
  for (const Command& command : commands()) {
    EXPECT_FALSE(command.summary.empty()) << command.name;
    EXPECT_NE(command.help().find("megatron " + std::string(command.name)), std::string::npos)
        << command.name;
    EXPECT_NE(command.run, nullptr) << command.name;
  }
}

// They are in a table like others, and told in one line instead of one each.
TEST(RunCli, FlagsWithoutEffectAreToldTogether) {
  Capture out, err;
  ASSERT_EQ(run_cli(commands(), {"generate", "--help"}, out.file(), err.file()), 0);
  const std::string text = out.text();
  EXPECT_NE(text.find("\naccepted, no effect here: --inference-repeat-n"), std::string::npos) << text;
  EXPECT_NE(text.find("--throughput-check-only\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("each prompt is answered once"), std::string::npos) << text;
}

// What does not fit a terminal of 80 columns is read by nobody; only a single word may be longer.
TEST(RunCli, HelpFitsATerminal) {
  std::vector<std::vector<std::string>> calls = {{"--help"}, {"help", "settings"}};
  for (const Command& command : commands()) calls.push_back({std::string(command.name), "--help"});
  for (const char* part : {"ops", "train", "comm", "generate", "serve"})
    calls.push_back({"bench", part, "--help"});
  for (const std::vector<std::string>& args : calls) {
    Capture out, err;
    ASSERT_EQ(run_cli(commands(), args, out.file(), err.file()), 0);
    std::istringstream text(out.text());
    int lines = 0;
    for (std::string line; std::getline(text, line); ++lines) {
      const size_t word = line.find_first_not_of(' ');
      EXPECT_TRUE(line.size() <= 80 || line.find(' ', word) == std::string::npos ||
                  line.starts_with("  --"))  // a flag and its choices
          << args[0] << ": " << line;
    }
    EXPECT_TRUE(lines < 100 || args[0] == "help") << args[0] << " has " << lines << " lines";
    EXPECT_EQ(out.text().find("options:\noptions:"), std::string::npos) << args[0];
  }
}

TEST(HelpText, FillsParagraphsAndIndentsWhatGoesOn) {
  EXPECT_EQ(
      fill_help("usage: megatron x\n\none two three\nfour five\n\noptions:\n  --a N  one two three\n"
                "  --b    four\n",
                16),
      "usage: megatron\n       x\n\none two three\nfour five\n\noptions:\n  --a N  one two\n         three\n"
      "  --b    four\n");
  EXPECT_EQ(fill_help("averyveryverylongword\n", 10), "averyveryverylongword\n");
}

TEST(Version, NamesCompilerAndOptions) {
  const std::string text = run({"--version"}).out;
  EXPECT_TRUE(text.starts_with("megatron " + std::string(build_info().version) + "\n")) << text;
  for (const char* name : {"compiler", "CUDA"}) EXPECT_NE(text.find(name), std::string::npos) << text;
}

}  // namespace
}  // namespace megatron
