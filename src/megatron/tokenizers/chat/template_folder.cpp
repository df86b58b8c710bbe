#include "megatron/tokenizers/chat/template_folder.h"

#include <algorithm>
#include <filesystem>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"

namespace megatron::chat {
namespace {

namespace fs = std::filesystem;

void add_files(const fs::path& folder, ChatTemplates& found) {
  if (fs::is_regular_file(folder / "chat_template.jinja"))
    found.sources.emplace_back("default", read_text_file((folder / "chat_template.jinja").string()));
  const fs::path more = folder / "additional_chat_templates";
  if (!fs::is_directory(more)) return;
  std::vector<fs::path> paths;
  for (const auto& entry : fs::directory_iterator(more))
    if (entry.path().extension() == ".jinja") paths.push_back(entry.path());
  std::sort(paths.begin(), paths.end());
  for (const fs::path& path : paths)
    found.sources.emplace_back(path.stem().string(), read_text_file(path.string()));
}

// "chat_template": a text, or a list of {"name": …, "template": …}.
void add_member(const Json& config, const std::string& path, ChatTemplates& found) {
  const Json* member = config.is_object() ? config.find("chat_template") : nullptr;
  if (!member || member->is_null()) return;
  if (member->is_string()) {
    found.sources.emplace_back("default", member->as_string());
    return;
  }
  if (!member->is_array())
    throw ConfigError(
        fmt::format("{}: chat_template is {}, expected a text or a list", path, member->type_name()));
  for (const Json& one : member->as_array()) {
    const Json* name = one.is_object() ? one.find("name") : nullptr;
    const Json* source = one.is_object() ? one.find("template") : nullptr;
    if (!name || !source || !name->is_string() || !source->is_string())
      throw ConfigError(fmt::format("{}: a chat template has no name or no template", path));
    found.sources.emplace_back(name->as_string(), source->as_string());
  }
}

// A special token is a text, or an object with its text and how it is matched.
void add_special_tokens(const Json& config, ChatTemplates& found) {
  if (!config.is_object()) return;
  for (const char* name :
       {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
    const Json* token = config.find(name);
    if (token && token->is_object()) token = token->find("content");
    if (token && token->is_string()) found.special_tokens[name] = *token;
  }
}

}  // namespace

ChatTemplates read_chat_templates(const std::string& path) {
  ChatTemplates found;
  if (!fs::is_directory(path)) {
    if (fs::path(path).extension() == ".json") {
      const Json config = Json::read(path);
      add_member(config, path, found);
      add_special_tokens(config, found);
    } else {
      found.sources.emplace_back("default", read_text_file(path));
    }
    return found;
  }
  const fs::path folder = path;
  const std::string settings = (folder / "tokenizer_config.json").string();
  const Json config = fs::exists(settings) ? Json::read(settings) : Json::object();
  add_special_tokens(config, found);
  // Folders without a list of added tokens are older; their special tokens stand in a file of their own.
  const fs::path tokens = folder / "special_tokens_map.json";
  if (fs::exists(tokens) && !(config.is_object() && config.contains("added_tokens_decoder")))
    add_special_tokens(Json::read(tokens.string()), found);
  add_files(folder, found);
  if (found.sources.empty()) add_member(config, settings, found);
  const fs::path processor = folder / "chat_template.json";
  if (found.sources.empty() && fs::exists(processor))
    add_member(Json::read(processor.string()), processor.string(), found);
  return found;
}

const std::string& ChatTemplates::choose(const std::string& name, bool with_tools) const {
  auto find = [&](const std::string& wanted) {
    return std::find_if(sources.begin(), sources.end(),
                        [&](const auto& source) { return source.first == wanted; });
  };
  auto chosen = sources.end();
  if (name.empty() && with_tools) chosen = find("tool_use");
  if (chosen == sources.end()) chosen = find(name.empty() ? "default" : name);
  if (chosen != sources.end()) return chosen->second;
  std::string names;
  for (const auto& source : sources) names += (names.empty() ? "" : ", ") + source.first;
  if (names.empty()) throw ConfigError("chat template: the model has none; give one by a file");
  throw ConfigError(fmt::format("chat template: no template '{}' (there are: {}); name one of them",
                                name.empty() ? "default" : name, names));
}

Json chat_names(const Json& special_tokens, const Json& conversation) {
  Json names = special_tokens;
  if (names.is_null()) names = Json::object();
  names["tools"] = Json();
  names["documents"] = Json();
  names["add_generation_prompt"] = false;
  for (const auto& [name, value] : conversation.as_object()) names[name] = value;
  return names;
}

}  // namespace megatron::chat
