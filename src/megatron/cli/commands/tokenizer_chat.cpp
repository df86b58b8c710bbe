#include "megatron/cli/commands/tokenizer_chat.h"

#include <istream>
#include <map>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/help_text.h"
#include "megatron/tokenizers/chat/chat_template.h"
#include "megatron/tokenizers/chat/template_folder.h"

namespace megatron {
namespace {

struct ChatArguments {
  std::string path, name;
  bool spans = false;
};

std::vector<Flag> flags_of(ChatArguments& arguments) {
  return {text_flag("--template", "PATH", "a Jinja file, tokenizer_config.json, or a model's folder",
                    arguments.path),
          text_flag("--template-name", "NAME", "which of several templates [default; tool_use with tools]",
                    arguments.name),
          switch_flag("--spans", "also print the bytes that generation blocks wrote", arguments.spans)};
}

// The templates of a model, each parsed when it is first needed.
class Templates {
 public:
  explicit Templates(const ChatArguments& arguments)
      : found_(chat::read_chat_templates(arguments.path)), name_(arguments.name) {}

  chat::ChatRendering render(const Json& conversation) {
    const Json* tools = conversation.find("tools");
    const std::string& source = found_.choose(name_, tools && !tools->is_null());
    auto parsed = parsed_.find(&source);
    if (parsed == parsed_.end()) parsed = parsed_.emplace(&source, chat::ChatTemplate(source)).first;
    return parsed->second.render(chat::chat_names(found_.special_tokens, conversation));
  }

 private:
  chat::ChatTemplates found_;
  std::string name_;
  std::map<const std::string*, chat::ChatTemplate> parsed_;
};

Json answer_to(Templates& templates, const std::string& line, bool spans) {
  Json answer = Json::object();
  try {
    const Json conversation = Json::parse(line, "conversation");
    if (!conversation.is_object())
      throw ConfigError(fmt::format("conversation: it is {}, expected an object", conversation.type_name()));
    const chat::ChatRendering rendering = templates.render(conversation);
    answer["text"] = rendering.text;
    if (spans) {
      Json list = Json::array();
      for (const chat::TextSpan& span : rendering.generations)
        list.push_back(Json(Json::Array{Json(uint64_t{span.begin}), Json(uint64_t{span.end})}));
      answer["spans"] = list;
    }
  } catch (const Error& error) {
    answer["error"] = std::string(error.what());
  }
  return answer;
}

}  // namespace

std::string tokenizer_chat_help() {
  ChatArguments arguments;
  return fill_help(
             "usage: megatron tokenizer chat --template PATH\n\n"
             "Renders conversations with a chat template. Each line of the input is a JSON object with "
             "messages, and "
             "with whatever else the template reads: tools, add_generation_prompt, bos_token. Each line of "
             "the output "
             "is {\"text\": ...} or {\"error\": ...}.\n\n") +
         flags_help(flags_of(arguments));
}

int run_tokenizer_chat(Invocation& invocation, std::istream& in) {
  ChatArguments arguments;
  const auto flags = flags_of(arguments);
  const auto words = parse_flags("tokenizer chat", invocation.args, flags);
  if (!words.empty())
    throw UsageError(
        fmt::format("tokenizer chat: unexpected '{}'; conversations come from the input", words[0]));
  if (arguments.path.empty()) throw UsageError("tokenizer chat: no template; give --template PATH");
  Templates templates(arguments);
  for (std::string line; std::getline(in, line);) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::fputs((answer_to(templates, line, arguments.spans).dump() + "\n").c_str(), invocation.out);
    std::fflush(invocation.out);
  }
  return 0;
}

}  // namespace megatron
