#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/base/progress.h"
#include "megatron/cli/flags.h"
#include "megatron/server/http_client.h"
#include "megatron/tensor/philox.h"

namespace megatron {
namespace {

using Clock = std::chrono::steady_clock;

struct ServeBench {
  std::string url, key, model, rate = "4";
  int64_t requests = 100, prompt = 64, shared = 0, tokens = 64, seed = 1;
  bool json = false;
};

std::vector<Flag> serve_bench_flags(ServeBench& s) {
  return {
      text_flag("--url", "URL", "a server that runs: http://HOST:PORT", s.url),
      text_flag("--api-key", "KEY", "the server's key", s.key),
      text_flag("--model", "NAME", "of those that it has [the first]", s.model),
      text_flag("--rate", "N", "requests that arrive in a second, at random; inf: all at once [4]", s.rate),
      int_flag("--requests", "how many [100]", s.requests, 1),
      int_flag("--prompt", "tokens of each prompt [64]", s.prompt, 1),
      int_flag("--shared-prefix", "of these, tokens that all prompts begin with [0]", s.shared),
      int_flag("--tokens", "tokens of each answer [64]", s.tokens, 1),
      int_flag("--seed", "of arrivals and prompts [1]", s.seed),
      switch_flag("--json", "one JSON document", s.json),
  };
}

double seconds_between(Clock::time_point begin, Clock::time_point end) {
  return std::chrono::duration<double>(end - begin).count();
}

double uniform_of(int64_t seed, int64_t stream, int64_t index) {
  const Philox words =
      Philox::at({static_cast<uint64_t>(seed), static_cast<uint64_t>(stream)}, static_cast<uint64_t>(index));
  return (static_cast<double>(words.word[0]) + 0.5) * 0x1p-32;
}

struct ServedRequest {
  int status = 0;  // 0: the server was not reached
  double first = 0, total = 0;
  std::vector<double> gaps;  // between parts of the answer
  int64_t tokens = 0, prompt_tokens = 0, cached_tokens = 0;
};

// What of a list a share of its values does not exceed.
double percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - static_cast<double>(below)) * (values[above] - values[below]);
}

// Requests come when their time has come, whether or not others are answered (an open loop): a server that
// cannot keep up shows it by its latencies.
class LoadGenerator {
 public:
  LoadGenerator(const ServeBench& settings, const Log& log)
      : settings_(settings),
        url_(HttpUrl::parse(settings.url)),
        results_(static_cast<size_t>(settings.requests)),
        progress_(log, "requests", settings.requests) {
    if (settings.rate != "inf") rate_ = parse_positive("bench serve", "--rate", settings.rate);
    if (settings.model.empty()) find_model();
  }

  void run() {
    std::vector<std::thread> clients;
    start_ = Clock::now();
    double arrival = 0;
    for (int64_t i = 0; i < settings_.requests; ++i) {
      if (rate_ > 0) {
        std::this_thread::sleep_until(
            start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(arrival)));
        arrival -= std::log(uniform_of(settings_.seed, 1, i)) / rate_;
      }
      clients.emplace_back([this, i] { ask(i); });
    }
    for (std::thread& client : clients) client.join();
    seconds_ = seconds_between(start_, Clock::now());
  }

  Json figures() const;

 private:
  HttpUrl at(const char* path) const {
    HttpUrl url = url_;
    url.path += path;
    return url;
  }

  void find_model() {
    std::string body;
    const int status = http_request(at("/v1/models"), "GET", "", settings_.key, [&](std::string_view part) {
      body += part;
      return true;
    });
    if (status != 200)
      throw Error(fmt::format("bench serve: {} answers {}: {}", settings_.url, status, body));
    model_ = Json::parse(body, "models").at("data")[0].at("id").as_string();
  }

  // Tokens of bytes, which every vocabulary has.
  Json prompt(int64_t index) const {
    Json ids = Json::array();
    for (int64_t at = 0; at < settings_.prompt; ++at)
      ids.push_back(static_cast<int64_t>(
          1 + 250 * uniform_of(settings_.seed, at < settings_.shared ? 2 : 3 + index, at)));
    return ids;
  }

  void ask(int64_t index) {
    Json body = Json::object();
    body["model"] = settings_.model.empty() ? model_ : settings_.model;
    body["prompt"] = prompt(index);
    body["max_tokens"] = settings_.tokens;
    body["temperature"] = 1;
    body["seed"] = index;
    body["ignore_eos"] = true;
    body["stream"] = true;
    body["stream_options"] = Json::object();
    body["stream_options"]["include_usage"] = true;
    ServedRequest& result = results_[static_cast<size_t>(index)];
    const auto begin = Clock::now();
    auto last = begin;
    std::string received;
    try {
      result.status =
          http_request(at("/v1/completions"), "POST", body.dump(), settings_.key, [&](std::string_view part) {
            received += part;
            for (size_t end; (end = received.find("\n\n")) != std::string::npos;) {
              take(received.substr(0, end), begin, last, result);
              received.erase(0, end + 2);
            }
            return true;
          });
    } catch (const Error&) {
      result.status = 0;
    }
    result.total = seconds_between(begin, Clock::now());
    const std::lock_guard lock(mutex_);
    progress_.update(++done_, "answered");
  }

  static void take(const std::string& event, Clock::time_point begin, Clock::time_point& last,
                   ServedRequest& result) {
    if (!event.starts_with("data: ") || event == "data: [DONE]") return;
    const Json document = Json::parse(event.substr(6), "answer");
    const auto now = Clock::now();
    if (const Json* choices = document.find("choices"); choices && !choices->as_array().empty()) {
      if (result.first == 0)
        result.first = seconds_between(begin, now);
      else
        result.gaps.push_back(seconds_between(last, now));
      last = now;
    }
    if (const Json* usage = document.find("usage"); usage && !usage->is_null()) {
      result.tokens = usage->at("completion_tokens").as_int();
      result.prompt_tokens = usage->at("prompt_tokens").as_int();
      if (const Json* details = usage->find("prompt_tokens_details"); details && !details->is_null())
        result.cached_tokens = details->at("cached_tokens").as_int();
    }
  }

  const ServeBench& settings_;
  HttpUrl url_;
  double rate_ = 0;  // 0: all at once
  std::string model_;
  std::vector<ServedRequest> results_;
  Clock::time_point start_;
  double seconds_ = 0;
  std::mutex mutex_;  // of what follows
  Progress progress_;
  int64_t done_ = 0;
};

Json LoadGenerator::figures() const {
  std::vector<double> first, total, per_token, gaps;
  int64_t good = 0, refused = 0, failed = 0, tokens = 0, prompts = 0, cached = 0;
  for (const ServedRequest& one : results_) {
    if (one.status != 200) {
      (one.status >= 400 && one.status < 500 ? refused : failed) += 1;
      continue;
    }
    ++good;
    tokens += one.tokens;
    prompts += one.prompt_tokens;
    cached += one.cached_tokens;
    first.push_back(one.first);
    total.push_back(one.total);
    if (one.tokens > 1) per_token.push_back((one.total - one.first) / static_cast<double>(one.tokens - 1));
    gaps.insert(gaps.end(), one.gaps.begin(), one.gaps.end());
  }
  const auto spread = [](const std::vector<double>& values) {
    Json json = Json::object();
    for (const auto& [name, share] : {std::pair{"p50", 0.5}, {"p90", 0.9}, {"p99", 0.99}, {"max", 1.0}})
      json[name] = 1e3 * percentile(values, share);
    return json;
  };
  Json json = Json::object();
  json["requests"] = static_cast<int64_t>(results_.size());
  json["answered"] = good;
  json["refused"] = refused;
  json["failed"] = failed;
  json["seconds"] = seconds_;
  json["requests_per_second"] = static_cast<double>(good) / seconds_;
  json["prompt_tokens"] = prompts;
  json["cached_tokens"] = cached;
  json["generated_tokens"] = tokens;
  json["tokens_per_second"] = static_cast<double>(tokens) / seconds_;
  json["time_to_first_token_ms"] = spread(first);
  json["time_per_token_ms"] = spread(per_token);
  json["inter_token_latency_ms"] = spread(gaps);
  json["end_to_end_ms"] = spread(total);
  return json;
}

}  // namespace

std::string bench_serve_help() {
  ServeBench unused;
  return "usage: megatron bench serve --url http://HOST:PORT [options]\n"
         "\n"
         "Sends streamed completions to a server, megatron serve or another with OpenAI's endpoints, at "
         "times\n"
         "that do not wait for answers (an open loop, Poisson arrivals), and tells tokens per second and "
         "the\n"
         "percentiles of the time to the first token, the time per further token, and the whole answer.\n"
         "\n" +
         flags_help(serve_bench_flags(unused));
}

int bench_serve(Invocation& invocation) {
  ServeBench settings;
  const auto rest = parse_flags("bench serve", invocation.args, serve_bench_flags(settings));
  if (!rest.empty()) throw UsageError(fmt::format("bench serve: '{}' belongs to no option", rest[0]));
  if (settings.url.empty())
    throw UsageError("bench serve: --url is missing; start megatron serve and give its address");
  LoadGenerator load(settings, invocation.log);
  load.run();
  const Json json = load.figures();
  if (settings.json) {
    fmt::print(invocation.out, "{}\n", json.dump());
    return 0;
  }
  fmt::print(invocation.out,
             "{} of {} answered, {} refused, {} failed in {:.1f} s: {:.2f} requests/s, {:.1f} tokens/s\n",
             json.at("answered").as_int(), json.at("requests").as_int(), json.at("refused").as_int(),
             json.at("failed").as_int(), json.at("seconds").as_double(),
             json.at("requests_per_second").as_double(), json.at("tokens_per_second").as_double());
  fmt::print(invocation.out, "{:<24} {:>9} {:>9} {:>9} {:>9}\n", "ms", "p50", "p90", "p99", "max");
  for (const char* name :
       {"time_to_first_token_ms", "time_per_token_ms", "inter_token_latency_ms", "end_to_end_ms"}) {
    const Json& row = json.at(name);
    fmt::print(invocation.out, "{:<24} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n",
               std::string_view(name).substr(0, std::string_view(name).size() - 3), row.at("p50").as_double(),
               row.at("p90").as_double(), row.at("p99").as_double(), row.at("max").as_double());
  }
  return 0;
}

}  // namespace megatron
