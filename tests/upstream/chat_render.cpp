// Renders templates for tests/upstream/chat_fuzz.py: {"template": …, "contexts": [{…}, …], "now": seconds}
// per line of input gives a list of what each context gives: {"text": …, "generations": [[begin, end], …]} in
// characters, or {"error": …}.
#include <iostream>
#include <optional>

#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/unicode.h"

namespace megatron {
namespace {

Json rendered(const chat::ChatTemplate& chat_template, const Json& names, const chat::ChatOptions& options) {
  Json answer = Json::object();
  const chat::ChatRendering rendering = chat_template.render(names, options);
  answer["text"] = rendering.text;
  Json spans = Json::array();
  auto characters = [&](size_t bytes) {
    const size_t beyond = bytes > rendering.text.size() ? bytes - rendering.text.size() : 0;
    return Json(chat::count_code_points(std::string_view(rendering.text).substr(0, bytes)) +
                static_cast<int64_t>(beyond));
  };
  for (const chat::TextSpan& span : rendering.generations)
    spans.push_back(Json(Json::Array{characters(span.begin), characters(span.end)}));
  answer["generations"] = spans;
  return answer;
}

}  // namespace
}  // namespace megatron

int main() {
  using namespace megatron;
  for (std::string line; std::getline(std::cin, line);) {
    const Json request = Json::parse(line);
    chat::ChatOptions options;
    options.now = std::chrono::system_clock::from_time_t(request.at("now").as_int());
    std::optional<chat::ChatTemplate> chat_template;
    Json answers = Json::array();
    for (const Json& names : request.at("contexts").as_array()) {
      try {
        if (!chat_template) chat_template.emplace(request.at("template").as_string());
        answers.push_back(rendered(*chat_template, names, options));
      } catch (const Error& error) {
        Json answer = Json::object();
        answer["error"] = std::string(error.what());
        answers.push_back(answer);
      }
    }
    std::cout << answers.dump() << '\n' << std::flush;
  }
}
