#include "megatron/server/completions.h"

#include "megatron/server/api_error.h"
#include "megatron/server/document_ids.h"

namespace megatron {

namespace {

constexpr size_t kMaxPrompts = 2048;

struct Prompt {
  std::vector<int64_t> tokens;
  std::string text;  // for echo
};

Prompt text_prompt(const std::string& text, const ServedModel& model, bool add_special_tokens) {
  return {model.encode(text, add_special_tokens), text};
}

Prompt token_prompt(const Json& list, const ServedModel& model) {
  Prompt prompt{token_ids(list, model.vocab_size, "prompt"), ""};
  std::vector<TokenId> known;
  for (int64_t id : prompt.tokens)
    if (id < model.tokenizer.vocab_size()) known.push_back(static_cast<TokenId>(id));
  prompt.text = model.tokenizer.decode(known);
  return prompt;
}

// A string, an array of strings, an array of tokens, or an array of these.
std::vector<Prompt> read_prompts(Fields& fields, const ServedModel& model) {
  const bool special = fields.flag("add_special_tokens", true);
  const Json& value = fields.required("prompt");
  if (value.is_string()) return {text_prompt(value.as_string(), model, special)};
  if (!value.is_array() || value.size() == 0)
    throw ApiError(400, "prompt: expected a string, tokens, or an array of either", "prompt");
  if (value[0].is_number()) return {token_prompt(value, model)};
  if (value.size() > kMaxPrompts)
    throw ApiError(400,
                   fmt::format("prompt: {} prompts are too many (at most {})", value.size(), kMaxPrompts),
                   "prompt");
  std::vector<Prompt> prompts;
  for (const Json& one : value.as_array()) {
    if (!one.is_string() && !one.is_array())
      throw ApiError(400, fmt::format("prompt: it has {} in it, expected strings or tokens", one.type_name()),
                     "prompt");
    prompts.push_back(one.is_string() ? text_prompt(one.as_string(), model, special)
                                      : token_prompt(one, model));
  }
  return prompts;
}

// Log-probabilities in the form of completions: parallel lists.
class LogprobLists {
 public:
  void add(const ServedModel& model, const TokenChoice& token, bool known, size_t& offset) {
    tokens_.push_back(model.token_text(token.id));
    values_.push_back(known ? Json(static_cast<double>(token.logprob)) : Json());
    Json top = Json::object();
    for (const auto& [id, logprob] : token.top) top[model.token_text(id)] = static_cast<double>(logprob);
    if (known) top[model.token_text(token.id)] = static_cast<double>(token.logprob);
    top_.push_back(known ? top : Json());
    offsets_.push_back(offset);
    offset += characters(model.token_bytes(token.id));
  }
  Json json() const {
    Json lists = Json::object();
    lists["text_offset"] = offsets_;
    lists["token_logprobs"] = values_;
    lists["tokens"] = tokens_;
    lists["top_logprobs"] = top_;
    return lists;
  }
  bool empty() const { return tokens_.size() == 0; }

 private:
  static size_t characters(const std::string& bytes) {
    size_t count = 0;
    for (char c : bytes) count += (static_cast<uint8_t>(c) & 0xC0) != 0x80 ? 1 : 0;
    return count;
  }

  Json tokens_ = Json::array(), values_ = Json::array(), top_ = Json::array(), offsets_ = Json::array();
};

class CompletionWriter : public AnswerWriter {
 public:
  CompletionWriter(const ServedModel& model, std::vector<Prompt> prompts, int64_t answers, bool echo,
                   bool logprobs, bool prompt_logprobs, bool include_usage)
      : model_(model),
        prompts_(std::move(prompts)),
        echo_(echo),
        logprobs_(logprobs),
        prompt_logprobs_(prompt_logprobs),
        include_usage_(include_usage),
        per_prompt_(static_cast<size_t>(answers)),
        answers_(prompts_.size() * per_prompt_) {}

  std::vector<Json> chunks(size_t index, const AnswerPiece& piece) override {
    LogprobLists lists;
    const std::string text = take(index, piece, lists);
    keep_prompt(index, piece);
    if (text.empty() && lists.empty() && piece.finish_reason.empty()) return {};
    Json document = head();
    document["choices"] = Json(Json::Array{choice(index, text, lists, piece)});
    if (include_usage_) document["usage"] = Json();
    return {document};
  }

  void add(size_t index, const AnswerPiece& piece) override {
    Answer& answer = answers_[index];
    answer.text += take(index, piece, answer.lists);
    answer.last.finish_reason = piece.finish_reason;
    answer.last.stop = piece.stop;
    keep_prompt(index, piece);
  }

  Json whole(const Usage& usage) override {
    Json document = head();
    Json list = Json::array();
    for (size_t i = 0; i < answers_.size(); ++i)
      list.push_back(choice(i, answers_[i].text, answers_[i].lists, answers_[i].last));
    document["choices"] = list;
    document["usage"] = usage.json();
    return document;
  }

  Json usage_chunk(const Usage& usage) override {
    Json document = head();
    document["choices"] = Json::array();
    document["usage"] = usage.json();
    return document;
  }

 private:
  struct Answer {
    std::string text;
    LogprobLists lists;
    AnswerPiece last;
    size_t offset = 0;
    bool echoed = false, prompt_told = false;
  };

  // The first piece alone has it, and may have nothing that is told yet.
  void keep_prompt(size_t index, const AnswerPiece& piece) {
    if (!piece.prompt.empty()) answers_[index].last.prompt = piece.prompt;
  }

  Json head() const {
    Json document = Json::object();
    document["id"] = id_;
    document["object"] = "text_completion";
    document["created"] = created_;
    document["model"] = model_.name;
    return document;
  }

  // The text of a piece, behind its prompt where that is echoed.
  std::string take(size_t index, const AnswerPiece& piece, LogprobLists& lists) {
    Answer& answer = answers_[index];
    std::string text;
    if (echo_ && !answer.echoed) {
      answer.echoed = true;
      const Prompt& prompt = prompts_[index / per_prompt_];
      text = prompt.text;
      for (size_t i = 0; logprobs_ && i < prompt.tokens.size(); ++i) {
        const bool known = i > 0 && i <= piece.prompt.size();
        lists.add(model_,
                  known ? piece.prompt[i - 1] : TokenChoice{.id = prompt.tokens[i], .logprob = 0, .top = {}},
                  known, answer.offset);
      }
    }
    if (logprobs_)
      for (const TokenChoice& token : piece.tokens) lists.add(model_, token, true, answer.offset);
    return text + piece.text;
  }

  Json choice(size_t index, const std::string& text, const LogprobLists& lists, const AnswerPiece& piece) {
    Json document = Json::object();
    document["index"] = uint64_t{index};
    document["text"] = text;
    document["logprobs"] = logprobs_ ? lists.json() : Json();
    document["finish_reason"] = piece.finish_reason.empty() ? Json() : Json(piece.finish_reason);
    document["stop_reason"] = piece.stop;
    // Once, also of a prompt of one token, whose list has nothing but the null of the first.
    if (prompt_logprobs_ && !std::exchange(answers_[index].prompt_told, true))
      document["prompt_logprobs"] = prompt_list(answers_[index].last.prompt);
    return document;
  }

  // vLLM's form: for each token of the prompt an object of ids, null for the first.
  Json prompt_list(const std::vector<TokenChoice>& prompt) const {
    Json list = Json(Json::Array{Json()});
    for (const TokenChoice& token : prompt) {
      Json entry = Json::object();
      const auto put = [&](int64_t id, float logprob) {
        Json value = Json::object();
        value["logprob"] = static_cast<double>(logprob);
        value["decoded_token"] = model_.token_text(id);
        entry[std::to_string(id)] = value;
      };
      put(token.id, token.logprob);
      for (const auto& [id, logprob] : token.top) put(id, logprob);
      list.push_back(entry);
    }
    return list;
  }

  const ServedModel& model_;
  std::vector<Prompt> prompts_;
  bool echo_, logprobs_, prompt_logprobs_, include_usage_;
  size_t per_prompt_;
  std::vector<Answer> answers_;
  std::string id_ = random_id("cmpl-");
  int64_t created_ = seconds_now();
};

}  // namespace

void answer_completions(const std::string& body, std::shared_ptr<HttpReply> reply, const ServedModel& model,
                        ConstraintCache& constraints, AnswerShared& shared) {
  Fields fields(body);
  require_model(fields, model);
  GenerationSettings settings = read_generation(fields, model, constraints);
  std::vector<Prompt> prompts = read_prompts(fields, model);
  const bool echo = fields.flag("echo", false);
  const int64_t logprobs = fields.whole("logprobs", -1, 0, 20);
  const int64_t prompt_logprobs = fields.whole("prompt_logprobs", -1, 0, 20);
  const int64_t best_of = fields.whole("best_of", settings.answers, 1, 128);
  if (best_of != settings.answers)
    throw ApiError(400, "best_of: it is not supported; leave it out", "best_of");
  if (!fields.text("suffix", "").empty())
    throw ApiError(400, "suffix: it is not supported; leave it out", "suffix");
  fields.refuse_unknown();

  if (settings.request.max_tokens < 0) settings.request.max_tokens = 16;
  settings.request.top_logprobs = static_cast<int>(logprobs);
  settings.request.prompt_logprobs =
      static_cast<int>(echo ? std::max(logprobs, prompt_logprobs) : prompt_logprobs);
  std::vector<std::vector<int64_t>> tokens;
  for (const Prompt& prompt : prompts) tokens.push_back(prompt.tokens);
  auto writer =
      std::make_unique<CompletionWriter>(model, std::move(prompts), settings.answers, echo, logprobs >= 0,
                                         prompt_logprobs >= 0, settings.include_usage);
  std::make_shared<AnswerJob>(shared, model, std::move(settings), std::move(reply), std::move(writer))
      ->start(std::move(tokens));
}

}  // namespace megatron
