// Serves a script in place of a model, for the checks of this folder: every endpoint is real, and the
// likeliest token is always the script's next.
//   scripted_server TOKENIZER_FOLDER TEXT [TEMPLATE]
// Prints its address and serves until its input ends.
#include <fmt/core.h>

#include <iostream>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"
#include "megatron/server/http_server.h"
#include "megatron/server/service.h"
#include "megatron/tokenizers/make_tokenizer.h"
#include "support/scripted_backend.h"

int main(int count, char** words) {
  using namespace megatron;
  try {
    require(count >= 3, "usage: scripted_server TOKENIZER_FOLDER TEXT [TEMPLATE]");
    ServedModel model{.name = "scripted",
                      .tokenizer = make_tokenizer("HuggingFaceTokenizer", words[1]),
                      .templates = {},
                      .end_tokens = {}};
    const std::string source =
        count > 3 ? read_text_file(words[3])
                  : "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
                    "{% endfor %}<|im_start|>assistant\n";
    model.templates.sources.emplace_back("default", source);
    model.vocab_size = model.tokenizer.vocab_size();
    model.end_tokens = {model.vocab_size - 1};
    model.max_length = 4096;
    model.prepare();
    const std::vector<int64_t> script = model.encode(words[2], false);
    ScriptedBackend backend(script, model.end_tokens[0], model.vocab_size, std::chrono::milliseconds(2));
    Service service(std::move(model), backend,
                    {.style = {.tools = ToolFormat::hermes, .reasoning = true}, .version = "scripted"});
    HttpServer http({.port = 0}, [&](HttpRequest request, std::shared_ptr<HttpReply> reply) {
      service.handle(std::move(request), std::move(reply));
    });
    fmt::print("http://127.0.0.1:{}\n", http.port());
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
    }
    service.drain();
    http.drain(5);
    for (int i = 0; i < 500 && service.requests() > 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
  } catch (const std::exception& error) {
    fmt::print(stderr, "scripted_server: {}\n", error.what());
    return 1;
  }
  return 0;
}
