// Single-thread encoding speed of a tokenizer on text files: `ninja bench_tokenizer`, then
// bench_tokenizer TYPE PATH FILE… Speeds are by CPU time, which other work on the machine disturbs less. A
// first pass with empty memory, then the best of three later ones.
#include <fmt/core.h>

#include <ctime>

#include "megatron/base/text_file.h"
#include "megatron/tokenizers/make_tokenizer.h"

int main(int argc, char** argv) {
  const auto seconds = [] { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; };
  if (argc < 4) return fmt::print(stderr, "usage: bench_tokenizer TYPE PATH FILE...\n"), 2;
  const double loaded = seconds();
  const megatron::Tokenizer tokenizer = megatron::make_tokenizer(argv[1], argv[2]);
  fmt::print("load {:.2f} s\n", seconds() - loaded);
  for (int i = 3; i < argc; ++i) {
    const std::string text = megatron::read_text_file(argv[i]);
    megatron::Encoder encoder(tokenizer);
    std::vector<megatron::TokenId> ids;
    ids.reserve(text.size());
    double first = 0, best = 0;
    for (int pass = 0; pass < 4; ++pass) {
      ids.clear();
      const double begin = seconds();
      encoder.encode(text, ids);
      const double speed = static_cast<double>(text.size()) / 1e6 / (seconds() - begin);
      if (pass == 0)
        first = speed;
      else
        best = std::max(best, speed);
    }
    fmt::print("{}: {:.1f} MB, {} tokens, first {:.0f} MB/s, later {:.0f} MB/s\n", argv[i],
               static_cast<double>(text.size()) / 1e6, ids.size(), first, best);
  }
  return 0;
}
