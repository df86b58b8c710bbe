#include "megatron/cli/commands/generate_output.h"

namespace megatron {
namespace {

std::string text_of(const std::vector<int64_t>& ids, const Tokenizer& tokenizer) {
  return tokenizer.decode(std::vector<TokenId>(ids.begin(), ids.end()), true);
}

Json logprobs_of(const std::vector<TokenChoice>& choices) {
  Json list = Json::array();
  for (const TokenChoice& choice : choices) list.push_back(static_cast<double>(choice.logprob));
  return list;
}

// Lists the top log-probabilities of each token by text, or by id where there is no tokenizer.
Json top_logprobs_of(const std::vector<TokenChoice>& choices, const std::optional<Tokenizer>& tokenizer) {
  Json list = Json::array();
  for (const TokenChoice& choice : choices) {
    Json top = Json::object();
    for (const auto& [id, logprob] : choice.top)
      top[tokenizer ? text_of({id}, *tokenizer) : std::to_string(id)] = static_cast<double>(logprob);
    list.push_back(std::move(top));
  }
  return list;
}

bool has_top(const std::vector<TokenChoice>& choices) {
  return !choices.empty() && !choices.front().top.empty();
}

Json ids_of(const std::vector<int64_t>& ids) {
  Json list = Json::array();
  for (int64_t id : ids) list.push_back(id);
  return list;
}

// [tokens, layers with experts, k]; all tokens but the last, which no layer has read.
Json experts_of(const Generated& generated) {
  Json tokens = Json::array();
  for (auto chosen = generated.experts.begin(); chosen != generated.experts.end();) {
    Json layers = Json::array();
    for (int64_t layer = 0; layer < generated.expert_layers; ++layer) {
      Json experts = Json::array();
      for (int64_t i = 0; i < generated.expert_topk; ++i) experts.push_back(int64_t{*chosen++});
      layers.push_back(std::move(experts));
    }
    tokens.push_back(std::move(layers));
  }
  return tokens;
}

}  // namespace

std::vector<int64_t> Generated::ids() const {
  std::vector<int64_t> list;
  for (const TokenChoice& choice : tokens) list.push_back(choice.id);
  return list;
}

Json generated_json(const Generated& generated, const std::optional<Tokenizer>& tokenizer) {
  Json json = Json::object();
  json["ids"] = ids_of(generated.ids());
  if (tokenizer) json["text"] = text_of(generated.ids(), *tokenizer);
  json["finish_reason"] = generated.finish == FinishReason::end_token ? "stop"
                          : generated.finish == FinishReason::failed  ? "error"
                                                                      : "length";
  if (generated.logprobs) json["logprobs"] = logprobs_of(generated.tokens);
  if (has_top(generated.tokens)) json["top_logprobs"] = top_logprobs_of(generated.tokens, tokenizer);
  if (generated.prompt_logprobs) json["prompt_logprobs"] = logprobs_of(generated.prompt);
  if (has_top(generated.prompt)) json["prompt_top_logprobs"] = top_logprobs_of(generated.prompt, tokenizer);
  if (!generated.experts.empty()) json["routing_indices"] = experts_of(generated);
  return json;
}

Json output_file(const std::vector<Prompt>& prompts, const std::vector<Generated>& all,
                 const std::optional<Tokenizer>& tokenizer) {
  Json document = Json::object();
  for (size_t i = 0; i < all.size(); ++i) {
    const Generated& generated = all[i];
    Json& entry = document[std::to_string(i)] = Json::object();
    entry["input_prompt"] = prompts[i].text;
    if (tokenizer) entry["generated_text"] = text_of(generated.ids(), *tokenizer);
    entry["generated_tokens"] = ids_of(generated.ids());
    if (generated.prompt_logprobs) entry["prompt_logprobs"] = logprobs_of(generated.prompt);
    if (generated.logprobs) entry["generated_logprobs"] = logprobs_of(generated.tokens);
    if (has_top(generated.tokens))
      entry["generated_top_n_logprobs"] = top_logprobs_of(generated.tokens, tokenizer);
    if (has_top(generated.prompt))
      entry["prompt_top_n_logprobs"] = top_logprobs_of(generated.prompt, tokenizer);
    if (!generated.experts.empty()) entry["routing_indices"] = experts_of(generated);
  }
  return document;
}

}  // namespace megatron
