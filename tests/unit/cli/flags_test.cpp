#include "megatron/cli/flags.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"

// Commands that take no settings read their flags as the others do.
namespace megatron::testing {
namespace {

struct Given {
  int64_t count = 0;
  std::string name;
  std::vector<std::string> files;
  bool json = false;
  std::vector<std::string> words;
};

Given parse(const std::vector<std::string>& args) {
  Given given;
  const std::vector<Flag> flags = {
      int_flag("--count", "", given.count), text_flag("--job-name", "NAME", "", given.name),
      list_flag("--input", "FILES", "", ",", given.files), switch_flag("--json", "", given.json)};
  given.words = parse_flags("tool", args, flags);
  return given;
}

std::string error_of(const std::vector<std::string>& args) {
  try {
    parse(args);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "";
}

using Words = std::vector<std::string>;

TEST(Flags, ValuesListsAndWords) {
  const Given given = parse({"run", "--input", "a", "b,c", "--count", "-0", "--job-name=-x=1", "--json"});
  EXPECT_EQ(given.words, Words{"run"});
  EXPECT_EQ(given.files, (Words{"a", "b", "c"}));
  EXPECT_EQ(given.count, 0);
  EXPECT_EQ(given.name, "-x=1");
  EXPECT_TRUE(given.json);
  // What would be an override of settings is a word here, and everything behind -- is.
  EXPECT_EQ(parse({"model.x=1", "--", "--json"}).words, (Words{"model.x=1", "--json"}));
  EXPECT_EQ(parse({"--job_name", "x"}).name, "x");
  const Given again = parse({"--input", "a", "--count", "1", "--input", "b", "--count", "2"});
  EXPECT_EQ(again.files, (Words{"a", "b"})) << "a repeated list goes on";
  EXPECT_EQ(again.count, 2) << "the last value counts";
}

TEST(Flags, Mistakes) {
  EXPECT_EQ(error_of({"--jsn"}), "tool: --jsn: there is no such flag; did you mean '--json'?");
  EXPECT_EQ(error_of({"--something-else"}),
            "tool: --something-else: there is no such flag; see megatron tool --help");
  EXPECT_EQ(
      error_of({"--job-name", "--json"}),
      "tool: --job-name: needs a value; write --job-name VALUE, or --job-name=VALUE where it begins with "
      "a dash");
  EXPECT_EQ(error_of({"--json=1"}), "tool: --json=1: takes no value; write --json alone, or leave it out");
  EXPECT_EQ(error_of({"--count", "x"}), "tool: --count needs a whole number, not 'x'");
  EXPECT_EQ(error_of({"--hidden-size", "8"}),
            "tool: --hidden-size: there is no such flag; see megatron tool --help");
}

}  // namespace
}  // namespace megatron::testing
