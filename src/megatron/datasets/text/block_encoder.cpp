#include "megatron/datasets/text/block_encoder.h"

#include "megatron/base/error.h"
#include "megatron/datasets/indexed/indexed_writer.h"
#include "megatron/datasets/text/sentences.h"

namespace megatron {

void BlockEncoder::add_sentence(EncodedDocuments& out, std::string_view sentence) {
  const size_t before = tokens_.size();
  encode_(sentence, tokens_);
  if (tokens_.size() > before) out.lengths.push_back(static_cast<int32_t>(tokens_.size() - before));
}

void BlockEncoder::add_document(EncodedDocuments& out, std::string_view text) {
  const size_t first = out.lengths.size();
  if (options_.split_sentences) {
    for (std::string_view sentence : split_sentences(text, options_.keep_newlines))
      add_sentence(out, sentence);
  } else {
    add_sentence(out, text);
  }
  end_document(out, first);
}

void BlockEncoder::add_document(EncodedDocuments& out, const JsonText& text) {
  if (!text.list) return add_document(out, std::string_view(text.text));
  const size_t first = out.lengths.size();
  size_t begin = 0;
  for (size_t end : text.ends) {
    add_sentence(out, std::string_view(text.text).substr(begin, end - begin));
    begin = end;
  }
  end_document(out, first);
}

// The document's tokens are complete; its first sequence is `first`.
void BlockEncoder::end_document(EncodedDocuments& out, size_t first) {
  if (options_.append_eod && out.lengths.size() > first) {
    tokens_.push_back(*options_.append_eod);
    ++out.lengths.back();
  }
  encode_tokens(std::span<const int32_t>(tokens_), options_.type, options_.output_prefix, out.bytes);
  out.sequences.push_back(static_cast<int32_t>(out.lengths.size() - first));
  token_count_ += static_cast<int64_t>(tokens_.size());
  tokens_.clear();
}

EncodedBlock BlockEncoder::run(const DocumentBlock& block) {
  EncodedBlock result{.keys = std::vector<EncodedDocuments>(options_.keys.size()),
                      .input_bytes = block.input_bytes};
  tokens_.clear();
  token_count_ = 0;
  if (!block.values.empty()) {
    for (size_t k = 0; k < block.values.size(); ++k)
      for (const std::string& text : block.values[k]) add_document(result.keys[k], std::string_view(text));
    result.documents = static_cast<int64_t>(block.values[0].size());
  } else {
    std::vector<JsonText> values;
    int64_t line = block.first_line;
    for (size_t at = 0; at < block.lines.size(); ++line) {
      const size_t end = std::min(block.lines.find('\n', at), block.lines.size());
      const std::string_view text(block.lines.data() + at, end - at);
      at = end + 1;
      if (!block.json) {
        for (EncodedDocuments& out : result.keys) add_document(out, text);
        ++result.documents;
        continue;
      }
      if (const std::optional<std::string> problem = fields_.parse(text, values)) {
        if (result.first_bad.empty())
          result.first_bad = fmt::format("{} line {}: {}", block.file, line, *problem);
        ++result.bad_lines;
        if (!options_.skip_bad_lines) break;
        continue;
      }
      for (size_t k = 0; k < values.size(); ++k) add_document(result.keys[k], values[k]);
      ++result.documents;
    }
  }
  result.tokens = token_count_;
  return result;
}

}  // namespace megatron
