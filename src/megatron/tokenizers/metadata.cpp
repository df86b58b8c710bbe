#include "megatron/tokenizers/metadata.h"

#include "megatron/base/json.h"
#include "megatron/base/refuse.h"

namespace megatron {

TokenizerMetadata read_tokenizer_metadata(const std::string& path) {
  return refuse_faults("--tokenizer-metadata " + path, [&] {
    const Json file = Json::read(path);
    const auto text = [&](std::string_view key) -> std::optional<std::string> {
      const Json* value = file.find(key);
      if (!value || value->is_null()) return std::nullopt;
      return value->as_string();
    };
    TokenizerMetadata metadata{text("library").value_or(""), text("chat_template")};
    require(!metadata.library.empty(), "\"library\" is missing (expected sentencepiece, say); add it");
    const std::string class_name = text("class_name").value_or("MegatronTokenizerText");
    require(class_name == "MegatronTokenizerText",
            "class_name is {}, a Python class, and none is run; remove it", class_name);
    return metadata;
  });
}

std::string_view library_of(std::string_view type) {
  if (type == "HuggingFaceTokenizer") return "huggingface";
  if (type == "SFTTokenizer") return "sft";
  if (type == "TikTokenizer") return "tiktoken";
  if (type == "ByteLevelTokenizer") return "byte-level";
  if (type == "NullTokenizer") return "null-text";
  if (type.ends_with("SentencePieceTokenizer") || type == "Llama2Tokenizer") return "sentencepiece";
  if (type == "GPT2BPETokenizer" || type.starts_with("BertWordPiece")) return "megatron";
  return "";
}

}  // namespace megatron
