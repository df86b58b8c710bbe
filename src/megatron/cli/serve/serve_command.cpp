#include "megatron/cli/commands.h"

#include "megatron/base/error.h"
#include "megatron/base/interruption.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/serve/model_service.h"
#include "megatron/server/http_client.h"

namespace megatron {
namespace {

std::vector<CommandFlag> serve_flags() {
  std::vector<CommandFlag> flags = service_flags();
  flags.insert(flags.end(), {{"--host", 1, "address to listen on [127.0.0.1]"},
                             {"--port", 1, "port, 0 for a free one [8000]"},
                             {"--api-key", 1, "ask clients for this key"},
                             {"--max-queue", 1, "requests at once; more get 429 [512]"},
                             {"--max-body-mib", 1, "largest request, in MiB [16]"},
                             {"--request-timeout", 1, "seconds that an answer may take [600]"},
                             {"--drain-timeout", 1, "seconds that answers have after SIGTERM [30]"}});
  return flags;
}

int64_t whole_from(const CommandLine& line, const char* flag, int64_t otherwise, int64_t min, int64_t max) {
  if (!line.has(flag)) return otherwise;
  const int64_t value = parse_int("serve", flag, line.get(flag));
  if (value < min || value > max)
    throw UsageError(fmt::format("serve: {} {} is out of range; give {} to {}", flag, value, min, max));
  return value;
}

}  // namespace

std::string serve_help() {
  return model_command_help(
      "usage: megatron serve (--hf DIR | --ckpt DIR) [--port 8000] [options]\n"
      "\n"
      "Serves a model to OpenAI's clients: /v1/chat/completions, /v1/completions and others, with a page to "
      "talk to\n"
      "it at /. Prints one line with its address when it is ready. SIGTERM lets answers end, then exits.\n",
      serve_flags());
}

int run_serve(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, serve_flags());
  ServeOptions options;
  options.http.host = line.get("--host", "127.0.0.1");
  options.http.port = static_cast<int>(whole_from(line, "--port", 8000, 0, 65535));
  options.http.max_body_bytes = whole_from(line, "--max-body-mib", 16, 1, 4096) << 20;
  options.http.answer_seconds = static_cast<double>(whole_from(line, "--request-timeout", 600, 1, 1000000));
  options.drain_seconds = static_cast<double>(whole_from(line, "--drain-timeout", 30, 0, 1000000));
  options.service.api_key = line.get("--api-key");
  if (line.has("--api-key") && options.service.api_key.empty())
    throw UsageError("serve: --api-key is empty, so that everybody could ask; give a key, or leave it out");
  options.service.max_requests = whole_from(line, "--max-queue", 512, 1, 1000000);
  const Interruption interruption;
  options.is_over = [&] { return interruption.signal() != 0; };
  options.on_ready = [&](int port) {
    const HttpUrl url{options.http.host, std::to_string(port), ""};
    fmt::print(invocation.out, "serving at http://{}\n", url.authority());
    std::fflush(invocation.out);
  };
  serve_model(invocation, line, "serve", options);
  return 0;
}

}  // namespace megatron
