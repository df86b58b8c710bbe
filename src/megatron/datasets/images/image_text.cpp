#include "megatron/datasets/images/image_text.h"

#include <algorithm>

#include "megatron/base/hash.h"
#include "megatron/base/refuse.h"

namespace megatron {
namespace {

constexpr std::string_view kImage = "<image>";

size_t count_of(std::string_view text, std::string_view word) {
  size_t count = 0;
  for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size()))
    ++count;
  return count;
}

std::string replaced(std::string text, std::string_view word, std::string_view by) {
  for (size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + by.size()))
    text.replace(at, word.size(), by);
  return text;
}

Json part(std::string_view type, std::string_view text = {}) {
  Json result = Json::object();
  result["type"] = std::string(type);
  if (!text.empty()) result["text"] = std::string(text);
  return result;
}

// A text with "<image>" in it as the parts that templates know.
Json parts_of(std::string_view text) {
  Json parts = Json::array();
  for (size_t at = 0; at <= text.size();) {
    const size_t next = std::min(text.find(kImage, at), text.size());
    if (next > at) parts.push_back(part("text", text.substr(at, next - at)));
    if (next == text.size()) break;
    parts.push_back(part("image"));
    at = next + kImage.size();
  }
  return parts;
}

bool is_image_part(const Json& part) {
  const Json* type = part.is_object() ? part.find("type") : nullptr;
  return type && type->is_string() && type->as_string().starts_with("image");
}

size_t images_in(const Json& message) {
  const Json* content = message.find("content");
  if (!content) return 0;
  if (content->is_string()) return count_of(content->as_string(), kImage);
  size_t count = 0;
  if (content->is_array())
    for (const Json& part : content->as_array()) count += is_image_part(part) ? 1 : 0;
  return count;
}

// Messages whose images are parts. Where none is named, `images` come before what the user says first.
void name_images(Json& messages, size_t images) {
  size_t named = 0;
  for (const Json& message : messages.as_array()) named += images_in(message);
  bool missing = named == 0 && images > 0;
  Json result = Json::array();
  for (Json message : messages.as_array()) {
    const Json* content = message.find("content");
    const bool first = missing && message.at("role") == Json("user");
    if (content && content->is_string() && (first || images_in(message) > 0)) {
      Json parts = Json::array();
      for (size_t i = 0; first && i < images; ++i) parts.push_back(part("image"));
      const Json named_parts = parts_of(content->as_string());
      for (const Json& each : named_parts.as_array()) parts.push_back(each);
      message["content"] = parts;
    }
    if (first) missing = false;
    result.push_back(message);
  }
  messages = result;
}

// What is tried next where the tokens of so many tiles are too many for a sequence.
int64_t fewer_tiles(int64_t tiles) {
  int64_t fewer = 1;
  for (int64_t each : {2, 4, 6, 8, 12})
    if (each < tiles) fewer = each;
  return fewer;
}

// Where a byte of the old text is in the new one; `moved` has the ends of what was replaced, old and new.
size_t moved_to(size_t at, const std::vector<std::pair<size_t, size_t>>& moved) {
  size_t result = at;
  for (const auto& [before, after] : moved)
    if (before <= at) result = at - before + after;
  return result;
}

}  // namespace

ImageMarks::ImageMarks(const VisionConfig& vision, const Tokenizer& tokenizer) {
  token = vision.image_token_id >= 0 ? tokenizer.piece_of(static_cast<TokenId>(vision.image_token_id))
                                     : std::string(kImage);
  placeholder = in_text = token;
  const auto has = [&](std::string_view piece) { return tokenizer.id_of(piece).has_value(); };
  if (vision.is_qwen() && has("<|vision_start|>") && has("<|vision_end|>"))
    in_text = "<|vision_start|>" + token + "<|vision_end|>";
  if (vision.vision_tower == VisionTowerKind::siglip && has("<start_of_image>") && has("<end_of_image>")) {
    placeholder = in_text = "<start_of_image>";
    before = "\n\n<start_of_image>";
    after = "<end_of_image>\n\n";
  }
  if (vision.use_tile_tags && vision.use_tiling && vision.vision_tower == VisionTowerKind::clip)
    tags = tile_tags(vision);
  if (vision.image_tag_type.empty()) return;
  const std::string name = vision.image_tag_type == "nvlm" ? "Image>" : "img>";
  before.insert(0, "<" + name);
  after += "</" + name;
}

LearnedText ImageMarks::expanded(const LearnedText& text, std::span<const ImageTokens> images) const {
  const size_t named = count_of(text.text, placeholder);
  require(named == images.size(), "it speaks of {} images, but {} are given", named, images.size());
  LearnedText result;
  std::vector<std::pair<size_t, size_t>> moved;
  size_t at = 0;
  std::vector<size_t> tag_cuts;  // tags are encoded by themselves
  for (const ImageTokens& image : images) {
    const size_t place = text.text.find(placeholder, at);
    result.text += text.text.substr(at, place - at) + before;
    for (int64_t tile = 0; tile < image.tiles; ++tile) {
      if (!tags.empty()) {
        const bool last = tile + 1 == image.tiles;  // the thumbnail, or an image that is its only tile
        tag_cuts.push_back(result.text.size());
        result.text += last ? tags.back() : tags[static_cast<size_t>(tile)];
        tag_cuts.push_back(result.text.size());
      }
      for (int64_t i = 0; i < image.each; ++i) result.text += token;
    }
    result.text += after;
    at = place + placeholder.size();
    moved.emplace_back(at, result.text.size());
  }
  result.text += text.text.substr(at);
  for (chat::TextSpan span : text.learned)
    result.learned.push_back({moved_to(span.begin, moved), moved_to(span.end, moved)});
  for (size_t cut : text.cuts) result.cuts.push_back(moved_to(cut, moved));
  result.cuts.insert(result.cuts.end(), tag_cuts.begin(), tag_cuts.end());
  std::sort(result.cuts.begin(), result.cuts.end());
  return result;
}

ImageTextEncoder::ImageTextEncoder(Tokenizer tokenizer, SftEncoderOptions options, const VisionConfig& vision,
                                   ImageProcessor processor)
    : tokenizer_(std::move(tokenizer)),
      options_(std::move(options)),
      vision_(vision),
      processor_(std::move(processor)),
      marks_(vision, tokenizer_),
      format_(image_prompt_format(vision)),
      caption_prompts_(caption_prompts(vision.prompt_path)) {
  if (!format_.chat_template.empty()) options_.chat_template = format_.chat_template;
  if (options_.chat_template.empty()) return;
  try {
    template_ = std::make_shared<const chat::ChatTemplate>(options_.chat_template);
  } catch (const chat::TemplateError& problem) {
    throw ConfigError(fmt::format("chat template: {}", problem.what()));
  }
}

LearnedText ImageTextEncoder::text_of(const Json& json, size_t images, const std::string& origin) const {
  if (const Json* text = json.is_object() ? json.find("text") : nullptr; text && text->is_string()) {
    SftRow row;
    row.completion = text->as_string();
    if (count_of(row.completion, kImage) + count_of(row.completion, marks_.placeholder) == 0)
      for (size_t i = 0; i < images; ++i) row.prompt += marks_.in_text;
    if (marks_.placeholder != kImage) row.completion = replaced(row.completion, kImage, marks_.in_text);
    return fill_prompt(row, "{input}{output}", LossMode::full, origin);
  }
  SftRow row = parse_sft_row(json, origin, options_.format);
  // The image alone is what a caption describes: a question comes between them, the same in every epoch.
  if (!row.is_chat && row.prompt == kImage && !caption_prompts_.empty())
    row.prompt += "\n" + caption_prompts_[hash_text(origin) % caption_prompts_.size()] + "\n";
  if (!vision_.tokenizer_prompt_format.empty()) return formatted_text(std::move(row), images, origin);
  if (row.is_chat) {
    require_input(template_ != nullptr, "{}: the tokenizer has no chat template; give --chat-template FILE",
                  origin);
    name_images(row.messages, images);
    return render_conversation(row, *template_, options_.special_tokens, options_.loss, origin);
  }
  if (count_of(row.prompt, kImage) + count_of(row.prompt, marks_.placeholder) == 0)
    for (size_t i = 0; i < images; ++i) row.prompt.insert(0, marks_.in_text);
  if (marks_.placeholder != kImage) row.prompt = replaced(row.prompt, kImage, marks_.in_text);
  return fill_prompt(row, options_.prompt_form, options_.loss, origin);
}

bool ImageTextEncoder::is_chat(const Json& json) const {
  return json.contains("messages") || json.contains("conversations") ||
         (!vision_.tokenizer_prompt_format.empty() && !json.contains("text"));
}

// A conversation, also of a prompt and its completion.
LearnedText ImageTextEncoder::formatted_text(SftRow row, size_t images, const std::string& origin) const {
  require_input(template_ != nullptr, "{}: the tokenizer has no chat template; give --chat-template FILE",
                origin);
  if (!row.is_chat) {
    if (row.prompt == kImage) row.prompt += "\n";
    row.messages = Json::Array{Json::Object{{"role", "user"}, {"content", row.prompt}},
                               Json::Object{{"role", "assistant"}, {"content", row.completion}}};
    row.is_chat = true;
  }
  const auto before = static_cast<int64_t>(row.messages.size());
  row.messages = formatted_messages(row.messages, format_, marks_.in_text, images);
  if (row.first_learned > 0) {
    const int64_t moved =
        static_cast<int64_t>(row.first_learned) + static_cast<int64_t>(row.messages.size()) - before;
    row.first_learned = static_cast<size_t>(std::max<int64_t>(0, moved));
  }
  return render_conversation(row, *template_, options_.special_tokens, options_.loss, origin);
}

// An image's token that the tokenizer does not know stands between texts that are encoded one by one.
TokensWithOffsets ImageTextEncoder::encode(std::string_view text) const {
  if (vision_.image_token_id >= 0) return encode_with_byte_offsets(tokenizer_, text);
  TokensWithOffsets result;
  for (size_t at = 0; at <= text.size();) {
    const size_t next = std::min(text.find(marks_.token, at), text.size());
    const TokensWithOffsets part = encode_with_byte_offsets(tokenizer_, text.substr(at, next - at));
    for (size_t i = 0; i < part.ids.size(); ++i) {
      result.ids.push_back(part.ids[i]);
      result.offsets.push_back({part.offsets[i].begin + at, part.offsets[i].end + at});
    }
    if (next == text.size()) break;
    result.ids.push_back(vision_.image_token_id);
    at = next + marks_.token.size();
    result.offsets.push_back({next, at});
  }
  return result;
}

ImagePatches ImageTextEncoder::patches_of(std::span<const Image> images, int64_t most_tiles,
                                          std::vector<ImageTokens>& tokens) const {
  ImagePatches all;
  tokens.clear();
  for (const Image& image : images) {
    const ImagePatches own = processor_.tiles(image, most_tiles);
    tokens.push_back({std::ssize(own.grids), vision_.image_tokens(own.grids[0].patches())});
    all.add(own);
  }
  return all;
}

ImageSample ImageTextEncoder::operator()(const Json& json, std::span<const Image> images,
                                         const std::string& origin) const {
  ImageSample sample;
  std::vector<ImageTokens> counts;
  SftTokenOptions options{.max_length = options_.max_length};
  if (const TokenId eos = tokenizer_.special_ids().eos; !is_chat(json) && eos >= 0) options.eos = eos;
  const LearnedText plain = refuse_faults(origin, [&] { return text_of(json, images.size(), origin); });
  for (int64_t most = vision_.max_num_tiles;; most = fewer_tiles(most)) {
    const LearnedText text = refuse_faults(origin, [&] {
      sample.images = patches_of(images, most, counts);
      return marks_.expanded(plain, counts);
    });
    SftTokenOptions whole = options;
    if (most > 1) whole.max_length = 0;
    sample.tokens = encode_learned(
        text, [&](std::string_view part) { return encode(part); }, whole);
    if (most == 1) break;
    // Four tokens are left for the question beside the images.
    if (std::ssize(sample.tokens.ids) + std::ssize(images) + 4 < options.max_length ||
        options.max_length == 0)
      break;
  }
  int64_t wanted = 0, there = 0;
  for (const ImageTokens& count : counts) wanted += count.all();
  for (size_t i = 0; i < sample.tokens.ids.size(); ++i)
    if (vision_.is_image_token(sample.tokens.ids[i])) {
      sample.tokens.learned[i] = 0;
      ++there;
    }
  require_input(
      there == wanted,
      "{}: {} of the {} tokens of its images fit into {}; give a longer --seq-length, or smaller images",
      origin, there, wanted, options_.max_length);
  const bool learns = std::any_of(sample.tokens.learned.begin() + (sample.tokens.learned.empty() ? 0 : 1),
                                  sample.tokens.learned.end(), [](uint8_t learned) { return learned != 0; });
  if (!learns && options_.on_nothing_learned) options_.on_nothing_learned(origin);
  return sample;
}

size_t ImageTextEncoder::images_in(std::string_view text) const {
  const size_t named = count_of(text, marks_.placeholder);
  return marks_.placeholder == kImage ? named : named + count_of(text, kImage);
}

ImageSample ImageTextEncoder::prompt(const std::string& text, std::span<const Image> images) const {
  ImageSample sample;
  std::vector<ImageTokens> counts;
  LearnedText whole{.text = text, .learned = {}, .cuts = {}};
  if (marks_.placeholder != kImage) whole.text = replaced(whole.text, kImage, marks_.in_text);
  if (count_of(whole.text, marks_.placeholder) == 0)
    for (size_t i = 0; i < images.size(); ++i) whole.text.insert(0, marks_.in_text);
  sample.images = patches_of(images, vision_.max_num_tiles, counts);
  whole = marks_.expanded(whole, counts);
  if (vision_.image_token_id >= 0) {
    const std::vector<TokenId> ids = tokenizer_.encode(whole.text, true);
    sample.tokens.ids.assign(ids.begin(), ids.end());
  } else {
    sample.tokens.ids = encode_learned(whole, [&](std::string_view part) { return encode(part); }, {}).ids;
  }
  sample.tokens.learned.assign(sample.tokens.ids.size(), 0);
  return sample;
}

}  // namespace megatron
