// Times of token masks: texts under JSON schemas and regular expressions, over a vocabulary of 128k tokens
// that are like a byte-level BPE's (words with and without a space, numbers, punctuation that crosses the
// borders of JSON's pieces, characters of several bytes). Each mask is asked for once when it is new to its
// constraint, and again by texts that come the same way.
//   bench_constraint_masks [TEXTS]
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
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
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point then) {
    return std::chrono::duration<double, std::micro>(Clock::now() - then).count();
  };
  const Clock::time_point began = Clock::now();
  const auto constraint = compile();
  const double compiled = since(began);
  Times first, later;  // of the first text, which meets most nodes first, and of the others
  std::vector<uint32_t> bits(static_cast<size_t>(vocabulary->size + 31) / 32);
  for (int text = 0; text < texts; ++text) {
    std::mt19937_64 random(static_cast<uint64_t>(text));
    const auto state = constraint->start();
    for (int step = 0; step < 200; ++step) {
      const Clock::time_point then = Clock::now();
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
      const Clock::time_point advanced = Clock::now();
      state->advance(chosen);
      (text == 0 ? first : later).micros.back() += since(advanced);
    }
  }
  fmt::print(
      "{:<28} compiled in {:>8.0f} us; first text {:>4} masks, mean {:>7.1f}, largest {:>8.1f} us; others "
      "{:>6} masks, "
      "mean {:>5.1f}, median {:>5.1f}, p99 {:>6.1f}, largest {:>8.1f} us\n",
      name, compiled, first.micros.size(), first.mean(), first.at(1), later.micros.size(), later.mean(),
      later.at(0.5), later.at(0.99), later.at(1));
}

}  // namespace

int main(int count, char** words) {
  const int texts = count > 1 ? std::atoi(words[1]) : 100;
  const SharedVocabulary vocabulary = large_vocabulary();
  const Json person = Json::parse(
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},
          "email":{"type":"string","format":"email"},"tags":{"type":"array","items":{"type":"string"},"maxItems":5},
          "kind":{"enum":["alpha","beta","gamma"]},"nested":{"type":"object","properties":{"x":{"type":"number"},
          "y":{"type":"boolean"}},"required":["x","y"],"additionalProperties":false}},
          "required":["name","age","email","tags","kind","nested"],"additionalProperties":false})",
      "schema");
  measure("JSON schema", vocabulary, texts, [&] { return compile_json_schema(vocabulary, person); });
  measure("any JSON object", vocabulary, texts, [&] { return compile_json_object(vocabulary); });
  measure("regular expression", vocabulary, texts, [&] {
    return compile_regex(vocabulary, R"([A-Z][a-z]+ (\d{1,3}\.){3}\d{1,3} [\w.]+@[\w]+\.(com|org))");
  });
  measure("words of letters", vocabulary, texts, [&] { return compile_regex(vocabulary, "[a-z ]{20,200}"); });
  measure("choices", vocabulary, texts, [&] {
    return compile_choices(vocabulary, {"yes", "no", "perhaps", "I do not know"});
  });
  return 0;
}
