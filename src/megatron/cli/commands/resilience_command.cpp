#include "megatron/cli/commands.h"

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/flags.h"
#include "megatron/resilience/goodput.h"

namespace megatron {
namespace {

Flag number_flag(std::string_view name, std::string_view help, double& target) {
  return {name, "X", help, [name, &target](std::string_view command, const std::string& text) {
            target = text == "0" ? 0 : parse_positive(command, name, text);
          }};
}

Flag positive_flag(std::string_view name, std::string_view help, double& target) {
  return {name, "X", help, [name, &target](std::string_view command, const std::string& text) {
            target = parse_positive(command, name, text);
          }};
}

std::vector<Flag> simulate_flags(ResilienceModel& model, bool& json) {
  return {
      int_flag("--gpus", "of the cluster [32768]", model.gpus, 1),
      int_flag("--domain", "GPUs of an NVLink domain, and TP size [32]", model.domain, 1),
      int_flag("--domains-per-replica", "pipeline stages [8]", model.domains_per_replica, 1),
      int_flag("--reduced-tp", "TP size of a domain that lost GPUs [30]", model.reduced, 1),
      int_flag("--batch", "sequences of a replica in an iteration [8]", model.batch, 1),
      int_flag("--hidden-size", "[20480]", model.hidden, 1),
      int_flag("--num-attention-heads", "[128]", model.heads, 1),
      int_flag("--ffn-hidden-size", "[81920]", model.ffn, 1),
      int_flag("--seq-length", "[16384]", model.length, 1),
      number_flag("--bubble", "of the pipeline, in micro-batches [0]", model.bubble),
      number_flag("--ntp-overhead", "of an iteration beside reduced replicas [0.012]", model.ntp_overhead),
      positive_flag("--failures-per-gpu-day", "[Llama 3: 419 / 54 days / 16384]", model.failures_per_gpu_day),
      positive_flag("--rate-factor", "times that rate [1]", model.rate_factor),
      positive_flag("--days", "of the trace [15]", model.days),
      number_flag("--detect-seconds", "until a dead process is noticed [0.1]", model.detect_seconds),
      number_flag("--recover-seconds", "from there to the next step [1]", model.recover_seconds),
      number_flag("--hang-seconds", "until a hang is noticed [15]", model.hang_seconds),
      number_flag("--hang-share", "of all faults [0.05]", model.hang_share),
      number_flag("--iteration-seconds", "computed again [2.63]", model.iteration_seconds),
      {"--seed", "N", "of the trace [1234]",
       [&model](std::string_view command, const std::string& text) {
         model.seed = static_cast<uint64_t>(parse_int(command, "--seed", text));
       }},
      switch_flag("--json", "one JSON document", json),
  };
}

void check_model(const ResilienceModel& model) {
  if (model.domain > model.gpus || model.replicas() < 1)
    throw ConfigError(fmt::format("resilience: {} GPUs are no replica of {} domains of {}; give more --gpus",
                                  model.gpus, model.domains_per_replica, model.domain));
  if (model.reduced > model.domain)
    throw ConfigError(fmt::format("resilience: --reduced-tp {} is more than --domain {}; give less",
                                  model.reduced, model.domain));
  if (model.hang_share > 1) throw ConfigError("resilience: --hang-share is above 1; give a share");
}

Json to_json(const ResilienceReport& report) {
  Json json = Json::object();
  json["failures"] = report.failures;
  json["faults_per_day"] = report.faults_per_day;
  json["mean_failed_share"] = report.mean_failed_share;
  json["peak_failed_share"] = report.peak_failed_share;
  json["time_above_tenth_percent"] = report.time_above_tenth_percent;
  json["peak_affected_domains"] = report.peak_affected;
  json["availability"] = report.availability;
  json["dropping_loss"] = report.dropping_loss;
  json["dropping_peak_loss"] = report.dropping_peak_loss;
  json["dropping_spare_domains"] = report.dropping_spares;
  json["dropping_goodput"] = report.dropping_goodput;
  json["ntp_loss"] = report.ntp_loss;
  json["ntp_peak_loss"] = report.ntp_peak_loss;
  json["ntp_spare_domains"] = report.ntp_spares;
  json["ntp_goodput"] = report.ntp_goodput;
  json["deaths_goodput"] = report.deaths_goodput;
  json["hangs_goodput"] = report.hangs_goodput;
  return json;
}

void print_report(const ResilienceModel& model, const ResilienceReport& report, std::FILE* out) {
  fmt::print(out, "cluster    {} GPUs in {} domains of {}, {} replicas\n", model.gpus, model.domains(),
             model.domain, model.replicas());
  fmt::print(out,
             "trace      {} failures in {:g} days ({:.1f} a day); {:.2f} % of GPUs failed on average, "
             "{:.2f} % at most,\n           above 0.1 % during {:.0f} % of the time\n",
             report.failures, model.days, report.faults_per_day, 100 * report.mean_failed_share,
             100 * report.peak_failed_share, 100 * report.time_above_tenth_percent);
  fmt::print(out, "domains    {:.1f} % whole on average; {} affected at most\n", 100 * report.availability,
             report.peak_affected);
  fmt::print(out, "reduced    TP {}: a micro-batch takes {:.3f} times as long, {} of {} sequences\n\n",
             model.reduced, reduced_slowdown(model), reduced_batch(model), model.batch);
  fmt::print(out, "{:<22}{:>10}{:>10}{:>16}{:>10}\n", "", "mean loss", "at most", "spare domains", "goodput");
  const auto row = [&](const char* name, double mean, double peak, int64_t spares, double goodput) {
    fmt::print(out, "{:<22}{:>8.2f} %{:>8.2f} %{:>16}{:>8.2f} %\n", name, 100 * mean, 100 * peak, spares,
               100 * goodput);
  };
  row("replicas dropped", report.dropping_loss, report.dropping_peak_loss, report.dropping_spares,
      report.dropping_goodput);
  row("nonuniform TP", report.ntp_loss, report.ntp_peak_loss, report.ntp_spares, report.ntp_goodput);
  const double failed = 4e-3, affected = expected_affected(model, failed);
  fmt::print(out, "\nat {:.1f} % failed GPUs dropping loses {:.1f} %, nonuniform TP {:.1f} %\n", 100 * failed,
             100 * loss_of_dropping(model, affected), 100 * loss_of_ntp(model, affected));
  const double lost = model.detect_seconds + model.recover_seconds + model.iteration_seconds;
  fmt::print(out,
             "recovery   deaths leave {:.3f} % of the time, hangs {:.3f} %; with one death per 20 minutes "
             "{:.2f} %\n",
             100 * report.deaths_goodput, 100 * report.hangs_goodput, 100 * recovery_goodput(20 * 60, lost));
}

}  // namespace

std::string resilience_help() {
  ResilienceModel model;
  bool json = false;
  return "usage: megatron resilience simulate [options]\n\n"
         "What failures cost a cluster: a trace of failures and repairs at the rate of Llama 3's training, "
         "the "
         "throughput that is lost where replicas are dropped and where they shrink (nonuniform tensor "
         "parallelism), the spare domains that would keep the global batch, and the time that recovery "
         "takes. The defaults are the cluster of the NTP paper.\n\n" +
         flags_help(simulate_flags(model, json));
}

int run_resilience(Invocation& invocation) {
  if (invocation.args.empty() || invocation.args[0] != "simulate")
    throw UsageError("resilience: say what to do: megatron resilience simulate");
  ResilienceModel model;
  bool json = false;
  const std::vector<std::string> words =
      parse_flags("resilience simulate", std::span(invocation.args).subspan(1), simulate_flags(model, json));
  if (!words.empty()) throw UsageError(fmt::format("resilience simulate: '{}' is no option", words[0]));
  check_model(model);
  const ResilienceReport report = simulate_resilience(model);
  if (json)
    fmt::print(invocation.out, "{}\n", to_json(report).dump());
  else
    print_report(model, report, invocation.out);
  return 0;
}

}  // namespace megatron
