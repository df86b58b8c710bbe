#pragma once

#include <string>
#include <utility>
#include <vector>

#include "megatron/base/json.h"

namespace megatron::chat {

// The chat templates of a model and the special tokens that they may name.
struct ChatTemplates {
  std::vector<std::pair<std::string, std::string>> sources;  // by name; "default" where there is only one
  Json special_tokens = Json::object();                      // bos_token, eos_token, …: texts

  // The source of the template `name`. Without a name it is "tool_use" where tools are given and there is
  // one, else "default". A ConfigError names the templates that there are.
  const std::string& choose(const std::string& name = "", bool with_tools = false) const;
};

// Finds every template of a Hugging Face folder, in the order in which transformers prefers them:
// chat_template.jinja with additional_chat_templates/*.jinja, then tokenizer_config.json (one template, or a
// list of named ones), then chat_template.json. `path` may also be one such file. No template at all is no
// error.
ChatTemplates read_chat_templates(const std::string& path);

// What transformers gives a template: the special tokens, then tools and documents (null where there are
// none) and add_generation_prompt (false), then all members of `conversation`, messages among them.
Json chat_names(const Json& special_tokens, const Json& conversation);

}  // namespace megatron::chat
