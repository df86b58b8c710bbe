#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <ctime>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/seconds_since.h"
#include "megatron/base/text_file.h"
#include "megatron/cli/common/tokenizer_flags.h"

namespace megatron {
namespace {

struct DataBenchSettings {
  TokenizerArguments tokenizer;
  std::vector<std::string> inputs;
  int64_t threads = 1, passes = 4;
  bool json = false;
};

std::vector<Flag> data_bench_flags(DataBenchSettings& s) {
  std::vector<Flag> flags = tokenizer_flags(s.tokenizer);
  flags.insert(flags.end(),
               {list_flag("--input", "FILES", "text files, encoded whole", "", s.inputs),
                int_flag("--threads", "threads that share a text [1]", s.threads, 1),
                int_flag("--passes", "over each text, the first with nothing known [4]", s.passes, 2),
                switch_flag("--json", "one JSON document", s.json)});
  return flags;
}

// Parts of about equal size that end with lines.
std::vector<std::string_view> share_out(std::string_view text, size_t parts) {
  std::vector<std::string_view> shares;
  for (size_t left = parts; left > 0; --left) {
    const size_t end = left == 1 ? std::string_view::npos : text.find('\n', text.size() / left);
    shares.push_back(text.substr(0, end == std::string_view::npos ? end : end + 1));
    text.remove_prefix(shares.back().size());
  }
  return shares;
}

struct Pass {
  double wall = 0, cpu = 0;  // seconds; of all threads together
};

std::vector<Pass> encode_passes(const Tokenizer& tokenizer, std::string_view text, int64_t threads,
                                int64_t passes, int64_t& tokens) {
  const auto shares = share_out(text, static_cast<size_t>(threads));
  std::vector<Encoder> encoders;
  for (size_t i = 0; i < shares.size(); ++i) encoders.emplace_back(tokenizer);
  std::vector<std::vector<TokenId>> ids(shares.size());
  for (size_t i = 0; i < shares.size(); ++i) ids[i].reserve(shares[i].size());
  std::vector<Pass> result;
  for (int64_t pass = 0; pass < passes; ++pass) {
    const std::clock_t cpu = std::clock();
    const auto wall = std::chrono::steady_clock::now();
    std::vector<std::jthread> workers;
    for (size_t i = 0; i < shares.size(); ++i)
      workers.emplace_back([&, i] {
        ids[i].clear();
        encoders[i].encode(shares[i], ids[i]);
      });
    workers.clear();  // waits
    result.push_back({seconds_since(wall), static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC});
  }
  tokens = 0;
  for (const auto& own : ids) tokens += static_cast<int64_t>(own.size());
  return result;
}

}  // namespace

std::string bench_data_help() {
  DataBenchSettings settings;
  return "usage: megatron bench data --input FILES --tokenizer-type T --tokenizer-model PATH [options]\n"
         "\n"
         "Encodes each text several times: first with nothing known of it, then with its words remembered.\n"
         "Speeds are in MB/s of wall time, and by CPU time, which other work on the machine disturbs less;\n"
         "the later passes' is the fastest. bench/peers/tokenizers.py puts other libraries beside it.\n"
         "\n" +
         flags_help(data_bench_flags(settings));
}

int bench_data(Invocation& invocation) {
  DataBenchSettings settings;
  const auto rest = parse_flags("bench data", invocation.args, data_bench_flags(settings));
  if (!rest.empty()) throw UsageError(fmt::format("bench data: '{}' belongs to no option", rest[0]));
  if (settings.inputs.empty()) throw UsageError("bench data: --input FILES is missing");
  const Tokenizer tokenizer = settings.tokenizer.open("bench data");
  Json rows = Json::array();
  for (const std::string& path : settings.inputs) {
    const std::string text = read_text_file(path);
    const auto megabytes = static_cast<double>(text.size()) / 1e6;
    int64_t tokens = 0;
    const std::vector<Pass> passes =
        encode_passes(tokenizer, text, settings.threads, settings.passes, tokens);
    Pass later = passes[1];
    for (const Pass& pass : passes) {
      if (&pass == &passes[0]) continue;
      later.wall = std::min(later.wall, pass.wall);
      later.cpu = std::min(later.cpu, pass.cpu);
    }
    // By CPU time, as fast as on as many free cores.
    const auto speed = [&](double seconds, int64_t threads) {
      return megabytes / std::max(seconds, 1e-9) * static_cast<double>(threads);
    };
    Json row = Json::object();
    row["file"] = path;
    row["megabytes"] = megabytes;
    row["tokens"] = tokens;
    row["threads"] = settings.threads;
    row["first_mb_s"] = speed(passes[0].wall, 1);
    row["later_mb_s"] = speed(later.wall, 1);
    row["first_cpu_mb_s"] = speed(passes[0].cpu, settings.threads);
    row["later_cpu_mb_s"] = speed(later.cpu, settings.threads);
    if (!settings.json)
      fmt::print(invocation.out,
                 "{}: {:.1f} MB, {} tokens, {} threads: first {:.0f} MB/s (by CPU {:.0f}), later {:.0f} (by "
                 "CPU {:.0f})\n",
                 path, megabytes, tokens, settings.threads, row["first_mb_s"].as_double(),
                 row["first_cpu_mb_s"].as_double(), row["later_mb_s"].as_double(),
                 row["later_cpu_mb_s"].as_double());
    rows.push_back(std::move(row));
  }
  if (settings.json) fmt::print(invocation.out, "{}\n", rows.dump());
  return 0;
}

}  // namespace megatron
