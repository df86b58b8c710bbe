#pragma once

#include "megatron/datasets/images/image_processor.h"
#include "megatron/datasets/images/prompt_format.h"
#include "megatron/datasets/sft/sft_encoder.h"

namespace megatron {

// An image's tokens: so many tiles of as many each.
struct ImageTokens {
  int64_t tiles = 1, each = 0;

  int64_t all() const { return tiles * each; }
};

// How the texts of a model speak of images. Rows say "<image>", or have parts of type image in a message.
struct ImageMarks {
  std::string placeholder;  // what a chat template writes for an image
  std::string in_text;      // what stands for "<image>" where no template writes it: with a placeholder
  std::string before, token,
      after;                      // in place of a placeholder: before, token for each of the image's, after
  std::vector<std::string> tags;  // before the tokens of each tile, the last one's for a thumbnail; or none

  ImageMarks(const VisionConfig& vision, const Tokenizer& tokenizer);
  // Puts the tokens of images, in turn, in place of placeholders. An Error where there are more or fewer of
  // them than images.
  LearnedText expanded(const LearnedText& text, std::span<const ImageTokens> images) const;
};

// A row as a model reads it: tokens, and the patches of its images.
struct ImageSample {
  SftTokens tokens;
  ImagePatches images;
};

// Rows of text with images. Safe to share between threads.
class ImageTextEncoder {
 public:
  ImageTextEncoder(Tokenizer tokenizer, SftEncoderOptions options, const VisionConfig& vision,
                   ImageProcessor processor);

  // A conversation, a prompt with its completion, or {"text": …}, which is all learned; never an image's
  // tokens. A row that does not say where its images belong has them before its first text. A ConfigError
  // begins with `origin`.
  ImageSample operator()(const Json& row, std::span<const Image> images, const std::string& origin) const;
  // The same of a text that a model goes on from: "<image>" and placeholders become the images' tokens.
  ImageSample prompt(const std::string& text, std::span<const Image> images) const;
  size_t images_in(std::string_view text) const;  // of which it speaks

 private:
  LearnedText text_of(const Json& row, size_t images, const std::string& origin) const;
  TokensWithOffsets encode(std::string_view text) const;
  ImagePatches patches_of(std::span<const Image> images, int64_t most_tiles,
                          std::vector<ImageTokens>& tokens) const;
  bool is_chat(const Json& row) const;
  LearnedText formatted_text(SftRow row, size_t images, const std::string& origin) const;

  Tokenizer tokenizer_;
  SftEncoderOptions options_;
  VisionConfig vision_;
  ImageProcessor processor_;
  ImageMarks marks_;
  ImagePromptFormat format_;
  std::vector<std::string> caption_prompts_;
  std::shared_ptr<const chat::ChatTemplate> template_;
};

}  // namespace megatron
