#include <gtest/gtest.h>

#include "unit/server/served.h"

namespace megatron {
namespace {

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kTool =
    R"([{"type":"function","function":{"name":"weather","parameters":{"type":"object","properties":{"city":{"type":"string",)"
    R"("enum":["Rome","Oslo"]}},"required":["city"]}}}])";

Json message_of(const Json& answer) { return answer.at("choices")[0].at("message"); }

TEST(Chat, Answers) {
  Served served("Good day.");
  const Json answer = served.ask(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0})");
  EXPECT_EQ(message_of(answer).at("content"), Json("Good day."));
  EXPECT_EQ(answer.at("choices")[0].at("finish_reason"), Json("stop"));
  const Json parts = served.ask(
      kChat,
      R"({"messages":[{"role":"user","content":[{"type":"text","text":"Hi"}]}],"temperature":0,"max_tokens":1})");
  EXPECT_EQ(parts.at("usage").at("prompt_tokens"), answer.at("usage").at("prompt_tokens"));
}

TEST(Chat, StreamsBeginWithTheRole) {
  Served served("Good day.");
  const std::vector<Json> chunks = served.stream(
      kChat,
      R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0,"stream":true,"logprobs":true,"top_logprobs":2})");
  EXPECT_EQ(chunks.front().at("choices")[0].at("delta").at("role"), Json("assistant"));
  EXPECT_EQ(chunks.back().at("choices")[0].at("finish_reason"), Json("stop"));
  EXPECT_TRUE(chunks.back().at("choices")[0].at("stop_reason").is_null());
  EXPECT_FALSE(chunks.back().contains("usage")) << "it was not asked for";
  std::string text, tokens;
  for (const Json& chunk : chunks) {
    const Json& choice = chunk.at("choices")[0];
    if (const Json* content = choice.at("delta").find("content")) text += content->as_string();
    if (choice.at("logprobs").is_null()) continue;
    for (const Json& token : choice.at("logprobs").at("content").as_array()) {
      tokens += token.at("token").as_string();
      EXPECT_EQ(token.at("top_logprobs").size(), 2);
    }
  }
  EXPECT_EQ(text, "Good day.");
  EXPECT_EQ(tokens, "Good day.");
}

TEST(Chat, ToolsAreCalled) {
  Served served(
      "Let me see.\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Rome\"}}\n</tool_call>",
      {.style = {.tools = ToolFormat::hermes}});
  const std::string body =
      fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],"temperature":0,"tools":{}}})", kTool);
  const Json answer = served.ask(kChat, body);
  EXPECT_EQ(answer.at("choices")[0].at("finish_reason"), Json("tool_calls"));
  const Json function = message_of(answer).at("tool_calls")[0].at("function");
  EXPECT_EQ(function.at("name"), Json("weather"));
  EXPECT_EQ(Json::parse(function.at("arguments").as_string()).at("city"), Json("Rome"));
  const std::vector<Json> chunks =
      served.stream(kChat, body.substr(0, body.size() - 1) + R"(,"stream":true})");
  int calls = 0;
  for (const Json& chunk : chunks) calls += chunk.at("choices")[0].at("delta").contains("tool_calls") ? 1 : 0;
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(chunks.back().at("choices")[0].at("finish_reason"), Json("tool_calls"));
}

// The model wants to say something else, and is held to a call.
TEST(Chat, ToolsAreForced) {
  for (ToolFormat format : {ToolFormat::hermes, ToolFormat::llama3, ToolFormat::mistral, ToolFormat::none}) {
    Served served("No, I would rather talk.", {.style = {.tools = format}});
    const Json answer = served.ask(
        kChat,
        fmt::format(R"({{"messages":[{{"role":"user","content":"Hi"}}],"temperature":0,"max_tokens":300,
                               "parallel_tool_calls":false,"tools":{},"tool_choice":"required"}})",
                    kTool));
    ASSERT_TRUE(message_of(answer).contains("tool_calls")) << answer.dump();
    const Json function = message_of(answer).at("tool_calls")[0].at("function");
    EXPECT_EQ(function.at("name"), Json("weather"));
    const Json city = Json::parse(function.at("arguments").as_string()).at("city");
    EXPECT_TRUE(city == Json("Rome") || city == Json("Oslo"));
    EXPECT_EQ(answer.at("choices")[0].at("finish_reason"), Json("tool_calls"));
  }
}

TEST(Chat, ReasoningIsApart) {
  Served served("<think>\nHm.\n</think>\n\nYes.", {.style = {.reasoning = true}});
  const Json answer = served.ask(kChat, R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0})");
  EXPECT_EQ(message_of(answer).at("content"), Json("Yes."));
  EXPECT_EQ(message_of(answer).at("reasoning_content"), Json("Hm.\n"));
}

// Where the template begins the thoughts, a format holds for what follows them.
TEST(Chat, JsonIsHeldBehindReasoning) {
  ServedModel model = test_model();
  model.templates.sources[0].second += "{% if add_generation_prompt %}<think>\n{% endif %}";
  Served served("Hm, well.\n</think>\n\nSure! Here it is:", std::move(model), {.style = {.reasoning = true}},
                {});
  const std::string body =
      R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0,"max_tokens":400,"response_format":{"type":"json_schema",
          "json_schema":{"name":"x","schema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],
          "additionalProperties":false}}})";
  const Json message = message_of(served.ask(kChat, body + "}"));
  EXPECT_EQ(message.at("reasoning_content"), Json("Hm, well.\n"));
  EXPECT_TRUE(Json::parse(message.at("content").as_string()).at("ok").is_bool()) << message.dump();
  std::string thoughts, content;
  for (const Json& chunk : served.stream(kChat, body + R"(,"stream":true})")) {
    const Json& delta = chunk.at("choices")[0].at("delta");
    if (const Json* text = delta.find("reasoning_content")) thoughts += text->as_string();
    if (const Json* text = delta.find("content")) content += text->as_string();
  }
  EXPECT_EQ(thoughts, "Hm, well.\n");
  EXPECT_EQ(Json(content), message.at("content"));
}

// So does a call that is forced.
TEST(Chat, ToolsAreForcedBehindReasoning) {
  for (ToolFormat format : {ToolFormat::hermes, ToolFormat::llama3, ToolFormat::mistral}) {
    ServedModel model = test_model();
    model.templates.sources[0].second += "{% if add_generation_prompt %}<think>\n{% endif %}";
    Served served("Hm, well.\n</think>\n\nNo.", std::move(model),
                  {.style = {.tools = format, .reasoning = true}}, {});
    const std::string body = fmt::format(
        R"({{"messages":[{{"role":"user","content":"Hi"}}],"temperature":0,"max_tokens":300,"stream_options":{{"include_usage":true}},
             "parallel_tool_calls":false,"tools":{},"tool_choice":"required","stream":true}})",
        kTool);
    std::string thoughts, content, city;
    for (const Json& chunk : served.stream(kChat, body)) {
      if (chunk.at("choices").size() == 0) continue;
      EXPECT_TRUE(chunk.at("usage").is_null());
      const Json& delta = chunk.at("choices")[0].at("delta");
      if (const Json* text = delta.find("reasoning_content")) thoughts += text->as_string();
      if (const Json* text = delta.find("content")) content += text->as_string();
      if (const Json* calls = delta.find("tool_calls"))
        city += Json::parse((*calls)[0].at("function").at("arguments").as_string()).at("city").as_string();
    }
    EXPECT_EQ(thoughts, "Hm, well.\n");
    EXPECT_EQ(content, "");
    EXPECT_TRUE(city == "Rome" || city == "Oslo") << city;
  }
}

TEST(Chat, JsonIsHeld) {
  Served served("Sure! Here it is:");
  const Json answer = served.ask(
      kChat,
      R"({"messages":[{"role":"user","content":"Hi"}],"temperature":0,"max_tokens":400,"response_format":{"type":"json_schema",
          "json_schema":{"name":"x","schema":{"type":"object","properties":{"ok":{"type":"boolean"}},"required":["ok"],
          "additionalProperties":false}}}})");
  EXPECT_TRUE(Json::parse(message_of(answer).at("content").as_string()).at("ok").is_bool());
}

TEST(Chat, FaultsAreNamed) {
  Served served("x");
  for (const char* body :
       {R"({"messages":[]})", R"({"messages":"x"})", R"({"messages":[{"content":"x"}]})",
        R"({"messages":[5]})",
        R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}]})",
        R"({"messages":[{"role":"user","content":"x"}],"tools":5})",
        R"({"messages":[{"role":"user","content":"x"}],"tool_choice":"required"})",
        R"({"messages":[{"role":"user","content":"x"}],"tool_choice":{"function":{"name":"f"}}})",
        R"({"messages":[{"role":"user","content":"x"}],"top_logprobs":2})"})
    EXPECT_EQ(served.send(kChat, body)->status, 400) << body;
}

std::string said(ChatOutput& output, std::vector<std::string> texts) {
  std::string all;
  const auto write = [&](const std::vector<ChatPart>& parts) {
    for (const ChatPart& part : parts)
      all += part.kind == ChatPart::Kind::call        ? fmt::format("[{}:{}]", part.name, part.text)
             : part.kind == ChatPart::Kind::reasoning ? "(" + part.text + ")"
                                                      : part.text;
  };
  for (const std::string& text : texts) write(output.push(text));
  write(output.finish());
  return all;
}

TEST(ChatOutput, Formats) {
  ChatOutput hermes({.tools = ToolFormat::hermes});
  EXPECT_EQ(said(hermes, {"a <tool", "_call>{\"name\":\"f\",\"argum",
                          "ents\":{}}</tool_call>\n<tool_call>{\"name\":\"g\"}"}),
            "a [f:{}][g:{}]");
  ChatOutput broken({.tools = ToolFormat::hermes});
  EXPECT_EQ(said(broken, {"<tool_call>nonsense</tool_call>"}), "<tool_call>nonsense</tool_call>");
  ChatOutput llama({.tools = ToolFormat::llama3});
  EXPECT_EQ(said(llama, {"{\"name\": \"f\", ",
                         "\"parameters\": {\"a\": 1}}; {\"name\": \"g\", \"parameters\": {}}"}),
            "[f:{\"a\":1}][g:{}]");
  ChatOutput plain({.tools = ToolFormat::llama3});
  EXPECT_EQ(said(plain, {"Well, ", "{x}"}), "Well, {x}");
  ChatOutput mistral({.tools = ToolFormat::mistral});
  EXPECT_EQ(said(mistral, {"[TOOL_CALLS]", " [{\"name\": \"f\", \"arguments\": {\"a\": \"]\"}}]"}),
            "[f:{\"a\":\"]\"}]");
  ChatOutput named({.tools = ToolFormat::mistral});
  EXPECT_EQ(said(named, {"[TOOL_CALLS]f[ARGS]{\"a\": 1}[TOOL_CALLS]g{}"}), "[f:{\"a\": 1}][g:{}]");
  ChatOutput thinking({.reasoning = true, .begins_in_reasoning = true});
  EXPECT_EQ(said(thinking, {"hm</th", "ink>\n\nyes"}), "(hm)yes");
  ChatOutput one({.tools = ToolFormat::llama3, .several_calls = false});
  EXPECT_EQ(said(one, {"{\"name\":\"f\"};{\"name\":\"g\"}"}), "[f:{}]");
}

TEST(MarkerScanner, HoldsBackWhatMayBeAMarker) {
  MarkerScanner scanner({"STOP", "STAY"});
  EXPECT_EQ(scanner.push("go S").before, "go ");
  EXPECT_EQ(scanner.push("T").before, "");
  EXPECT_EQ(scanner.push("x").before, "STx");
  const auto found = scanner.push(
      "ST"
      "AYS");
  EXPECT_EQ(found.marker, 1);
  EXPECT_EQ(found.after, "S");
}

}  // namespace
}  // namespace megatron
