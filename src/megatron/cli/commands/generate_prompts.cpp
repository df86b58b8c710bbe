#include "megatron/cli/commands/generate_prompts.h"

#include <algorithm>
#include <sstream>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/flags.h"

namespace megatron {
namespace {

bool is_token_list(const Json& json) {
  return json.is_array() &&
         std::ranges::all_of(json.as_array(), [](const Json& item) { return item.is_int(); });
}

std::vector<int64_t> token_list(const Json& json) {
  std::vector<int64_t> ids;
  for (const Json& item : json.as_array()) ids.push_back(item.as_int());
  return ids;
}

Prompt prompt_of_line(const std::string& line, const std::string& origin) {
  const char first = line[line.find_first_not_of(" \t")];
  if (first != '"' && first != '{' && first != '[') return {line, {}};
  Json json;
  try {
    json = Json::parse(line, origin);
  } catch (const Error&) {
    if (first == '[') return {line, {}};
    throw;
  }
  if (json.is_string()) return {json.as_string(), {}};
  if (is_token_list(json)) return {"", token_list(json)};
  if (json.is_object()) {
    for (const char* key : {"text", "prompt"})
      if (const Json* text = json.find(key); text && text->is_string()) return {text->as_string(), {}};
    if (const Json* ids = json.find("ids"); ids && is_token_list(*ids)) return {"", token_list(*ids)};
  }
  throw ConfigError(fmt::format(
      "{}: a line is a JSON string, an array of tokens, an object with `text`, `prompt` or `ids`, or text; "
      "write one of these",
      origin));
}

std::vector<Prompt> prompts_of_file(const std::string& path, int64_t most) {
  std::vector<Prompt> prompts;
  std::istringstream lines(read_text_file(path));
  int64_t number = 0;
  for (std::string line; std::ssize(prompts) < most && std::getline(lines, line);) {
    ++number;
    if (line.ends_with('\r')) line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    prompts.push_back(prompt_of_line(line, fmt::format("{}:{}", path, number)));
  }
  if (prompts.empty()) throw ConfigError(fmt::format("{}: the file has no prompt; write one a line", path));
  return prompts;
}

Prompt prompt_of_ids(const std::string& list) {
  Prompt prompt;
  for (std::string_view word : comma_separated(list))
    prompt.ids.push_back(parse_int("generate", "--prompt-ids", word));
  if (prompt.ids.empty()) throw UsageError("generate: --prompt-ids names no token");
  return prompt;
}

std::vector<Prompt> empty_prompts(int64_t count) {
  if (count > 1 << 24)
    throw UsageError(
        fmt::format("generate: --num-samples is too large (got {}, at most {})", count, 1 << 24));
  std::vector<Prompt> prompts(static_cast<size_t>(count));
  for (size_t i = 0; i < prompts.size(); ++i) prompts[i].sample = i;
  return prompts;
}

}  // namespace

std::vector<Prompt> given_prompts(const CommandLine& line) {
  int given = 0;
  for (const char* flag : {"--prompt", "--prompt-ids", "--prompts", "--prompt-file", "--sample-input-file"})
    given += line.has(flag);
  const int64_t samples =
      line.has("--num-samples") ? parse_int("generate", "--num-samples", line.get("--num-samples")) : 0;
  if (samples > 0 && given == 0) return empty_prompts(samples);
  if (samples > 0)
    throw UsageError("generate: --num-samples is of texts without a prompt; leave it or the prompts out");
  if (given != 1)
    throw UsageError(
        "generate: say what to go on from, by --prompt TEXT or --prompt-ids 1,2,3 (or --prompts TEXT..., "
        "--prompt-file FILE, or --num-samples N for texts from their beginning)");
  if (line.has("--prompt-ids")) return {prompt_of_ids(line.get("--prompt-ids"))};
  if (line.has("--prompt-file") || line.has("--sample-input-file")) {
    const int64_t most = parse_int(
        "generate", "--prompt-file-num-truncate",
        line.get("--prompt-file-num-truncate", std::to_string(std::numeric_limits<int64_t>::max())));
    return prompts_of_file(line.get("--prompt-file", line.get("--sample-input-file", "")), most);
  }
  std::vector<Prompt> prompts;
  for (const std::string& text : line.own.at(line.has("--prompt") ? "--prompt" : "--prompts")) {
    if (text.empty()) throw UsageError("generate: --prompt is empty");
    prompts.push_back({text, {}});
  }
  if (prompts.empty()) throw UsageError("generate: --prompts needs at least one text");
  return prompts;
}

}  // namespace megatron
