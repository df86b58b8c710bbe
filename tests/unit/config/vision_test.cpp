#include <gtest/gtest.h>

#include "megatron/config/resolve/model_settings.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/rules/rules.h"

// Models with a vision tower that are read again from a checkpoint, and how long their sequences are.
namespace megatron {
namespace {

using Words = std::vector<std::string>;

Words with(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

const Words kSmall = {"--num-layers",
                      "2",
                      "--hidden-size",
                      "64",
                      "--num-attention-heads",
                      "8",
                      "--seq-length",
                      "64",
                      "--img-h",
                      "56",
                      "--img-w",
                      "56",
                      "--patch-dim",
                      "14",
                      "--disable-vision-class-token"};

Sources sources_of(const Words& words) { return read_sources(parse_command_line(words)); }

Resolved resolve_for(const Sources& sources, Purpose purpose) {
  return resolve(sources, {.purpose = purpose, .allow_unavailable = true});
}

// What a checkpoint of a run with these flags says of its model.
Json saved_by(const Words& words) {
  return model_settings(resolve_for(sources_of(words), Purpose::inspect).config.model);
}

std::string refusal(const Sources& sources, Purpose purpose) {
  try {
    resolve_for(sources, purpose);
  } catch (const Refused& refused) {
    return refused.what();
  }
  return "";
}

TEST(VisionCheckpoint, IsReadAgain) {
  for (const Words& flags : {Words{"--pixel-shuffle"}, Words{"--language-model-type", "mistral_7b"},
                             // Built-in values that the decoder's name would change
                             Words{"--language-model-type", "mistral_7b", "--pixel-shuffle",
                                   "model.vision_projector_bias=true", "model.add_bias_linear=true"},
                             Words{"--language-model-type", "qwen2.5_7B", "--decoder-seq-length", "256"}}) {
    SCOPED_TRACE(flags.back());
    Sources sources;
    sources.hf = saved_by(with(kSmall, flags));
    sources.hf_origin = "checkpoint";
    EXPECT_EQ(refusal(sources, Purpose::forward), "");
    const Config config = resolve_for(sources, Purpose::forward).config;
    EXPECT_EQ(model_settings(config.model).dump(2), sources.hf.dump(2));
  }
}

TEST(VisionCheckpoint, IsNotMadeAnother) {
  const Json saved = saved_by(kSmall);
  for (const auto& [flags, why] :
       {std::pair{Words{"--pixel-shuffle"}, "says what its projector reads; leave it out"},
        {Words{"--language-model-type", "mistral_7b"}, "says which decoder and projector there are"}}) {
    Sources sources = sources_of(flags);
    sources.hf = saved;
    EXPECT_NE(refusal(sources, Purpose::forward).find(why), std::string::npos) << why;
  }
}

TEST(VisionCheckpoint, LeavesToTheRunWhatIsItsOwn) {
  const Words tiled = {"--use-tiling", "--max-num-tiles", "6", "--use-thumbnail", "--image-tag-type", "nvlm"};
  Sources sources = sources_of(with(kSmall, tiled));
  sources.checkpoint = saved_by(
      with(kSmall, {"--pixel-shuffle", "--freeze-LM", "--recompute-vision", "--image-tag-type", "internvl",
                    "--tokenizer-prompt-format", "qwen2p5", "--force-system-message", "--prompt-path", "p"}));
  sources.checkpoint_origin = "checkpoint";
  const ModelConfig model = resolve_for(sources, Purpose::inspect).config.model;
  EXPECT_TRUE(model.vision_pixel_shuffle) << "which is the model's";
  EXPECT_TRUE(model.use_tiling);
  EXPECT_TRUE(model.use_thumbnail);
  EXPECT_EQ(model.max_num_tiles, 6);
  EXPECT_EQ(model.image_tag_type, "nvlm");
  EXPECT_EQ(model.tokenizer_prompt_format, "");
  EXPECT_EQ(model.prompt_path, "");
  EXPECT_FALSE(model.force_system_message);
  EXPECT_FALSE(model.recompute_vision);
  EXPECT_FALSE(model.freeze_language_model);
}

TEST(VisionLength, HasRoomForEveryTile) {
  const auto length = [](const Words& flags) {
    return resolve_for(sources_of(with(kSmall, flags)), Purpose::inspect).config.model.seq_length;
  };
  EXPECT_EQ(length({}), 64 + 16);
  EXPECT_EQ(length({"--use-tiling", "--max-num-tiles", "6"}), 64 + 6 * 16);
  EXPECT_EQ(length({"--use-tiling", "--max-num-tiles", "6", "--use-thumbnail"}), 64 + 7 * 16);
  EXPECT_EQ(length({"--use-tiling", "--max-num-tiles", "6", "--use-thumbnail", "--pixel-shuffle"}),
            64 + 7 * 4);
  EXPECT_EQ(length({"--use-tiling", "--use-thumbnail"}), 64 + 16) << "one tile needs no thumbnail";
}

// The same command goes on with rows as long as before.
TEST(VisionLength, IsThatOfTheRunBefore) {
  const auto length = [](const Words& words, const Words& before) {
    Sources sources = sources_of(words);
    sources.checkpoint = saved_by(before);
    sources.checkpoint_origin = "checkpoint";
    return resolve_for(sources, Purpose::inspect).config.model.seq_length;
  };
  const Words tiled = with(kSmall, {"--use-tiling", "--max-num-tiles", "6"});
  EXPECT_EQ(length(kSmall, kSmall), 64 + 16);
  EXPECT_EQ(length(tiled, tiled), 64 + 6 * 16);
  EXPECT_EQ(length({"--hidden-size", "64"}, kSmall), 64 + 16) << "the checkpoint's own";
  EXPECT_EQ(length({"--img-h", "56"}, kSmall), 64 + 16) << "the checkpoint's own";
  EXPECT_EQ(length({"--seq-length", "72"}, kSmall), 72) << "nothing says that text alone is counted";
}

}  // namespace
}  // namespace megatron
