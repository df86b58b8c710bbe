// Spoiled requests: an answer of 2xx or 4xx within bounds of time and memory, never a crash or a 5xx; spoiled
// schemas and regular expressions: a constraint that can be followed, or a refusal.
#include <gtest/gtest.h>

#include "fuzz/feed.h"
#include "unit/constraint/walk.h"
#include "unit/server/served.h"

namespace megatron::testing {
namespace {

const std::vector<std::string> kSchemas = {
    R"({"type":"object","properties":{"n":{"type":"integer","minimum":-3,"maximum":40},"s":{"type":"string",
        "maxLength":9,"pattern":"^[a-f]+\\d?$"}},"required":["n"],"additionalProperties":false})",
    R"({"type":"array","items":{"anyOf":[{"const":"x"},{"type":"number"},{"type":"null"}]},"minItems":1,"maxItems":4})",
    R"({"$defs":{"node":{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]},
        "v":{"enum":[1,"two",[3],{"a":null}]}},"required":["v","next"]}},"$ref":"#/$defs/node"})",
    R"({"type":["string","boolean"],"format":"date-time"})",
    R"({"allOf":[{"type":"object","properties":{"a":{"type":"boolean"}}},{"required":["a"]}],"minProperties":1})"};

const std::vector<std::string> kBodies = {
    R"({"model":"test","prompt":"Hello","max_tokens":6,"temperature":0.5,"top_p":0.9,"top_k":4,"min_p":0.1,"seed":7,
        "stop":["x","yz"],"n":2,"logprobs":3,"echo":true,"presence_penalty":0.5,"frequency_penalty":-0.5,
        "repetition_penalty":1.1,"logit_bias":{"5":-100},"ignore_eos":true,"min_tokens":2,"stop_token_ids":[3]})",
    R"({"prompt":[[1,2,3],[4,5]],"max_tokens":4,"stream":true,"stream_options":{"include_usage":true},
        "prompt_logprobs":1,"user":"me","suffix":null})",
    R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":[{"type":"text","text":"Hi é"}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function","function":{"name":"f",
        "arguments":"{\"a\":1}"}}]},{"role":"tool","tool_call_id":"c","content":"4"}],"max_completion_tokens":5,
        "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object",
        "properties":{"a":{"type":"integer"}},"required":["a"]}}}],"tool_choice":"auto","parallel_tool_calls":false})",
    R"({"messages":[{"role":"user","content":"x"}],"max_tokens":30,"top_logprobs":2,"logprobs":true,
        "response_format":{"type":"json_schema","json_schema":{"name":"s","strict":true,"schema":{"type":"object",
        "properties":{"k":{"type":"string","maxLength":4}},"required":["k"],"additionalProperties":false}}}})",
    R"({"messages":[{"role":"user","content":"x"}],"guided_regex":"[ab]{2,5}","max_tokens":8,"stream":true,
        "chat_template_kwargs":{"enable_thinking":false}})"};

const std::vector<std::string> kWords = {"null",
                                         "true",
                                         "-1",
                                         "1e400",
                                         "99999999999999999999",
                                         "\"",
                                         "{",
                                         "}",
                                         "[[[[",
                                         "]",
                                         ",",
                                         ":",
                                         "\\ud800",
                                         "\\u0000",
                                         "\xc3\x28",
                                         "\"prompt\":",
                                         "\"messages\":",
                                         "\"max_tokens\":0,",
                                         "\"n\":1000000,",
                                         "\"echo\":true,",
                                         "\"stop\":\"\",",
                                         "\"stream\":true,",
                                         "\"tool_choice\":\"required\",",
                                         "\"$ref\":\"#\",",
                                         "\"pattern\":\"(a*)*b\",",
                                         "\"pattern\":\"[\",",
                                         "\"maxLength\":1000000000,",
                                         "\"minItems\":1000000,",
                                         "\"type\":\"object\",",
                                         "\"enum\":[],",
                                         "\"not\":{},",
                                         "{0,99999}",
                                         "(?=x)",
                                         "\\p{L}"};

void fuzz_endpoint(const char* path, int count) {
  auto served = std::make_unique<Served>("Hello {\"k\": \"v\"} world.");
  int asked = 0;
  fuzz(Mutator(11, kBodies, kWords), count, [&](const std::string& body) {
    if (++asked % 500 == 0) served = std::make_unique<Served>("Hello {\"k\": \"v\"} world.");
    const int status = served->send(path, body)->status;
    if (status >= 400 && status < 500) throw ConfigError("refused");
    if (status != 200) throw std::runtime_error("status " + std::to_string(status));
  });
  EXPECT_EQ(served->service.requests(), 0);
}

TEST(FuzzServer, Completions) { fuzz_endpoint("/v1/completions", 1500); }
TEST(FuzzServer, Chats) { fuzz_endpoint("/v1/chat/completions", 1500); }
TEST(FuzzServer, Tokenizing) {
  Served served("x");
  fuzz(Mutator(12, {R"({"prompt":"Hello é","add_special_tokens":true})", R"({"tokens":[1,2,3]})"}, kWords),
       2000, [&](const std::string& body) {
         for (const char* path : {"/tokenize", "/detokenize"})
           if (served.send(path, body)->status >= 500) throw std::runtime_error("5xx");
         if (served.send("/tokenize", body)->status != 200) throw ConfigError("refused");
       });
}

// Texts under a constraint: they do not get stuck. What a schema allows is JSON.
TEST(FuzzServer, Schemas) {
  const SharedVocabulary vocabulary = test_vocabulary();
  uint64_t seed = 0;
  fuzz(Mutator(13, kSchemas, kWords), 1500, [&](const std::string& text) {
    const auto constraint = compile_json_schema(vocabulary, Json::parse(text));
    if (const auto found = random_text(*constraint, *vocabulary, ++seed, 60)) Json::parse(*found);
  });
}

TEST(FuzzServer, RegularExpressions) {
  const SharedVocabulary vocabulary = test_vocabulary();
  uint64_t seed = 0;
  fuzz(Mutator(14, {"^[a-z]+(\\d{2,4}|x)*$", "(foo|ba[rz])?\\s*\\w+", "[^\\n\"\\\\]{0,20}", "\\x41\\u00e9.+"},
               kWords),
       1500, [&](const std::string& pattern) {
         random_text(*compile_regex(vocabulary, pattern), *vocabulary, ++seed, 40);
       });
}

}  // namespace
}  // namespace megatron::testing
