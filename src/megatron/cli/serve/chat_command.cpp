#include "megatron/cli/commands.h"

#include <unistd.h>

#include <atomic>
#include <iostream>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/interruption.h"
#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/serve/model_service.h"
#include "megatron/server/document_ids.h"
#include "megatron/server/http_client.h"

namespace megatron {
namespace {

std::vector<CommandFlag> chat_flags() {
  std::vector<CommandFlag> flags = service_flags();
  flags.insert(flags.end(), {{"--url", 1, "a server instead of a model: http://HOST:PORT"},
                             {"--api-key", 1, "the server's key"},
                             {"--system", 1, "the system prompt"},
                             {"--temperature", 1, "0: the likeliest token each time [1]"},
                             {"--max-tokens", 1, "of an answer [what the model can hold]"}});
  return flags;
}

double parse_temperature(const std::string& text) {
  return text == "0" ? 0 : parse_positive("chat", "--temperature", text, 100);
}

// A conversation with a server: what was said so far, and how the next answer is asked for.
class Conversation {
 public:
  Conversation(HttpUrl url, const CommandLine& line, std::FILE* out, const Interruption& interruption)
      : url_(std::move(url)), key_(line.get("--api-key")), out_(out), interruption_(interruption) {
    settings_["stream"] = true;
    if (line.has("--temperature")) settings_["temperature"] = parse_temperature(line.get("--temperature"));
    if (line.has("--max-tokens"))
      settings_["max_tokens"] = parse_int("chat", "--max-tokens", line.get("--max-tokens"));
    if (line.has("--system")) system_ = line.get("--system");
    clear();
  }

  void clear() {
    messages_ = Json::array();
    if (!system_.empty()) add("system", system_);
  }

  // Asks, and writes the answer as it comes.
  void say(const std::string& text) {
    const Json before = messages_;
    try {
      add("user", text);
      ask();
    } catch (...) {
      messages_ = before;  // what was not answered was not said
      throw;
    }
  }

 private:
  void ask() {
    Json body = settings_;
    body["messages"] = messages_;
    HttpUrl url = url_;
    url.path += "/v1/chat/completions";
    std::string received, answer;
    const int status = http_request(url, "POST", body.dump(), key_, [&](std::string_view part) {
      received += part;
      // Some servers send comments, which begin with a colon, while they have nothing to say.
      for (size_t end; (received.starts_with("data: ") || received.starts_with(':')) &&
                       (end = received.find("\n\n")) != std::string::npos;) {
        if (received[0] != ':') take(received.substr(6, end - 6), answer);
        received.erase(0, end + 2);
      }
      return interruption_.signal() == 0;
    });
    if (status != 200) throw Error(fmt::format("chat: {}", message_of(received, status)));
    fmt::print(out_, "\n");
    std::fflush(out_);
    add("assistant", answer);
  }

  void add(const char* role, const std::string& text) {
    Json message = Json::object();
    message["role"] = role;
    message["content"] = text;
    messages_.push_back(message);
  }

  void take(const std::string& event, std::string& answer) {
    if (event == "[DONE]") return;
    const Json document = Json::parse(event, "answer");
    if (const Json* error = document.find("error")) throw Error("chat: " + error->at("message").as_string());
    for (const Json& choice : document.at("choices").as_array())
      for (const char* name : {"reasoning_content", "content"})
        if (const Json* text = choice.at("delta").find(name); text && text->is_string()) {
          fmt::print(out_, "{}", text->as_string());
          std::fflush(out_);
          if (name == std::string_view("content")) answer += text->as_string();
        }
  }

  static std::string message_of(const std::string& body, int status) {
    try {
      return Json::parse(body).at("error").at("message").as_string();
    } catch (const Error&) {
      return fmt::format("the server answered with status {}", status);
    }
  }

  HttpUrl url_;
  std::string key_, system_;
  std::FILE* out_;
  const Interruption& interruption_;
  Json settings_ = Json::object(), messages_;
};

// Each line of the input is said; "/clear" begins anew, "/exit" and the end of the input end it. In a
// terminal a refusal, such as of a conversation that has become too long, ends nothing.
void converse(Conversation& conversation, const Invocation& invocation, const Interruption& interruption) {
  const bool asks = isatty(STDIN_FILENO) != 0;
  const auto prompt = [&] {
    if (!asks) return;
    fmt::print(invocation.out, "> ");
    std::fflush(invocation.out);
  };
  prompt();
  for (std::string line; interruption.signal() == 0 && std::getline(std::cin, line); prompt()) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    if (line == "/exit") return;
    if (line == "/clear") {
      conversation.clear();
      continue;
    }
    try {
      conversation.say(line);
    } catch (const Error& error) {
      if (!asks || interruption.signal() != 0) throw;
      invocation.log.error("{}", error.what());
    }
  }
}

// Serves the model on a free port of this machine, for one client that knows the key.
void chat_with_model(Invocation& invocation, CommandLine line, const Interruption& interruption) {
  const std::string key = random_id("chat-");
  line.own["--api-key"] = {key};
  std::atomic<bool> over = false;
  std::exception_ptr fault;
  std::thread talk;
  ServeOptions options;
  options.http.port = 0;
  options.service.api_key = key;
  options.drain_seconds = 0;
  options.is_over = [&] { return over.load() || interruption.signal() != 0; };
  options.on_ready = [&](int port) {
    talk = std::thread([&, port] {
      try {
        Conversation conversation(HttpUrl::parse(fmt::format("http://127.0.0.1:{}", port)), line,
                                  invocation.out, interruption);
        converse(conversation, invocation, interruption);
      } catch (...) {
        fault = std::current_exception();
      }
      over = true;
    });
  };
  try {
    serve_model(invocation, line, "chat", options);
  } catch (...) {
    if (!fault) fault = std::current_exception();
  }
  if (talk.joinable()) talk.join();
  if (fault) std::rethrow_exception(fault);
}

}  // namespace

std::string chat_help() {
  return model_command_help(
      "usage: megatron chat (--hf DIR | --ckpt DIR | --url http://HOST:PORT) [options]\n"
      "\n"
      "A conversation in the terminal, with a model or with a server of one. /clear begins anew, /exit ends "
      "it.\n",
      chat_flags());
}

int run_chat(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, chat_flags());
  const Interruption interruption;
  if (!line.has("--url")) {
    chat_with_model(invocation, line, interruption);
    return 0;
  }
  if (line.has("--ckpt") || !line.hf_dir.empty())
    throw UsageError("chat: --url names a server; leave --hf and --ckpt out");
  Conversation conversation(HttpUrl::parse(line.get("--url")), line, invocation.out, interruption);
  converse(conversation, invocation, interruption);
  return 0;
}

}  // namespace megatron
