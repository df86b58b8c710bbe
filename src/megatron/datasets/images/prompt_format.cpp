#include "megatron/datasets/images/prompt_format.h"

#include <fmt/format.h>

#include "megatron/base/refuse.h"

namespace megatron {
namespace {

// Turns between two marks. All of an answer's turn is learned but what introduces it.
std::string turns(std::string_view begin, std::string_view between, std::string_view end, bool bos,
                  bool trims = false) {
  const std::string content = trims ? "message['content'] | trim" : "message['content']";
  return fmt::format(
      "{}{{% for message in messages %}}{{{{ '{}' + message['role'] + '{}' }}}}"
      "{{% if message['role'] | lower == 'assistant' %}}{{% generation %}}{{{{ {} + '{}' }}}}"
      "{{% endgeneration %}}{{% else %}}{{{{ {} + '{}' }}}}{{% endif %}}{{% endfor %}}",
      bos ? "{{ bos_token }}" : "", begin, between, content, end, content, end);
}

std::string text_of(const Json& content, const std::string& mark) {
  if (content.is_string()) return content.as_string();
  std::string text;
  if (content.is_array())
    for (const Json& part : content.as_array()) {
      const Json* words = part.is_object() ? part.find("text") : nullptr;
      text += words && words->is_string() ? words->as_string() : mark;
    }
  return text;
}

std::string with_mark(std::string text, const std::string& mark) {
  constexpr std::string_view kImage = "<image>";
  if (mark == kImage) return text;
  for (size_t at = text.find(kImage); at != std::string::npos; at = text.find(kImage, at + mark.size()))
    text.replace(at, kImage.size(), mark);
  return text;
}

size_t marks_in(std::string_view text, std::string_view mark) {
  size_t count = 0;
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + mark.size()))
    ++count;
  return count;
}

}  // namespace

ImagePromptFormat image_prompt_format(const VisionConfig& vision) {
  const std::string_view name = vision.tokenizer_prompt_format;
  ImagePromptFormat format;
  if (name == "mistral") {
    format.system = false;
    format.chat_template =
        "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}"
        "{{ '[INST] ' + message['content'] + '[/INST]' }}{% elif message['role'] == 'assistant' %}"
        "{% generation %}{{ ' ' + message['content'] + eos_token }}{% endgeneration %}{% endif %}{% endfor "
        "%}";
  } else if (name == "llama3p1" || name == "llama3p2") {
    format.chat_template = turns("<|start_header_id|>", "<|end_header_id|>\\n\\n", "<|eot_id|>", true, true);
  } else if (name == "nvlm-yi-34b" || name == "qwen2p0" || name == "qwen2p5") {
    format.chat_template = turns("<|im_start|>", "\\n", "<|im_end|>\\n", name == "nvlm-yi-34b");
    if (vision.force_system_message && name != "nvlm-yi-34b")
      format.forced_system = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";
  } else if (name == "nemotron5") {
    format.chat_template = turns("<SPECIAL_14>", "\\n", "<SPECIAL_15>\\n", true);
  } else if (name == "nemotron5-aligned") {
    format.capital_roles = true;
    format.chat_template = turns("", "\\n", "\\n[PREFIX]", true);
  }
  return format;
}

Json formatted_messages(const Json& messages, const ImagePromptFormat& format, const std::string& mark,
                        size_t images) {
  Json result = Json::array();
  size_t named = 0;
  for (const Json& message : messages.as_array()) {
    Json copy = message;
    const Json* content = message.find("content");
    copy["content"] = with_mark(content ? text_of(*content, mark) : "", mark);
    named += marks_in(copy.at("content").as_string(), mark);
    const bool is_system = copy.at("role") == Json("system");
    if (is_system && (!format.system || !format.forced_system.empty()) && result.size() == 0) continue;
    result.push_back(copy);
  }
  bool missing = named < images;
  Json whole = Json::array();
  if (!format.forced_system.empty())
    whole.push_back(Json::Object{{"role", "system"}, {"content", format.forced_system}});
  for (Json message : result.as_array()) {
    std::string role = message.at("role").as_string();
    if (missing && role == "user") {
      std::string before;
      for (size_t i = named; i < images; ++i) before += mark;
      message["content"] = before + "\n" + message.at("content").as_string();
      missing = false;
    }
    if (format.capital_roles && !role.empty() && role[0] >= 'a' && role[0] <= 'z')
      role[0] = static_cast<char>(role[0] - 'a' + 'A');
    message["role"] = role;
    whole.push_back(message);
  }
  return whole;
}

std::vector<std::string> tile_tags(const VisionConfig& vision) {
  const std::string_view format = vision.tokenizer_prompt_format;
  const bool many = vision.max_num_tiles >= 10, nemotron = format.starts_with("nemotron");
  std::vector<std::string> tags;
  for (int64_t i = 1; i <= vision.max_num_tiles; ++i)
    tags.push_back(many || nemotron ? fmt::format("<tile_{:02}>", i) : fmt::format("<tile_{}>", i));
  std::string last = format == "nvlm-yi-34b" ? "<tile_global" : "<tile_global_thumbnail";
  if (many && !nemotron && format != "llama3p1") last += "0";  // as many tokens as the others have
  tags.push_back(last + ">");
  return tags;
}

std::vector<std::string> caption_prompts(const std::string& path) {
  if (path.empty()) return {};
  const Json file = Json::read(path);
  const Json* group = file.is_object() ? file.find("CaptioningPretraining") : nullptr;
  const Json* list = group && group->is_object() ? group->find("raw") : nullptr;
  require_input(list && list->is_array() && list->size() > 0,
                "--prompt-path {}: it has no list CaptioningPretraining.raw of questions; add one", path);
  std::vector<std::string> prompts;
  for (const Json& each : list->as_array()) {
    require_input(each.is_string(),
                  "--prompt-path {}: CaptioningPretraining.raw has {}, but questions are texts; put it in "
                  "quotes, or remove it",
                  path, each.dump());
    prompts.push_back(each.as_string());
  }
  return prompts;
}

}  // namespace megatron
