#include "megatron/datasets/sft/learned_text.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/tokenizers/chat/template_folder.h"

namespace megatron {
namespace {

using chat::TextSpan;

bool is_answer(const Json& message) { return message.at("role") == Json("assistant"); }

// How many bytes two texts begin with alike, never half a character.
size_t common_prefix(const std::string& a, const std::string& b) {
  size_t size = static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  while (size > 0 && size < a.size() && (a[size] & 0xc0) == 0x80) --size;
  return size;
}

// Sorted, cut to the text, overlaps joined.
std::vector<TextSpan> tidy(std::vector<TextSpan> spans, size_t size) {
  std::sort(spans.begin(), spans.end(),
            [](const TextSpan& a, const TextSpan& b) { return a.begin < b.begin; });
  std::vector<TextSpan> result;
  for (TextSpan span : spans) {
    span.end = std::min(span.end, size);
    if (span.begin >= span.end) continue;
    if (!result.empty() && span.begin < result.back().end) {
      result.back().end = std::max(result.back().end, span.end);
    } else {
      result.push_back(span);
    }
  }
  return result;
}

std::string render_messages(const SftRow& row, size_t count, bool generation_prompt,
                            const chat::ChatTemplate& chat_template, const Json& special_tokens,
                            const chat::ChatOptions& options) {
  Json conversation = row.names;
  const auto& messages = row.messages.as_array();
  conversation["messages"] = Json(Json::Array(messages.begin(), messages.begin() + static_cast<long>(count)));
  conversation["add_generation_prompt"] = generation_prompt;
  return chat_template.render(chat::chat_names(special_tokens, conversation), options).text;
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

}  // namespace

LearnedText render_conversation(const SftRow& row, const chat::ChatTemplate& chat_template,
                                const Json& special_tokens, LossMode mode, const std::string& origin,
                                const chat::ChatOptions& options) {
  Json conversation = row.names;
  conversation["messages"] = row.messages;
  const auto& messages = row.messages.as_array();
  LearnedText result;
  std::vector<TextSpan> answers;
  try {
    chat::ChatRendering whole = chat_template.render(chat::chat_names(special_tokens, conversation), options);
    result.text = std::move(whole.text);
    if (mode == LossMode::full) {
      result.learned = tidy({{0, result.text.size()}}, result.text.size());
      return result;
    }
    std::vector<size_t> written;  // the messages that are answers
    for (size_t i = 0; i < messages.size(); ++i)
      if (is_answer(messages[i])) written.push_back(i);
    if (chat_template.has_generation()) {
      answers = whole.generations;
      const auto skipped = static_cast<size_t>(
          std::lower_bound(written.begin(), written.end(), row.first_learned) - written.begin());
      if (skipped > 0) {
        if (answers.size() != written.size())
          throw ConfigError(
              fmt::format("{}: the template has {} generation blocks for {} answers, so the prompt's cannot "
                          "be told apart",
                          origin, answers.size(), written.size()));
        answers.erase(answers.begin(), answers.begin() + static_cast<long>(skipped));
      }
    } else {
      for (size_t i : written) {
        if (i < row.first_learned || (mode == LossMode::last_turn && i != written.back())) continue;
        const size_t begin =
            common_prefix(result.text, render_messages(row, i, true, chat_template, special_tokens, options));
        const size_t end = i + 1 == messages.size()
                               ? result.text.size()
                               : common_prefix(result.text, render_messages(row, i + 1, false, chat_template,
                                                                            special_tokens, options));
        const Json* content = messages[i].find("content");
        const std::string_view wanted =
            content && content->is_string() ? trimmed(content->as_string()) : std::string_view();
        if (begin > end ||
            std::string_view(result.text).substr(begin, end - begin).find(wanted) == std::string_view::npos)
          throw ConfigError(
              fmt::format("{}: the template rewrites the answer of message {}, so its place is not known; "
                          "use a template with "
                          "generation blocks",
                          origin, i));
        answers.push_back({begin, end});
      }
    }
  } catch (const chat::TemplateError& problem) {
    throw ConfigError(fmt::format("{}: chat template: {}", origin, problem.what()));
  }
  if (mode == LossMode::last_turn && answers.size() > 1) answers.erase(answers.begin(), answers.end() - 1);
  result.learned = tidy(std::move(answers), result.text.size());
  return result;
}

LearnedText fill_prompt(const SftRow& row, std::string_view form, LossMode mode, const std::string& origin) {
  constexpr std::string_view kInput = "{input}", kOutput = "{output}";
  if (!form.ends_with(kOutput) || form.find(kOutput) + kOutput.size() != form.size())
    throw ConfigError(fmt::format("{}: the form '{}' does not end in its one {{output}}", origin, form));
  form.remove_suffix(kOutput.size());
  LearnedText result;
  for (size_t at = 0;;) {
    const size_t place = form.find(kInput, at);
    result.text += form.substr(at, place - at);
    if (place == std::string_view::npos) break;
    result.text += row.prompt;
    at = place + kInput.size();
  }
  const size_t begin = result.text.size();
  result.text += row.completion;
  if (begin > 0 && begin < result.text.size()) result.cuts.push_back(begin);
  result.learned = tidy({{mode == LossMode::full ? 0 : begin, result.text.size()}}, result.text.size());
  return result;
}

}  // namespace megatron
