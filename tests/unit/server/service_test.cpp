#include <gtest/gtest.h>

#include "unit/server/served.h"

namespace megatron {
namespace {

constexpr const char* kCompletions = "/v1/completions";

TEST(Completions, WholeAnswers) {
  Served served("Hello world, again.");
  const Json answer =
      served.ask(kCompletions, R"({"model":"test","prompt":"Say","max_tokens":50,"temperature":0})");
  EXPECT_EQ(answer.at("object"), Json("text_completion"));
  const Json& choice = answer.at("choices")[0];
  EXPECT_EQ(choice.at("text"), Json("Hello world, again."));
  EXPECT_EQ(choice.at("finish_reason"), Json("stop"));
  EXPECT_TRUE(choice.at("logprobs").is_null());
  const Json& usage = answer.at("usage");
  EXPECT_EQ(usage.at("total_tokens").as_int(),
            usage.at("prompt_tokens").as_int() + usage.at("completion_tokens").as_int());
  EXPECT_EQ(served.service.requests(), 0);
}

TEST(Completions, LengthEndsAnswers) {
  Served served("Hello world, again.");
  const Json answer = served.ask(kCompletions, R"({"prompt":"Say","max_tokens":2,"temperature":0})");
  EXPECT_EQ(answer.at("choices")[0].at("finish_reason"), Json("length"));
  EXPECT_EQ(answer.at("usage").at("completion_tokens"), Json(2));
}

TEST(Completions, SeveralPromptsAndAnswers) {
  Served served("Yes.");
  const Json answer = served.ask(kCompletions, R"({"prompt":["a","b","c"],"n":2,"temperature":0})");
  ASSERT_EQ(answer.at("choices").size(), 6);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(answer.at("choices")[i].at("index"), Json(uint64_t{i}));
    EXPECT_EQ(answer.at("choices")[i].at("text"), Json("Yes."));
  }
}

// The stop string comes in the middle of a token or over several; nothing of it or behind it is said.
TEST(Completions, StopStringsAcrossTokens) {
  for (const char* stop : {"world", "rld, ag", "d", "again."}) {
    Served served("Hello world, again.");
    const std::string script = "Hello world, again.";
    for (bool stream : {false, true}) {
      const std::string body = fmt::format(
          R"({{"prompt":"x","max_tokens":50,"temperature":0,"stop":["{}"],"stream":{}}})", stop, stream);
      std::string text;
      Json finish;
      if (stream) {
        for (const Json& chunk : served.stream(kCompletions, body)) {
          text += chunk.at("choices")[0].at("text").as_string();
          finish = chunk.at("choices")[0].at("finish_reason");
        }
      } else {
        const Json answer = served.ask(kCompletions, body);
        text = answer.at("choices")[0].at("text").as_string();
        finish = answer.at("choices")[0].at("finish_reason");
        EXPECT_EQ(answer.at("choices")[0].at("stop_reason"), Json(stop));
      }
      EXPECT_EQ(text, script.substr(0, script.find(stop))) << stop;
      EXPECT_EQ(finish, Json("stop"));
    }
  }
}

TEST(Completions, StreamsSpellTheAnswer) {
  Served served("Grüße, 世界! 😀 end");
  std::string text;
  const std::vector<Json> chunks = served.stream(
      kCompletions,
      R"({"prompt":"x","max_tokens":99,"temperature":0,"stream":true,"stream_options":{"include_usage":true}})");
  for (const Json& chunk : chunks)
    for (const Json& choice : chunk.at("choices").as_array()) text += choice.at("text").as_string();
  EXPECT_EQ(text, "Grüße, 世界! 😀 end");
  EXPECT_EQ(chunks.back().at("choices").size(), 0);
  for (size_t i = 0; i + 1 < chunks.size(); ++i) EXPECT_TRUE(chunks[i].at("usage").is_null());
  EXPECT_GT(chunks.back().at("usage").at("completion_tokens").as_int(), 5);
  EXPECT_GT(chunks.size(), 5);
}

// Tokens that the client names end an answer, which tells by which of them it ended.
TEST(Completions, StopTokensAreTold) {
  Served served("Hello world, again.");
  const std::vector<int64_t> script = test_model().encode("Hello world, again.", false);
  const int64_t stop = script[3], end = test_model().end_tokens[0];
  const std::string before =
      test_model().tokenizer.decode(std::vector<TokenId>(script.begin(), script.begin() + 3));
  const std::string text = test_model().token_text(stop);
  const auto body = [&](const std::string& more) {
    return fmt::format(R"({{"prompt":"x","max_tokens":50,"temperature":0,"stop_token_ids":[{},{}]{}}})", stop,
                       stop, more);
  };
  const Json choice = served.ask(kCompletions, body("")).at("choices")[0];
  EXPECT_EQ(choice.at("text"), Json(before));
  EXPECT_EQ(choice.at("finish_reason"), Json("stop"));
  EXPECT_EQ(choice.at("stop_reason"), Json(stop));
  EXPECT_EQ(served.stream(kCompletions, body(R"(,"stream":true)")).back().at("choices")[0].at("stop_reason"),
            Json(stop));
  const Json whole = served.ask(kCompletions, body(R"(,"include_stop_str_in_output":true)"));
  EXPECT_EQ(whole.at("choices")[0].at("text"), Json(before + text));
  // The model's own end is no reason to tell, unless it is passed over but for the client.
  const auto ended = [&](bool ignores) {
    return served
        .ask(kCompletions,
             fmt::format(
                 R"({{"prompt":"x","max_tokens":50,"temperature":0,"ignore_eos":{},"stop_token_ids":[{}]}})",
                 ignores, end))
        .at("choices")[0]
        .at("stop_reason");
  };
  EXPECT_TRUE(ended(false).is_null());
  EXPECT_EQ(ended(true), Json(end));
}

// top_p 0 leaves the likeliest token, however hot.
TEST(Completions, TopPOfNothingIsGreedy) {
  Served served("Hello world, again.");
  const Json answer =
      served.ask(kCompletions, R"({"prompt":"x","max_tokens":50,"temperature":100,"top_p":0})");
  EXPECT_EQ(answer.at("choices")[0].at("text"), Json("Hello world, again."));
  EXPECT_EQ(served.send(kCompletions, R"({"prompt":"x","top_p":-0.1})")->status, 400);
}

// What lm-eval reads: prompts as tokens, echo, and log-probabilities of every token but the first.
TEST(Completions, EchoWithLogprobs) {
  Served served("Hello");
  const Json answer = served.ask(
      kCompletions,
      R"({"prompt":[[11,22,33],[44,55]],"max_tokens":1,"temperature":0,"echo":true,"logprobs":1})");
  const Json& lists = answer.at("choices")[0].at("logprobs");
  ASSERT_EQ(lists.at("tokens").size(), 4);
  EXPECT_TRUE(lists.at("token_logprobs")[0].is_null());
  EXPECT_TRUE(lists.at("top_logprobs")[0].is_null());
  for (size_t i = 1; i < 4; ++i) {
    double best = -100;
    for (const auto& [token, logprob] : lists.at("top_logprobs")[i].as_object())
      best = std::max(best, logprob.as_double());
    EXPECT_EQ(lists.at("token_logprobs")[i].as_double(), best);
  }
  EXPECT_EQ(answer.at("choices")[1].at("logprobs").at("tokens").size(), 3);
  const Json scored = served.ask(
      kCompletions, R"({"prompt":[11,22],"max_tokens":0,"temperature":0,"echo":true,"logprobs":0})");
  EXPECT_EQ(scored.at("choices")[0].at("logprobs").at("tokens").size(), 2);
  EXPECT_EQ(scored.at("usage").at("completion_tokens"), Json(0));
}

TEST(Completions, ConstraintsHold) {
  Served served("Certainly, no JSON here");
  const Json answer = served.ask(
      kCompletions, R"({"prompt":"x","max_tokens":200,"temperature":0,"guided_regex":"[ab]{3}c"})");
  const std::string text = answer.at("choices")[0].at("text").as_string();
  EXPECT_EQ(text.size(), 4) << text;
  EXPECT_EQ(text.back(), 'c');
  const Json choice = served.ask(kCompletions, R"({"prompt":"x","guided_choice":["yes","no"],"seed":3})");
  const std::string chosen = choice.at("choices")[0].at("text").as_string();
  EXPECT_TRUE(chosen == "yes" || chosen == "no") << chosen;
  const Json nulls = served.ask(
      kCompletions,
      R"({"prompt":"x","structured_outputs":{"json":null,"regex":"ab","choice":null,"grammar":null}})");
  EXPECT_EQ(nulls.at("choices")[0].at("text"), Json("ab"));
}

TEST(Requests, FaultsAreNamed) {
  Served served("x");
  struct Fault {
    const char *body, *named;
    int status = 400;
  };
  for (const Fault& fault : std::vector<Fault>{
           {"{", "malformed"},
           {"[]", "object"},
           {"\xff{}", "UTF-8"},
           {R"({})", "prompt"},
           {R"({"prompt":5})", "prompt"},
           {R"({"prompt":""})", "no tokens"},
           {R"({"prompt":[99999999]})", "99999999"},
           {R"({"prompt":["a",5]})", "prompt"},
           {R"({"prompt":"a","model":"other"})", "other", 404},
           {R"({"prompt":"a","temperature":-1})", "temperature"},
           {R"({"prompt":"a","temperature":"hot"})", "temperature"},
           {R"({"prompt":"a","top_p":1.5})", "top_p"},
           {R"({"prompt":"a","n":0})", "n"},
           {R"({"prompt":"a","n":1.5})", "n"},
           {R"({"prompt":"a","stop":[1]})", "stop"},
           {R"({"prompt":"a","stop":""})", "stop"},
           {R"({"prompt":"a","logit_bias":{"x":1}})", "logit_bias"},
           {R"({"prompt":"a","logprobs":99})", "logprobs"},
           {R"({"prompt":"a","max_tokens":100000})", "maximum context length"},
           {R"({"prompt":"a","max_tokens":-5})", "max_tokens"},
           {R"({"prompt":"a","frobnicate":1})", "frobnicate"},
           {R"({"prompt":"a","suffix":"b"})", "suffix"},
           {R"({"prompt":"a","structured_outputs":5})", "structured_outputs"},
           {R"({"prompt":"a","structured_outputs":{"grammar":"x"}})", "grammar"},
           {R"({"prompt":"a","stream_options":{}})", "stream_options"},
           {R"({"prompt":"a","response_format":{"type":"json_schema","json_schema":{"schema":{"not":{}}}}})",
            "not"},
           {R"j({"prompt":"a","guided_regex":"(?=a)"})j", "look-around"},
           {R"({"prompt":"a","guided_regex":"a","guided_choice":["b"]})", "another constraint"}}) {
    const auto reply = served.send(kCompletions, fault.body);
    EXPECT_EQ(reply->status, fault.status) << fault.body << reply->body;
    const Json error = Json::parse(reply->body).at("error");
    EXPECT_NE(error.at("message").as_string().find(fault.named), std::string::npos)
        << fault.body << reply->body;
    EXPECT_TRUE(error.at("type").is_string());
  }
  EXPECT_EQ(served.service.requests(), 0);
}

// Answers that may neither go on nor end are refused rather than begun.
TEST(Requests, TokensThatAllEndAnAnswer) {
  Served served("x");
  std::string all;
  const int64_t count = test_model().vocab_size;
  for (int64_t id = 0; id < count; ++id) all += fmt::format("{}{}", id ? "," : "", id);
  const auto body = [&](int least) {
    return fmt::format(R"({{"prompt":"a","min_tokens":{},"stop_token_ids":[{}]}})", least, all);
  };
  EXPECT_EQ(served.send(kCompletions, body(1))->status, 400);
  EXPECT_EQ(served.send(kCompletions, body(0))->status, 200);
}

TEST(Completions, PromptLogprobsAreToldOnce) {
  Served served("Hello world.");
  const Json one = served.ask(kCompletions, R"({"prompt":[5],"max_tokens":2,"prompt_logprobs":1})");
  EXPECT_EQ(one.at("choices")[0].at("prompt_logprobs"), Json(Json::Array{Json()}));
  // Also where the beginning of the answer is held back, since it may become a stop string.
  for (const char* stop : {"[]", R"(["Hello x"])"})
    for (const auto& [prompt, tokens] : {std::pair{"[5]", 1}, {"[5,6,7]", 3}}) {
      SCOPED_TRACE(fmt::format("{} {}", prompt, stop));
      std::vector<size_t> told;
      for (const Json& chunk : served.stream(
               kCompletions,
               fmt::format(R"({{"prompt":{},"max_tokens":30,"prompt_logprobs":1,"stop":{},"stream":true}})",
                           prompt, stop)))
        if (const Json* list = chunk.at("choices")[0].find("prompt_logprobs")) told.push_back(list->size());
      EXPECT_EQ(told, (std::vector<size_t>{static_cast<size_t>(tokens)}));
    }
}

TEST(Requests, MetricsEscapeNamesAndBeginAtZero) {
  ServedModel model = test_model();
  model.name = "a\"b\\c\nd";
  Served served("x", std::move(model), {}, {});
  const std::string text = served.start("GET", "/metrics", "")->body;
  EXPECT_NE(text.find(R"(vllm:num_requests_running{model_name="a\"b\\c\nd"} 0)"), std::string::npos) << text;
  for (const char* reason : {"stop", "length", "abort"})
    EXPECT_NE(text.find(fmt::format(R"(finished_reason="{}"}} 0)", reason)), std::string::npos) << reason;
}

TEST(Requests, OtherEndpoints) {
  Served served("x", {.version = "1.2"});
  const auto get = [&](const std::string& path) {
    const auto reply = served.start("GET", path, "");
    return std::pair(reply->status, reply->body);
  };
  EXPECT_EQ(get("/health").first, 200);
  EXPECT_EQ(get("/v1/health").first, 200);
  EXPECT_NE(get("/version").second.find("1.2"), std::string::npos);
  EXPECT_NE(get("/v1/models").second.find("\"test\""), std::string::npos);
  EXPECT_EQ(get("/v1/models/test").first, 200);
  EXPECT_NE(get("/metrics").second.find("vllm:num_requests_running{model_name=\"test\"} 0"),
            std::string::npos);
  EXPECT_TRUE(Json::parse(get("/openapi.json").second).at("paths").contains("/v1/chat/completions"));
  EXPECT_NE(get("/").second.find("<!doctype html>"), std::string::npos);
  EXPECT_EQ(get("/nothing").first, 404);
  EXPECT_EQ(get(kCompletions).first, 405);
  const Json tokens = served.ask("/tokenize", R"({"prompt":"Hello world"})");
  const Json text = served.ask("/detokenize", fmt::format(R"({{"tokens":{}}})", tokens.at("tokens").dump()));
  EXPECT_EQ(text.at("prompt"), Json("Hello world"));
  served.service.drain();
  EXPECT_EQ(get("/health").first, 503);
  EXPECT_EQ(served.send(kCompletions, R"({"prompt":"a"})")->status, 503);
}

// Every field that the document names is taken by its endpoint.
TEST(Requests, DocumentedFieldsAreKnown) {
  Served served("x");
  const Json paths = Json::parse(served.start("GET", "/openapi.json", "")->body).at("paths");
  for (const auto& [path, asks] : {std::pair{kCompletions, R"("prompt":"a")"},
                                   {"/v1/chat/completions", R"("messages":[{"role":"user","content":"a"}])"},
                                   {"/tokenize", R"("prompt":"a")"},
                                   {"/detokenize", R"("tokens":[5])"}}) {
    const Json schema =
        paths.at(path).at("post").at("requestBody").at("content").at("application/json").at("schema");
    EXPECT_GT(schema.at("properties").size(), 0U);
    for (const auto& [name, field] : schema.at("properties").as_object()) {
      if (std::string(asks).find('"' + name + '"') != std::string::npos) continue;
      const auto reply = served.send(path, fmt::format(R"({{{},"{}":null}})", asks, name));
      EXPECT_EQ(reply->status, 200) << path << " " << name << " " << reply->body;
    }
  }
}

TEST(Requests, KeysAreAsked) {
  Served served("x", {.api_key = "secret"});
  EXPECT_EQ(served.start("GET", "/v1/models", "")->status, 401);
  EXPECT_EQ(served.start("GET", "/v1/models", "", "Bearer secre")->status, 401);
  EXPECT_EQ(served.start("GET", "/v1/models", "", "Bearer secrets")->status, 401);
  for (const char* wrong : {"secret", "Basic secret", "Bearer", "Bearer ", "Bearersecret", "bearer Secret"})
    EXPECT_EQ(served.start("GET", "/v1/models", "", wrong)->status, 401) << wrong;
  for (const char* right : {"Bearer secret", "bearer secret", "BEARER  secret"})
    EXPECT_EQ(served.start("GET", "/v1/models", "", right)->status, 200) << right;
  EXPECT_EQ(served.start("GET", "/health", "")->status, 200);
}

TEST(Requests, TooManyAreRefused) {
  Served served(std::string(2000, 'a'), {.max_requests = 2}, std::chrono::milliseconds(5));
  const auto one = served.start("POST", kCompletions, R"({"prompt":"a","n":2,"max_tokens":500})");
  const auto other = served.start("POST", kCompletions, R"({"prompt":"a"})");
  EXPECT_EQ(other->status, 429);
  EXPECT_EQ(other->headers.at(0), (std::pair<std::string, std::string>("Retry-After", "1")));
  one->drop_listener();
  EXPECT_EQ(served.backend.cancelled(), 2);
}

TEST(Requests, DroppedClientsCancel) {
  Served served(std::string(4000, 'a'), {}, std::chrono::milliseconds(5));
  const auto reply = served.start("POST", kCompletions, R"({"prompt":"a","max_tokens":1500,"stream":true})");
  reply->wait([&] { return reply->body.size() > 200; });
  reply->drop_listener();
  EXPECT_EQ(served.backend.cancelled(), 1);
  for (int i = 0; i < 6000 && served.backend.stats().running > 0; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(served.backend.stats().running, 0);
}

}  // namespace
}  // namespace megatron
