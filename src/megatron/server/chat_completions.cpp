#include "megatron/server/chat_completions.h"

#include "megatron/inference/constraint/behind_marker.h"
#include "megatron/server/api_error.h"
#include "megatron/server/document_ids.h"

namespace megatron {
namespace {

Json logprob_entry(const ServedModel& model, int64_t id, float logprob) {
  Json bytes = Json::array();
  for (char c : model.token_bytes(id)) bytes.push_back(static_cast<int>(static_cast<uint8_t>(c)));
  Json entry = Json::object();
  entry["token"] = model.token_text(id);
  entry["logprob"] = static_cast<double>(logprob);
  entry["bytes"] = bytes;
  return entry;
}

Json call_entry(const ChatPart& part, int index, bool with_index) {
  Json function = Json::object();
  function["name"] = part.name;
  function["arguments"] = part.text;
  Json call = Json::object();
  if (with_index) call["index"] = index;
  call["id"] = random_id("call_");
  call["type"] = "function";
  call["function"] = function;
  return call;
}

class ChatWriter : public AnswerWriter {
 public:
  ChatWriter(const ServedModel& model, int64_t answers, const ChatOutputOptions& output, bool logprobs,
             bool forced, bool include_usage)
      : model_(model), logprobs_(logprobs), forced_(forced), include_usage_(include_usage) {
    for (int64_t i = 0; i < answers; ++i) answers_.emplace_back(output);
  }

  std::vector<Json> chunks(size_t index, const AnswerPiece& piece) override {
    Answer& answer = answers_[index];
    std::vector<Json> documents;
    Json logprobs = logprob_list(piece);
    const auto chunk = [&](Json delta, const Json& finish) {
      Json choice = Json::object();
      choice["index"] = uint64_t{index};
      choice["delta"] = std::move(delta);
      choice["logprobs"] = logprobs_ ? std::exchange(logprobs, Json()) : Json();
      choice["finish_reason"] = finish;
      if (!finish.is_null()) choice["stop_reason"] = piece.stop;
      Json document = head("chat.completion.chunk");
      document["choices"] = Json(Json::Array{choice});
      if (include_usage_) document["usage"] = Json();
      documents.push_back(std::move(document));
    };
    if (!answer.begun) {
      answer.begun = true;
      Json delta = Json::object();
      delta["role"] = "assistant";
      delta["content"] = "";
      Json kept = std::exchange(logprobs, Json());
      chunk(delta, Json());
      logprobs = std::move(kept);
    }
    for (const ChatPart& part : take(answer, piece)) {
      Json delta = Json::object();
      if (part.kind == ChatPart::Kind::call) {
        delta["tool_calls"] = Json(Json::Array{call_entry(part, answer.calls++, true)});
      } else {
        delta[part.kind == ChatPart::Kind::content ? "content" : "reasoning_content"] = part.text;
      }
      chunk(delta, Json());
    }
    if (!piece.finish_reason.empty()) chunk(Json::object(), finish_reason(answer, piece));
    if (!logprobs.is_null() && logprobs.contains("content") && logprobs.at("content").size() > 0) {
      // Tokens whose text is still held back.
      Json delta = Json::object();
      delta["content"] = "";
      chunk(delta, Json());
    }
    return documents;
  }

  void add(size_t index, const AnswerPiece& piece) override {
    Answer& answer = answers_[index];
    for (const ChatPart& part : take(answer, piece)) {
      if (part.kind == ChatPart::Kind::call)
        answer.tool_calls.push_back(call_entry(part, answer.calls++, false));
      else
        (part.kind == ChatPart::Kind::content ? answer.content : answer.reasoning) += part.text;
    }
    if (const Json list = logprob_list(piece); !list.is_null())
      for (const Json& entry : list.at("content").as_array()) answer.logprobs.push_back(entry);
    if (!piece.finish_reason.empty()) answer.finish = finish_reason(answer, piece);
    answer.stop = piece.stop;
  }

  Json whole(const Usage& usage) override {
    Json list = Json::array();
    for (size_t i = 0; i < answers_.size(); ++i) {
      const Answer& answer = answers_[i];
      Json message = Json::object();
      message["role"] = "assistant";
      message["content"] = answer.content.empty() && answer.calls > 0 ? Json() : Json(answer.content);
      if (!answer.reasoning.empty()) message["reasoning_content"] = answer.reasoning;
      if (answer.calls > 0) message["tool_calls"] = answer.tool_calls;
      Json logprobs = Json::object();
      logprobs["content"] = answer.logprobs;
      Json choice = Json::object();
      choice["index"] = uint64_t{i};
      choice["message"] = message;
      choice["logprobs"] = logprobs_ ? logprobs : Json();
      choice["finish_reason"] = answer.finish;
      choice["stop_reason"] = answer.stop;
      list.push_back(choice);
    }
    Json document = head("chat.completion");
    document["choices"] = list;
    document["usage"] = usage.json();
    return document;
  }

  Json usage_chunk(const Usage& usage) override {
    Json document = head("chat.completion.chunk");
    document["choices"] = Json::array();
    document["usage"] = usage.json();
    return document;
  }

 private:
  struct Answer {
    explicit Answer(const ChatOutputOptions& options) : output(options) {}
    ChatOutput output;
    bool begun = false;
    int calls = 0;
    std::string content, reasoning;
    Json tool_calls = Json::array(), logprobs = Json::array(), finish, stop;
  };

  static std::vector<ChatPart> take(Answer& answer, const AnswerPiece& piece) {
    std::vector<ChatPart> parts = answer.output.push(piece.text);
    if (!piece.finish_reason.empty())
      for (ChatPart& part : answer.output.finish()) parts.push_back(std::move(part));
    return parts;
  }

  Json finish_reason(const Answer& answer, const AnswerPiece& piece) const {
    return answer.calls > 0 && !forced_ && piece.finish_reason == "stop" ? Json("tool_calls")
                                                                         : Json(piece.finish_reason);
  }

  Json logprob_list(const AnswerPiece& piece) const {
    if (!logprobs_) return {};
    Json content = Json::array();
    for (const TokenChoice& token : piece.tokens) {
      Json entry = logprob_entry(model_, token.id, token.logprob);
      Json top = Json::array();
      for (const auto& [id, logprob] : token.top) top.push_back(logprob_entry(model_, id, logprob));
      entry["top_logprobs"] = top;
      content.push_back(entry);
    }
    Json list = Json::object();
    list["content"] = content;
    return list;
  }

  Json head(const char* object) const {
    Json document = Json::object();
    document["id"] = id_;
    document["object"] = object;
    document["created"] = created_;
    document["model"] = model_.name;
    return document;
  }

  const ServedModel& model_;
  bool logprobs_, forced_, include_usage_;
  std::vector<Answer> answers_;
  std::string id_ = random_id("chatcmpl-");
  int64_t created_ = seconds_now();
};

struct ToolChoice {
  enum class Kind { none, automatic, required, named } kind = Kind::automatic;
  std::string name;
};

ToolChoice read_tool_choice(Fields& fields) {
  const Json* choice = fields.find("tool_choice");
  if (!choice || *choice == Json("auto")) return {};
  if (*choice == Json("none")) return {ToolChoice::Kind::none, ""};
  if (*choice == Json("required")) return {ToolChoice::Kind::required, ""};
  const Json* function = choice->find("function");
  const Json* name = function ? function->find("name") : nullptr;
  if (!name || !name->is_string())
    throw ApiError(
        400,
        "tool_choice: expected none, auto, required or {\"type\": \"function\", \"function\": {\"name\"}}",
        "tool_choice");
  return {ToolChoice::Kind::named, name->as_string()};
}

// The tools that an answer has to call; none where it is free.
std::vector<Tool> forced_tools(const ToolChoice& choice, const std::vector<Tool>& tools) {
  if (choice.kind == ToolChoice::Kind::required) {
    if (tools.empty()) throw ApiError(400, "tool_choice: required needs tools", "tool_choice");
    return tools;
  }
  if (choice.kind != ToolChoice::Kind::named) return {};
  for (const Tool& tool : tools)
    if (tool.name == choice.name) return {tool};
  throw ApiError(400, fmt::format("tool_choice: '{}' is none of the tools", choice.name), "tool_choice");
}

}  // namespace

void answer_chat_completions(const std::string& body, std::shared_ptr<HttpReply> reply,
                             const ServedModel& model, const ChatPrompts& prompts, const ChatStyle& style,
                             ConstraintCache& constraints, AnswerShared& shared) {
  Fields fields(body);
  require_model(fields, model);
  GenerationSettings settings = read_generation(fields, model, constraints);
  const ToolChoice choice = read_tool_choice(fields);
  ChatPrompt prompt = prompts.read(fields, choice.kind == ToolChoice::Kind::none);
  const bool logprobs = fields.flag("logprobs", false);
  const int64_t top_logprobs = fields.whole("top_logprobs", 0, 0, 20);
  if (top_logprobs > 0 && !logprobs)
    throw ApiError(400, "top_logprobs: it needs logprobs true", "top_logprobs");
  const bool several = fields.flag("parallel_tool_calls", true);
  fields.ignore({"modalities", "prediction"});
  fields.refuse_unknown();

  settings.request.top_logprobs = logprobs ? static_cast<int>(top_logprobs) : -1;
  ChatOutputOptions output{.reasoning = style.reasoning, .several_calls = several};
  if (style.reasoning) {
    const size_t end = prompt.text.find_last_not_of(" \n");
    output.begins_in_reasoning =
        end != std::string::npos && prompt.text.substr(0, end + 1).ends_with("<think>");
  }
  if (!prompt.tools.empty() && choice.kind != ToolChoice::Kind::none) output.tools = style.tools;
  if (const std::vector<Tool> forced = forced_tools(choice, prompt.tools); !forced.empty()) {
    if (settings.request.constraint)
      throw ApiError(400, "response_format: it cannot be held together with tool_choice", "response_format");
    output.only_calls = true;
    output.reasoning = output.begins_in_reasoning;
    settings.request.constraint = compile_for("tools", [&] {
      return compile_framed_schemas(
          model.vocabulary,
          tool_call_texts(style.tools, forced, several && choice.kind == ToolChoice::Kind::required));
    });
  }
  // A format or a call is that of the answer, not of the thoughts in front of it.
  if (output.begins_in_reasoning && settings.request.constraint) {
    const auto end = model.tokenizer.id_of("</think>");
    settings.request.constraint =
        constrain_behind(model.vocabulary, "</think>", end ? std::optional<int64_t>(*end) : std::nullopt,
                         std::move(settings.request.constraint));
  }
  // Some models begin a call with a special token, which the text has to show.
  for (const char* piece :
       {"[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "<tool_call>", "</tool_call>", "<think>", "</think>"})
    if (const auto id = model.tokenizer.id_of(piece)) settings.text.shown_special_tokens.insert(*id);
  auto writer = std::make_unique<ChatWriter>(model, settings.answers, output, logprobs,
                                             choice.kind == ToolChoice::Kind::named, settings.include_usage);
  std::vector<std::vector<int64_t>> tokens = {std::move(prompt.tokens)};
  std::make_shared<AnswerJob>(shared, model, std::move(settings), std::move(reply), std::move(writer))
      ->start(std::move(tokens));
}

}  // namespace megatron
