#include "megatron/server/metrics.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron {

namespace {

// A label's value may hold anything, with these three escaped.
std::string label_value(const std::string& text) {
  std::string value;
  for (char c : text) {
    if (c == '\\' || c == '"') value += '\\';
    value += c == '\n' ? "\\n" : std::string(1, c);
  }
  return value;
}

}  // namespace

Metrics::Metrics(const std::string& model) : model_(label_value(model)) {
  // Counts that begin at 0 rather than with the first event: a rate over them misses nothing.
  for (const char* reason : {"stop", "length", "abort"}) finished_[reason] = 0;
}

void Metrics::observe(Histogram& histogram, double value) {
  const std::lock_guard lock(mutex_);
  const auto bucket =
      std::lower_bound(histogram.bounds.begin(), histogram.bounds.end(), value) - histogram.bounds.begin();
  ++histogram.counts[static_cast<size_t>(bucket)];
  histogram.sum += value;
}

void Metrics::finished(const std::string& reason, double seconds, int64_t prompt_tokens,
                       int64_t generated_tokens) {
  observe(end_to_end_, seconds);
  observe(prompt_, static_cast<double>(prompt_tokens));
  observe(generated_, static_cast<double>(generated_tokens));
  const std::lock_guard lock(mutex_);
  ++finished_[reason];
  prompt_tokens_ += prompt_tokens;
  generated_tokens_ += generated_tokens;
}

void Metrics::refused(int status) {
  const std::lock_guard lock(mutex_);
  ++refused_[status];
}

void Metrics::write(std::string& out, const char* name, const char* help, const Histogram& histogram) const {
  out += fmt::format("# HELP {} {}\n# TYPE {} histogram\n", name, help, name);
  int64_t count = 0;
  for (size_t i = 0; i < histogram.counts.size(); ++i) {
    count += histogram.counts[i];
    const std::string bound = i < histogram.bounds.size() ? fmt::format("{}", histogram.bounds[i]) : "+Inf";
    out += fmt::format("{}_bucket{{model_name=\"{}\",le=\"{}\"}} {}\n", name, model_, bound, count);
  }
  out += fmt::format("{}_sum{{model_name=\"{}\"}} {}\n", name, model_, histogram.sum);
  out += fmt::format("{}_count{{model_name=\"{}\"}} {}\n", name, model_, count);
}

std::string Metrics::text(const EngineStats& stats) const {
  std::string out;
  const auto value = [&](const char* name, const char* type, const char* help, auto number) {
    out += fmt::format("# HELP {} {}\n# TYPE {} {}\n{}{{model_name=\"{}\"}} {}\n", name, help, name, type,
                       name, model_, number);
  };
  const double used = stats.total_blocks > 0
                          ? static_cast<double>(stats.used_blocks) / static_cast<double>(stats.total_blocks)
                          : 0.0;
  value("vllm:num_requests_running", "gauge", "Requests in the batch.", stats.running);
  value("vllm:num_requests_waiting", "gauge", "Requests that wait for a place.", stats.waiting);
  value("vllm:kv_cache_usage_perc", "gauge", "Share of the cache that requests use; 1 is all.", used);
  value("vllm:prefix_cache_queries_total", "counter", "Prompt tokens looked up in the prefix cache.",
        stats.prefix_queries);
  value("vllm:prefix_cache_hits_total", "counter", "Prompt tokens found there.", stats.prefix_hits);
  value("vllm:num_preemptions_total", "counter", "Requests that gave their blocks up.", stats.evictions);
  value("vllm:spec_decode_num_draft_tokens_total", "counter", "Tokens guessed ahead.", stats.drafted_tokens);
  value("vllm:spec_decode_num_accepted_tokens_total", "counter", "Those that stood.", stats.accepted_tokens);
  value("vllm:engine_prompt_tokens_total", "counter", "Prompt tokens that the engine read.",
        stats.prompt_tokens);
  value("vllm:engine_generation_tokens_total", "counter", "Tokens that the engine generated.",
        stats.generated_tokens);

  const std::lock_guard lock(mutex_);
  value("vllm:prompt_tokens_total", "counter", "Prompt tokens of finished requests.", prompt_tokens_);
  value("vllm:generation_tokens_total", "counter", "Generated tokens of finished requests.",
        generated_tokens_);
  out += "# HELP vllm:request_success_total Finished requests.\n# TYPE vllm:request_success_total counter\n";
  for (const auto& [reason, count] : finished_)
    out += fmt::format("vllm:request_success_total{{model_name=\"{}\",finished_reason=\"{}\"}} {}\n", model_,
                       reason, count);
  out +=
      "# HELP megatron:refused_requests_total Requests that were refused.\n# TYPE "
      "megatron:refused_requests_total counter\n";
  for (const auto& [status, count] : refused_)
    out += fmt::format("megatron:refused_requests_total{{model_name=\"{}\",status=\"{}\"}} {}\n", model_,
                       status, count);
  write(out, "vllm:time_to_first_token_seconds", "From arrival to the first token.", first_token_);
  write(out, "vllm:inter_token_latency_seconds", "Between two tokens of a request.", token_gap_);
  write(out, "vllm:e2e_request_latency_seconds", "From arrival to the last token.", end_to_end_);
  write(out, "vllm:request_prompt_tokens", "Tokens of prompts.", prompt_);
  write(out, "vllm:request_generation_tokens", "Tokens of answers.", generated_);
  return out;
}

}  // namespace megatron
