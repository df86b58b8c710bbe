#include "megatron/datasets/masked/word_pieces.h"

#include <unordered_map>

#include "megatron/base/error.h"
#include "megatron/base/text_file.h"

namespace megatron {

WordPieces read_word_pieces(const std::string& path, int64_t extra_ids) {
  const std::string text = read_text_file(path);
  std::unordered_map<std::string, int64_t> ids;
  WordPieces pieces;
  auto add = [&](std::string piece) {
    const auto id = static_cast<int64_t>(pieces.ids.size());
    pieces.ids.push_back(id);
    pieces.continuation.push_back(piece.starts_with("##"));
    return ids.emplace(std::move(piece), id).first->second;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t trimmed = end > at && text[end - 1] == '\r' ? end - 1 : end;
    add(text.substr(at, trimmed - at));
    at = end + 1;
  }
  auto find = [&](const char* piece) {
    const auto found = ids.find(piece);
    return found == ids.end() ? int64_t{-1} : found->second;
  };
  auto find_or_add = [&](const std::string& piece) {
    const auto found = ids.find(piece);
    return found == ids.end() ? add(piece) : found->second;
  };
  pieces.cls = find("[CLS]");
  pieces.sep = find("[SEP]");
  pieces.mask = find("[MASK]");
  pieces.pad = find("[PAD]");
  require(pieces.cls >= 0 && pieces.sep >= 0 && pieces.mask >= 0, "{}: holds no [CLS], [SEP] or [MASK]",
          path);
  pieces.bos = extra_ids > 0 ? find_or_add("[BOS]") : find("[BOS]");
  pieces.eos = extra_ids > 0 ? find_or_add("[EOS]") : find("[EOS]");
  for (int64_t i = 0; i < extra_ids; ++i)
    pieces.sentinels.push_back(find_or_add(fmt::format("<extra_id_{}>", i)));
  return pieces;
}

}  // namespace megatron
