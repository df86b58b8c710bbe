// Every flag that Megatron-LM's programs and launch scripts know is understood here too: it sets something,
// stands for settings, changes nothing here and says so, or is refused with what to do instead.
#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

std::vector<std::string> upstream_flags() {
  std::istringstream text(
      testing::read_text(std::string(MEGATRON_SOURCE_DIR) + "/tests/unit/config/upstream_flags.txt"));
  std::vector<std::string> flags;
  for (std::string line; std::getline(text, line);)
    if (line.starts_with("--")) flags.push_back(line);
  return flags;
}

TEST(UpstreamFlags, NoneIsUnknown) {
  size_t settings = 0, shorthands = 0, compat = 0;
  for (const std::string& flag : upstream_flags()) {
    if (Catalog::all().find_flag(flag)) {
      ++settings;
    } else if (find_shorthand(flag)) {
      ++shorthands;
    } else if (const CompatFlag found = find_compat_flag(flag); found.row) {
      ++compat;
      EXPECT_FALSE(found.row->text.empty()) << flag;
    } else {
      ADD_FAILURE() << flag << " falls through to \"there is no such flag\"";
    }
  }
  EXPECT_GT(settings, 200u);
  EXPECT_GT(shorthands, 5u);
  EXPECT_GT(compat, 200u);
  EXPECT_EQ(settings + shorthands + compat, 1029u);
}

// What a script gives after a flag is taken with it, so that no later word is misread.
TEST(UpstreamFlags, TakeTheirValues) {
  for (const std::string& flag : upstream_flags()) {
    const std::vector<std::string> args = {flag, "1", "--num-layers", "2"};
    const CommandLine line = parse_command_line(args);
    const std::set<std::string> rest(line.words.begin(), line.words.end());
    EXPECT_TRUE(rest.empty() || rest == std::set<std::string>{"1"}) << flag;
    EXPECT_FALSE(line.sources.flags.empty()) << flag;
  }
}

}  // namespace
}  // namespace megatron
