// Every flag that Megatron-LM's programs and launch scripts know is understood here too: it sets something,
// stands for settings, changes nothing here and says so, or is refused with what to do instead.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "megatron/config/schema/catalog.h"
#include "megatron/config/sources/command_line.h"
#include "megatron/config/sources/compat.h"
#include "megatron/config/sources/shorthand.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

// With `named` those alone that examples, documentation or test configurations name.
std::vector<std::string> upstream_flags(bool named = false) {
  std::istringstream text(
      testing::read_text(std::string(MEGATRON_SOURCE_DIR) + "/tests/unit/config/upstream_flags.txt"));
  std::vector<std::string> flags;
  for (std::string line; std::getline(text, line);) {
    if (!line.starts_with("--")) continue;
    const size_t blank = std::min(line.find(' '), line.size());
    if (!named || blank < line.size()) flags.push_back(line.substr(0, blank));
  }
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
  EXPECT_EQ(settings + shorthands + compat, 1031u);
}

using FlagsByReason = std::map<std::string, std::vector<std::string>, std::less<>>;

std::string section(const std::string& title, const char* lead, const FlagsByReason& flags) {
  size_t count = 0;
  for (const auto& [reason, names] : flags) count += names.size();
  if (count == 0) return "";
  std::string text =
      fmt::format("\n## {} ({})\n\n{}\n\n| reason | flags |\n| --- | --- |\n", title, count, lead);
  for (const auto& [reason, names] : flags)
    text += fmt::format("| {} | {} |\n", reason, fmt::join(names, " "));
  return text;
}

// Whether a flag belongs to another command than those that train.
bool of_command(const CompatRow& row) { return row.text.starts_with("an option of megatron "); }

// Whether a setting, several of them or the commands that train take the flag.
bool acts(const std::string& flag) {
  const CompatFlag found = find_compat_flag(flag);
  return Catalog::all().find_flag(flag) || find_shorthand(flag) || !found.row ||
         found.row->text.starts_with("an option of megatron pretrain ");
}

std::string flag_page() {
  FlagsByReason by_verdict[3], of_commands;
  std::vector<std::string> acting;
  for (const std::string& flag : upstream_flags()) {
    const CompatFlag found = find_compat_flag(flag);
    if (acts(flag))
      acting.push_back(flag);
    else if (of_command(*found.row))
      of_commands[std::string(found.row->text)].push_back(flag);
    else
      by_verdict[static_cast<size_t>(found.row->verdict)][std::string(found.row->text)].push_back(flag);
  }
  using enum CompatRow::Verdict;
  return "# Megatron-LM's flags\n\nWhat becomes of each flag that Megatron-LM's programs know; `megatron "
         "explain KEY` says "
         "more about one. The page is\nwritten by the test unit.config from the tables that the program "
         "itself "
         "reads "
         "(`MEGATRON_WRITE_DOCS=1` writes it anew).\n" +
         section("Accepted, no effect here", "A run that is given one of them says so and goes on.",
                 by_verdict[static_cast<size_t>(ignored)]) +
         section("Options of other commands", "Those take them; pretrain and finetune say which does.",
                 of_commands) +
         section("Refused", "What the refusal says.", by_verdict[static_cast<size_t>(refused)]) +
         section("Not built yet", "Refused until it is; by subject.",
                 by_verdict[static_cast<size_t>(planned)]) +
         fmt::format("\n## They act ({})\n\n{}\n", acting.size(), fmt::join(acting, " "));
}

// How many flags have each fate, and the reasons that most of those which do not act have.
std::string flag_summary() {
  std::map<std::string, size_t> reasons[3];
  size_t acting = 0, elsewhere = 0, counts[3] = {};
  for (const std::string& flag : upstream_flags()) {
    const CompatFlag found = find_compat_flag(flag);
    if (acts(flag)) {
      ++acting;
    } else if (of_command(*found.row)) {
      ++elsewhere;
    } else {
      const auto verdict = static_cast<size_t>(found.row->verdict);
      ++counts[verdict];
      ++reasons[verdict][std::string(found.row->text)];
    }
  }
  using enum CompatRow::Verdict;
  std::string text = fmt::format(
      "| what becomes of it | flags | most of them |\n| --- | --- | --- |\n| acts | {} | |\n| an option of "
      "generate or launch | {} | |\n",
      acting, elsewhere);
  for (const auto& [title, verdict] : {std::pair{"accepted, no effect here", ignored},
                                       {"refused, with what to do instead", refused},
                                       {"not built yet", planned}}) {
    const auto& all = reasons[static_cast<size_t>(verdict)];
    if (all.empty()) continue;
    std::vector<std::pair<size_t, std::string>> largest;
    for (const auto& [reason, count] : all) largest.emplace_back(count, reason);
    std::stable_sort(largest.begin(), largest.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    largest.resize(std::min<size_t>(largest.size(), 8));
    std::vector<std::string> shown;
    for (const auto& [count, reason] : largest) shown.push_back(fmt::format("{} ({})", reason, count));
    text += fmt::format("| {} | {} | {} |\n", title, counts[static_cast<size_t>(verdict)],
                        fmt::join(shown, "; "));
  }
  return text;
}

// Of the flags that scripts in use name, those that are refused.
FlagsByReason refused_of_named() {
  FlagsByReason refusals;
  for (const std::string& flag : upstream_flags(true)) {
    const CompatFlag found = find_compat_flag(flag);
    if (!acts(flag) && !of_command(*found.row) && found.row->verdict != CompatRow::Verdict::ignored)
      refusals[std::string(found.row->text)].push_back(flag);
  }
  return refusals;
}

std::string named_summary() {
  std::string text = "| refused, of those that its examples and tests name | flags |\n| --- | --- |\n";
  for (const auto& [reason, flags] : refused_of_named())
    text += fmt::format("| {} | {} |\n", reason, fmt::join(flags, " "));
  return text;
}

// A flag that Megatron-LM's examples, documentation or test configurations name acts, or has no effect here
// for a reason that docs/flags.md gives. Why others do not:
TEST(UpstreamFlags, ThoseInUseAreTaken) {
  const std::map<std::string, const char*> exceptions = {
      {"it leaves out the layers that speculative heads would be trained behind; remove it",
       "speculative heads of other kinds than MTP layers are not built"},
      {"keys and values keep the width of the model; remove it",
       "the cache of a run that trains is not rounded"},
      {"weights that are trained keep their width; use --export-quant-cfg FP8_DEFAULT_CFG, and remove it",
       "weights of checkpoints are rounded by megatron generate and serve"},
      {"Python modules are not read; say by settings what its layers are, such as --hybrid-layer-pattern or "
       "--normalization, and remove it",
       "the specifications of Megatron Core are taken, modules of one's own are not"}};
  EXPECT_GT(upstream_flags(true).size(), 500u);
  const FlagsByReason refusals = refused_of_named();
  for (const auto& [reason, flags] : refusals)
    EXPECT_TRUE(exceptions.contains(reason)) << fmt::format("{}: {}", reason, fmt::join(flags, " "));
  for (const auto& [reason, why] : exceptions)
    EXPECT_TRUE(refusals.contains(reason))
        << "no flag is refused because it " << reason << "; delete the row";
}

// docs/flags.md says what the program does with each flag, docs/differences.md with how many.
TEST(UpstreamFlags, TheirPagesAreTrue) {
  const std::string docs = std::string(MEGATRON_SOURCE_DIR) + "/docs/";
  const bool writes = std::getenv("MEGATRON_WRITE_DOCS") != nullptr;
  std::string differences = testing::read_text(docs + "differences.md");
  for (const auto& [title, table] :
       {std::pair{"| what becomes of it |", flag_summary()},
        {"| refused, of those that its examples and tests name |", named_summary()}}) {
    const size_t begin = differences.find(title);
    ASSERT_NE(begin, std::string::npos) << title;
    const size_t size = std::min(differences.find("\n\n", begin) + 1, differences.size()) - begin;
    if (writes) {
      differences.replace(begin, size, table);
    } else {
      EXPECT_EQ(differences.substr(begin, size), table) << "run with MEGATRON_WRITE_DOCS=1";
    }
  }
  if (writes) {
    std::ofstream(docs + "flags.md") << flag_page();
    std::ofstream(docs + "differences.md") << differences;
    return;
  }
  EXPECT_EQ(testing::read_text(docs + "flags.md"), flag_page()) << "run with MEGATRON_WRITE_DOCS=1";
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
