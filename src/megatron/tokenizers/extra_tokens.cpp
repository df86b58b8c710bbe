#include "megatron/tokenizers/extra_tokens.h"

#include <algorithm>
#include <charconv>
#include <unordered_map>

#include "megatron/base/error.h"

namespace megatron {
namespace {

uint32_t code_points(std::string_view text) {
  return static_cast<uint32_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

struct NamedToken {
  std::string name;
  TokenId id;
};

class ExtraTokens final : public TokenizerBackend {
 public:
  // Ids are those of the vocabulary, or follow it without a gap.
  ExtraTokens(Tokenizer inner, std::vector<NamedToken> tokens)
      : inner_(std::move(inner)), tokens_(std::move(tokens)), size_(inner_.vocab_size()) {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      names_.emplace(tokens_[i].id, i);
      size_ = std::max<int64_t>(size_, tokens_[i].id + 1);
    }
  }

  void encode(std::string_view text, bool add_special_tokens, EncodeMemory* memory,
              std::vector<TokenId>& ids) const override {
    // What a template adds stands around the whole text, whose parts are encoded one by one.
    if (find_next(text, 0).at == text.size())
      return inner_.kind().encode(text, add_special_tokens, memory, ids);
    const Around around = add_special_tokens ? added() : Around{};
    ids.insert(ids.end(), around.before.begin(), around.before.end());
    for_each_part(text, [&](std::string_view part, size_t, const Found& next) {
      if (!part.empty()) inner_.kind().encode(part, false, memory, ids);
      if (next.at < text.size()) ids.push_back(tokens_[next.index].id);
    });
    ids.insert(ids.end(), around.after.begin(), around.after.end());
  }

  Encoding encode_with_offsets(std::string_view text, bool add_special_tokens) const override {
    if (find_next(text, 0).at == text.size())
      return inner_.kind().encode_with_offsets(text, add_special_tokens);
    Encoding result;
    const auto add = [&](TokenId id, std::string piece, CharRange place) {
      result.ids.push_back(id);
      result.pieces.push_back(std::move(piece));
      result.offsets.push_back(place);
    };
    const Around around = add_special_tokens ? added() : Around{};
    for (TokenId id : around.before) add(id, piece_of(id), {});
    for_each_part(text, [&](std::string_view part, size_t begin, const Found& next) {
      const uint32_t before = code_points(text.substr(0, begin)), end = before + code_points(part);
      const Encoding own = part.empty() ? Encoding{} : inner_.kind().encode_with_offsets(part, false);
      for (size_t i = 0; i < own.ids.size(); ++i)
        add(own.ids[i], own.pieces[i], {own.offsets[i].begin + before, own.offsets[i].end + before});
      if (next.at == text.size()) return;
      const auto& [name, id] = tokens_[next.index];
      add(id, name, {end, end + code_points(name)});
    });
    for (TokenId id : around.after) add(id, piece_of(id), {});
    return result;
  }

  std::string decode(std::span<const TokenId> ids, bool skip_special_tokens) const override {
    std::string text;
    for (size_t at = 0; at < ids.size();) {
      size_t end = at;
      while (end < ids.size() && !is_extra(ids[end])) ++end;
      if (end > at) text += inner_.kind().decode(ids.subspan(at, end - at), skip_special_tokens);
      if (end < ids.size() && !skip_special_tokens) text += piece_of(ids[end]);
      at = end + 1;
    }
    return text;
  }

  std::unique_ptr<EncodeMemory> make_memory(size_t bytes) const override {
    return inner_.kind().make_memory(bytes);
  }
  int64_t vocab_size() const override { return size_; }
  std::optional<TokenId> id_of(std::string_view piece) const override {
    for (const NamedToken& token : tokens_)
      if (token.name == piece) return token.id;
    return inner_.id_of(piece);
  }
  std::string piece_of(TokenId id) const override {
    const auto found = names_.find(id);
    return found != names_.end() ? tokens_[found->second].name : inner_.piece_of(id);
  }
  SpecialIds special_ids() const override { return inner_.special_ids(); }
  bool is_special(TokenId id) const override { return is_extra(id) || inner_.is_special(id); }

 private:
  struct Found {
    size_t at, index;  // of the text and of tokens_; at the text's end: none
  };
  struct Around {
    std::vector<TokenId> before, after;
  };

  bool is_extra(TokenId id) const { return names_.contains(id); }

  // The first of them from a byte on; of several that begin there the longest.
  Found find_next(std::string_view text, size_t from) const {
    Found best{text.size(), 0};
    for (size_t i = 0; i < tokens_.size(); ++i) {
      const std::string& name = tokens_[i].name;
      const size_t at = text.find(name, from);
      if (at == std::string_view::npos) continue;
      if (at < best.at || (at == best.at && name.size() > tokens_[best.index].name.size())) best = {at, i};
    }
    return best;
  }

  template <class Use>
  void for_each_part(std::string_view text, const Use& use) const {
    for (size_t begin = 0; begin <= text.size();) {
      const Found next = find_next(text, begin);
      use(text.substr(begin, next.at - begin), begin, next);
      if (next.at == text.size()) return;
      begin = next.at + tokens_[next.index].name.size();
    }
  }

  // What the template puts before and behind any text.
  Around added() const {
    const std::vector<TokenId> plain = inner_.encode("a"), whole = inner_.encode("a", true);
    const auto at = std::search(whole.begin(), whole.end(), plain.begin(), plain.end());
    if (at == whole.end()) return {};
    return {{whole.begin(), at}, {at + static_cast<std::ptrdiff_t>(plain.size()), whole.end()}};
  }

  Tokenizer inner_;
  std::vector<NamedToken> tokens_;
  std::unordered_map<TokenId, size_t> names_;  // places in tokens_
  int64_t size_;
};

}  // namespace

Tokenizer with_extra_tokens(Tokenizer tokenizer, const std::vector<std::string>& names) {
  std::vector<NamedToken> added;
  const auto is_new = [&](const std::string& name) {
    return !name.empty() && !tokenizer.id_of(name) &&
           std::none_of(added.begin(), added.end(),
                        [&](const NamedToken& each) { return each.name == name; });
  };
  for (const std::string& name : names)
    if (is_new(name))
      added.push_back({name, static_cast<TokenId>(tokenizer.vocab_size() + std::ssize(added))});
  if (added.empty()) return tokenizer;
  return Tokenizer(std::make_shared<const ExtraTokens>(std::move(tokenizer), std::move(added)));
}

Tokenizer with_assigned_tokens(Tokenizer tokenizer, const std::vector<std::string>& names_and_ids) {
  std::vector<NamedToken> assigned;
  for (const std::string& each : names_and_ids) {
    const size_t comma = std::min(each.rfind(','), each.size());
    int64_t id = -1;
    const char* end = each.data() + each.size();
    if (comma > 0 && comma < each.size())
      if (const auto [stop, error] = std::from_chars(each.data() + comma + 1, end, id);
          error != std::errc() || stop != end)
        id = -1;
    require(id >= 0 && id < tokenizer.vocab_size(),
            "--hf-assign-unused-tokens {}: expected NAME,ID with an id below {}, the size of the vocabulary",
            each, tokenizer.vocab_size());
    assigned.push_back({each.substr(0, comma), static_cast<TokenId>(id)});
  }
  if (assigned.empty()) return tokenizer;
  return Tokenizer(std::make_shared<const ExtraTokens>(std::move(tokenizer), std::move(assigned)));
}

}  // namespace megatron
