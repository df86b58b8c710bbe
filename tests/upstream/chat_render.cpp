// Renders templates for tests/upstream/chat_fuzz.py: {"template": …, "names": {…}, "now": seconds} per line
// of input gives {"text": …, "generations": [[begin, end], …]} in characters, or {"error": …}.
#include <iostream>

#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/unicode.h"

int main() {
  using namespace megatron;
  for (std::string line; std::getline(std::cin, line);) {
    Json answer = Json::object();
    try {
      const Json request = Json::parse(line);
      chat::ChatOptions options;
      options.now = std::chrono::system_clock::from_time_t(request.at("now").as_int());
      const chat::ChatTemplate chat_template(request.at("template").as_string());
      const chat::ChatRendering rendering = chat_template.render(request.at("names"), options);
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
    } catch (const Error& error) {
      answer["error"] = std::string(error.what());
    }
    std::cout << answer.dump() << '\n' << std::flush;
  }
}
