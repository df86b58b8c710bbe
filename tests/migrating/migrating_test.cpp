// The commands of docs/migrating.md: those that train resolve without a refusal, all others exist, with the
// flags that they are given.
#include <gtest/gtest.h>

#include <iomanip>
#include <sstream>

#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/config/schema/catalog.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

// The words of each command in the page's blocks marked sh, from `megatron` on.
std::vector<std::vector<std::string>> commands_of_page() {
  std::istringstream page(read_text_file(MEGATRON_SOURCE_DIR "/docs/migrating.md"));
  std::vector<std::vector<std::string>> result;
  std::string command;
  bool inside = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("```")) {
      inside = line == "```sh";
      continue;
    }
    if (!inside) continue;
    const bool goes_on = line.ends_with('\\');
    command += goes_on ? line.substr(0, line.size() - 1) : line;
    if (goes_on) continue;
    const size_t begin = command.find("megatron ");
    EXPECT_NE(begin, std::string::npos) << command;
    std::vector<std::string> words;
    std::istringstream rest(command.substr(begin + 9));
    for (std::string word; rest >> std::quoted(word);) words.push_back(word);
    result.push_back(std::move(words));
    command.clear();
  }
  return result;
}

// Names of the page that stand for files.
std::vector<std::string> with_files(std::vector<std::string> words) {
  for (std::string& word : words)
    if (word == "MODEL") word = MEGATRON_GOLDEN_DIR "/hf_models_a/llama/model";
  return words;
}

bool trains(const std::string& command) {
  return command == "pretrain" || command == "finetune" || command == "plan";
}

// What plan and pretrain take beside settings.
void drop_own_flags(std::vector<std::string>& words) {
  for (size_t i = 0; i < words.size(); ++i)
    if (words[i] == "--memory-gib")
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
  // A model of the reader's own: what its files say is not known here.
  for (size_t i = 0; i + 1 < words.size(); ++i)
    if (words[i] == "--hf" && words[i + 1] == "MODEL_OF_THE_RECIPE")
      words.erase(words.begin() + static_cast<std::ptrdiff_t>(i),
                  words.begin() + static_cast<std::ptrdiff_t>(i) + 2);
}

TEST(Migrating, CommandsOfThePageHold) {
  const auto commands = commands_of_page();
  EXPECT_GT(commands.size(), 30u);
  for (const std::vector<std::string>& words : commands) {
    std::string text;
    for (const std::string& word : words) text += word + " ";
    SCOPED_TRACE(text);
    if (trains(words.at(0))) {
      std::vector<std::string> args = {"config", "show", "--json"};
      args.insert(args.end(), words.begin() + 1, words.end());
      drop_own_flags(args);
      const Outcome outcome = run_command(with_files(args));
      EXPECT_EQ(outcome.code, 0) << outcome.err;
      if (outcome.code == 0) {
        const Json unavailable = Json::parse(outcome.out).at("unavailable");
        EXPECT_EQ(unavailable.size(), 0u) << unavailable.dump();
      }
      continue;
    }
    std::vector<std::string> args = {words[0]};
    if (words.size() > 1 && !run_command({words[0], words[1], "--help"}).out.empty() &&
        words[0] != "generate")
      args.push_back(words[1]);
    args.emplace_back("--help");
    Outcome help = run_command(args);
    if (help.code != 0) help = run_command({words[0], "--help"});
    ASSERT_EQ(help.code, 0) << help.err;
    for (const std::string& word : words)
      if (word.starts_with("--")) {
        EXPECT_TRUE(help.out.find(word) != std::string::npos || Catalog::all().find_flag(word)) << word;
      }
  }
}

}  // namespace
}  // namespace megatron
