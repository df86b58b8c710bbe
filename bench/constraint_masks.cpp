// Times of token masks: texts under JSON schemas and regular expressions, over a vocabulary of 128k tokens
// that are like a byte-level BPE's (words with and without a space, numbers, punctuation that crosses the
// borders of JSON's pieces, characters of several bytes). Each mask is asked for once when it is new to its
// constraint, and again by texts that come the same way. Times are the thread's own, of processors.
//   bench_constraint_masks [TEXTS]
#include <fmt/core.h>

#include <algorithm>
#include <ctime>
#include <functional>
#include <random>
#include <set>

#include "megatron/inference/constraint/compile.h"

namespace {

using namespace megatron;

SharedVocabulary large_vocabulary() {
  constexpr size_t kTokens = 128000;
  std::mt19937_64 random(1);
  std::set<std::string> texts;
  for (int byte = 0; byte < 256; ++byte) texts.emplace(1, static_cast<char>(byte));
  for (int i = 0; i < 1000; ++i) texts.insert(std::to_string(i));
  const std::string marks = "\"{}[]:,. \n-_()/\\'<>=;";
  while (texts.size() < 6000) {
    std::string text;
    for (size_t n = 1 + random() % 4; n > 0; --n) text += marks[random() % marks.size()];
    texts.insert(text);
  }
  const std::string letters = "etaoinshrdlucmfwypvbgkjqxz";
  while (texts.size() < kTokens - 1) {
    std::string text = random() % 2 ? " " : "";
    if (random() % 12 == 0) text += marks[random() % marks.size()];
    const bool wide = random() % 8 == 0;
    for (size_t n = 2 + random() % 9; n > 0; --n) {
      const auto draw = std::min(random() % letters.size(), random() % letters.size());
      if (wide)
        text += std::string("\xE4") + static_cast<char>(0xB8 + random() % 6) +
                static_cast<char>(0x80 + random() % 64);
      else
        text += letters[draw];
    }
    if (random() % 16 == 0) text += marks[random() % marks.size()];
    texts.insert(text);
  }
  std::vector<std::string> bytes(texts.begin(), texts.end());
  std::shuffle(bytes.begin(), bytes.end(), random);
  bytes.emplace_back("");
  const auto size = static_cast<int64_t>(bytes.size());
  return std::make_shared<const ConstraintVocabulary>(std::move(bytes), std::vector<int64_t>{size - 1}, size);
}

// The time of this thread alone, so that other programs on the machine do not count.
double cpu_micros() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) * 1e6 + static_cast<double>(time.tv_nsec) * 1e-3;
}

struct Times {
  std::vector<double> micros;
  double at(double share) {
    std::ranges::sort(micros);
    return micros.empty() ? 0 : micros[static_cast<size_t>(share * static_cast<double>(micros.size() - 1))];
  }
  double mean() const {
    double sum = 0;
    for (double one : micros) sum += one;
    return micros.empty() ? 0 : sum / static_cast<double>(micros.size());
  }
};

void measure(const char* name, const SharedVocabulary& vocabulary, int texts,
             const std::function<std::shared_ptr<const Constraint>()>& compile) {
  const auto since = [](double then) { return cpu_micros() - then; };
  const double began = cpu_micros();
  const auto constraint = compile();
  const double compiled = since(began);
  Times first, later;  // of the first text, which meets most nodes first, and of the others
  std::vector<uint32_t> bits(static_cast<size_t>(vocabulary->size + 31) / 32);
  for (int text = 0; text < texts; ++text) {
    std::mt19937_64 random(static_cast<uint64_t>(text));
    const auto state = constraint->start();
    for (int step = 0; step < 200; ++step) {
      const double then = cpu_micros();
      state->allowed(bits);
      (text == 0 ? first : later).micros.push_back(since(then));
      std::vector<int64_t> tokens;
      for (int64_t token = 0; token < vocabulary->size; ++token)
        if ((bits[static_cast<size_t>(token) / 32] >> (token % 32)) & 1U) tokens.push_back(token);
      if (tokens.empty() || tokens.back() == vocabulary->end_tokens[0]) break;
      int64_t chosen = tokens[random() % tokens.size()];
      // Strings end after some words.
      for (int64_t token : tokens)
        if (random() % 5 == 0 && vocabulary->bytes[static_cast<size_t>(token)] == "\"") chosen = token;
      const double advanced = cpu_micros();
      state->advance(chosen);
      (text == 0 ? first : later).micros.back() += since(advanced);
    }
  }
  Times all = first;
  all.micros.insert(all.micros.end(), later.micros.begin(), later.micros.end());
  fmt::print(
      "{:<28} compiled in {:>6.0f} us; {:>6} masks, mean {:>6.1f}; first text {:>4} masks, mean {:>6.1f}, "
      "largest "
      "{:>7.1f} us; others mean {:>6.1f}, median {:>5.1f}, p99 {:>6.1f}, largest {:>7.1f} us\n",
      name, compiled, all.micros.size(), all.mean(), first.micros.size(), first.mean(), first.at(1),
      later.mean(), later.at(0.5), later.at(0.99), later.at(1));
}

}  // namespace

int main(int count, char** words) {
  const int texts = count > 1 ? std::atoi(words[1]) : 100;
  const double began = cpu_micros();
  const SharedVocabulary vocabulary = large_vocabulary();
  fmt::print("vocabulary of {} tokens made in {:.0f} ms\n", vocabulary->size, (cpu_micros() - began) / 1000);
  const auto schema = [&](const char* name, const char* text) {
    const Json parsed = Json::parse(text, name);
    measure(name, vocabulary, texts, [&] { return compile_json_schema(vocabulary, parsed); });
  };
  const auto regex = [&](const char* name, const char* pattern) {
    measure(name, vocabulary, texts, [&] { return compile_regex(vocabulary, pattern); });
  };
  schema(
      "JSON schema",
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
          "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},
          "kind":{"enum":["alpha","beta","gamma"]},"nested":{"type":"object","properties":{"x":{"type":"number"},
          "y":{"type":"boolean"}},"required":["x","y"],"additionalProperties":false}},
          "required":["name","age","email","tags","kind","nested"],"additionalProperties":false})");
  measure("any JSON object", vocabulary, texts, [&] { return compile_json_object(vocabulary); });
  regex("regular expression", R"([A-Z][a-z]+ (\d{1,3}\.){3}\d{1,3} [\w.]+@[\w]+\.(com|org))");
  regex("words of letters", "[a-z ]{20,200}");
  measure("choices", vocabulary, texts, [&] {
    return compile_choices(vocabulary, {"yes", "no", "perhaps", "I do not know"});
  });
  schema("objects in objects",
         R"({"type":"object","properties":{"id":{"type":"string","format":"uuid"},"at":{"type":"string",
          "format":"date-time"},"state":{"enum":["open","closed","waiting","refused","sent","lost","returned"]},
          "lines":{"type":"array","minItems":1,"maxItems":20,"items":{"type":"object","properties":{
          "item":{"type":"string"},"unit":{"enum":["piece","kilogram","metre","litre","hour"]},
          "price":{"type":"number","minimum":0},"by":{"anyOf":[{"$ref":"#/$defs/person"},{"type":"null"}]}},
          "required":["item","unit","price","by"],"additionalProperties":false}}},
          "required":["id","at","state","lines"],"additionalProperties":false,"$defs":{"person":{"type":"object",
          "properties":{"name":{"type":"string"},"role":{"enum":["buyer","seller","carrier"]},
          "chief":{"anyOf":[{"$ref":"#/$defs/person"},{"type":"null"}]}},"required":["name","role","chief"],
          "additionalProperties":false}}})");
  schema("strings with lengths",
         R"({"type":"object","properties":{"title":{"type":"string","minLength":10,"maxLength":120},
          "text":{"type":"string","minLength":100,"maxLength":1000},"link":{"type":"string","format":"uri"}},
          "required":["title","text","link"],"additionalProperties":false})");
  schema(
      "other properties",
      R"({"type":"object","properties":{"name":{"type":"string"},"number":{"type":"integer"},"note":{"type":"string"},
          "state":{"type":"boolean"},"street":{"type":"string"}},"additionalProperties":{"type":"string"}})");
  schema("a pattern anywhere",
         R"({"type":"array","items":{"type":"string","pattern":"[0-9]{3}-x"},"minItems":5})");
  regex("any text", ".*");
  regex("words of any script", R"(\w+( \w+){5,60}[.!?])");
  regex("letters of any script", R"([\p{L} ,.]{50,400})");
  regex("sentences", R"(([A-Z][a-z]*( [a-z]+){2,12}\. ){3,10})");
  regex("a word among others", "(quick|[a-z]+)( (quick|[a-z]+)){3,30}");
  std::mt19937_64 random(3);
  std::vector<std::string> choices;
  for (int i = 0; i < 3000; ++i) {
    std::string choice;
    for (int n = 0; n < 6; ++n)
      choice += vocabulary->bytes[random() % static_cast<size_t>(vocabulary->size - 1)];
    choices.push_back(choice);
  }
  measure("long choices", vocabulary, texts, [&] { return compile_choices(vocabulary, choices); });
  FramedSchemas tools{"", "\n", "", {}};
  for (const char* name : {"search", "open", "send", "calculate", "remember"})
    tools.choices.push_back(
        {fmt::format("<tool_call>{{\"name\": \"{}\", \"arguments\": ", name),
         Json::parse(R"({"type":"object","properties":{"query":{"type":"string"},"count":{"type":"integer"},
             "options":{"type":"object"}},"required":["query"]})",
                     "tool"),
         "}</tool_call>"});
  measure("calls of tools", vocabulary, texts, [&] { return compile_framed_schemas(vocabulary, tools); });
  return 0;
}
