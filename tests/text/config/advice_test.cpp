// Whoever follows the advice of a refusal is not refused again. For each problem of the text cases, and for
// each flag that is refused by name, the advice is read as a person would: every value that it lists is
// tried, and where it leaves a number open, some number must do. The problem must then be gone, and no other
// may have come.
#include "text/config/advice.h"

namespace megatron::testing {
namespace {

std::vector<Problem> problems_of(const Sources& sources, ResolveOptions options) {
  options.allow_unavailable = false;
  try {
    resolve(sources, options);
    return {};
  } catch (const Refused& refused) {
    return refused.problems();
  }
}

TEST(Advice, OfEveryRefusalIsAccepted) {
  size_t followed = 0;
  for (const TextFile& file : text_files()) {
    if (file.name == "sources" || file.name == "overrides") continue;  // how to write settings
    for (const Json& test : file.cases.as_array()) {
      SCOPED_TRACE(file.name + ": " + test.at("name").as_string());
      const Sources sources = sources_of(test);
      const ProblemsOf ask = [options = options_of(test)](const Sources& given) {
        return problems_of(given, options);
      };
      for (const Problem& problem : ask(sources)) {
        if (problem.setting[0] == '-' || problem.fix.starts_with("did you mean")) continue;
        const Catalog::Entry* entry = Catalog::all().find(problem.setting);
        const bool built = !entry || !entry->setting->limit || !entry->setting->limit->values.empty();
        if (!built && problem.reason.starts_with("this is")) continue;  // right or wrong, it is refused
        const size_t ways = follow_all(problem, sources, ask);
        EXPECT_GT(ways, 0u) << "nobody can follow: " << problem.text();
        followed += ways;
      }
    }
  }
  fmt::print("{} advices were followed\n", followed);
  EXPECT_GT(followed, 150u);
}

// Of flags that are refused: what stands in their place acts in a dense model, or in one with experts.
TEST(Advice, OfRefusedFlagsIsAccepted) {
  const std::string sizes =
      "--num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --micro-batch-size 1 "
      "--position-embedding-type rope";
  size_t followed = 0;
  for (const CompatRow& row : compat_rows()) {
    if (row.verdict != CompatRow::Verdict::refused) continue;
    EXPECT_TRUE(row.text.find("--") != std::string_view::npos ||
                row.text.find("remove") != std::string_view::npos ||
                row.text.find("megatron ") != std::string_view::npos)
        << "no advice: " << row.text;
    if (row.text.find("use --") == std::string_view::npos ||
        row.text.find("--config") != std::string_view::npos)
      continue;
    const Problem problem{row.flags.empty() ? std::string(row.keys) : words_of(row.flags).front(), "", "", "",
                          std::string(row.text.substr(row.text.find("use --")))};
    std::string why;
    bool helped = false;
    for (const char* kind : {"", " --num-experts 4"}) {
      const std::vector<std::string> words = words_of(sizes + kind);
      const Sources sources = parse_command_line(words).sources;
      const ProblemsOf ask = [](const Sources& given) {
        return problems_of(given, {.purpose = Purpose::inspect});
      };
      ASSERT_TRUE(ask(sources).empty()) << ask(sources).front().text();
      for (const Way& way : Advice(problem, sources).ways())
        for (const Overrides& one : way.tries) {
          const std::string wrong = try_advice(problem, one, sources, ask);
          helped = helped || wrong.empty();
          why += "\n  " + wrong;
        }
    }
    EXPECT_TRUE(helped) << problem.setting << ": " << problem.fix << why;
    ++followed;
  }
  EXPECT_GT(followed, 10u);
}

}  // namespace
}  // namespace megatron::testing
