#pragma once

#include "megatron/base/json.h"
#include "megatron/config/schema/vision_config.h"

namespace megatron {

// How a --tokenizer-prompt-format writes conversations about images.
struct ImagePromptFormat {
  std::string chat_template;  // Jinja, with generation blocks; "": the tokenizer's own
  bool system = true;         // there is such a role
  bool capital_roles = false;
  std::string forced_system;  // the message that a conversation begins with; "": its own, if any
};
ImagePromptFormat image_prompt_format(const VisionConfig& vision);

// Messages whose contents are texts with `mark` for each image, ready for the template of the format.
Json formatted_messages(const Json& messages, const ImagePromptFormat& format, const std::string& mark,
                        size_t images);

// The tags before the tokens of an image's tiles, that of the thumbnail last.
std::vector<std::string> tile_tags(const VisionConfig& vision);

// The questions of a --prompt-path file that captions answer.
std::vector<std::string> caption_prompts(const std::string& path);

}  // namespace megatron
