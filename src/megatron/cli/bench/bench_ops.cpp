#include "megatron/cli/bench/bench_parts.h"

#include <algorithm>
#include <fstream>
#include <numeric>
#include <optional>

#include "megatron/base/error.h"
#include "megatron/base/json.h"
#include "megatron/cli/bench/bench_ceilings.h"
#include "megatron/cli/bench/bench_ops_cases.h"
#include "megatron/cli/bench/bench_overhead.h"
#include "megatron/cli/bench/bench_timing.h"
#include "megatron/cli/flags.h"
#include "megatron/cli/version.h"

namespace megatron {
namespace {

struct Settings {
  int64_t threads = available_cores(), repeat = 10, tokens = 2048;
  std::string filter;
  bool json = false;
};

std::vector<Flag> flags(Settings& s) {
  return {
      text_flag("--filter", "TEXT", "only what has this in 'op shape dtype'; 'overhead' is one op", s.filter),
      int_flag("--tokens", "rows of the activations, except for attention (2048)", s.tokens, 1),
      int_flag("--threads", "CPU threads (every core)", s.threads, 1),
      int_flag("--repeat", "measurements, of which the shortest counts (10)", s.repeat, 1),
      switch_flag("--json", "one JSON document", s.json),
  };
}

// What the ops say they cost.
struct CostSum final : Tracer {
  Cost total;
  void op(const char*, Phase, const Cost& cost) override {
    total.flops += cost.flops;
    total.bytes += cost.bytes;
  }
};

struct Row {
  std::string op, shape, pass;
  DType dtype;
  Cost cost;
  double seconds = 0;
  double ceiling_seconds = 0;     // what this machine would need at best
  std::string_view ceiling = "";  // what sets that: "library", "arithmetic" or "memory"
};

void run_backward(RankContext& ctx, const BenchOp& op, std::span<const Tensor> grads) {
  Tape tape(ctx);
  std::vector<Tensor> inputs, outputs;
  for (const Tensor& input : op.inputs) inputs.push_back(tape.watch(input));
  {
    TapeScope scope(ctx, &tape);
    outputs = op.run(ctx, inputs);
  }
  tape.backward_data(ctx, outputs, grads);
  tape.backward_weight(ctx);
}

Cost traced(RankContext& ctx, const std::function<void()>& body) {
  CostSum sum;
  ctx.tracer = &sum;
  body();
  ctx.tracer = nullptr;
  return sum.total;
}

// Fills in the times of a row. The yardstick is the fastest that this machine could do it: the library's own
// time for GEMMs; otherwise the arithmetic at the library's best rate or the bytes at the rate of a
// copy, whichever takes longer.
void time_row(RankContext& ctx, Row& row, const std::function<void()>& body,
              std::span<const LibraryGemm> gemms, Ceilings& ceilings, int64_t repeat) {
  std::vector<std::function<void()>> bodies = {body};
  for (const LibraryGemm& gemm : gemms)
    if (auto call = library_call(ctx, gemm, ctx.pool.width())) bodies.push_back(std::move(call));
  bool by_library = bodies.size() > 1;
  std::vector<double> seconds = fastest_in_turn(repeat, bodies);
  row.seconds = seconds[0];
  if (by_library) {
    row.ceiling_seconds = std::accumulate(seconds.begin() + 1, seconds.end(), 0.0);
    row.ceiling = "library";
    return;
  }
  double peak = ceilings.peak_flops(row.dtype);
  if (peak == 0) peak = ceilings.peak_flops(DType::F32);
  double arithmetic = peak > 0 ? row.cost.flops / peak : 0;
  double memory = row.cost.bytes / ceilings.copy_rate(row.cost.bytes);
  row.ceiling_seconds = std::max(arithmetic, memory);
  row.ceiling = arithmetic > memory ? "arithmetic" : "memory";
}

std::vector<Row> measure(RankContext& ctx, const BenchCase& one, Ceilings& ceilings, int64_t repeat) {
  BenchOp op = one.make(ctx);
  std::vector<Row> rows;
  auto add = [&](std::string pass, std::span<const LibraryGemm> gemms, const std::function<void()>& body) {
    Row& row = rows.emplace_back(Row{one.op, one.shape, std::move(pass), one.dtype, traced(ctx, body)});
    time_row(ctx, row, body, gemms, ceilings, repeat);
  };
  add("forward", op.forward_gemms, [&] { op.run(ctx, op.inputs); });
  if (!op.has_backward) return rows;
  std::vector<Tensor> grads;
  for (const Tensor& output : op.run(ctx, op.inputs))
    grads.push_back(ctx.full(output.shape(), output.dtype(), 0.01));
  std::vector<LibraryGemm> gemms = op.forward_gemms;
  gemms.insert(gemms.end(), op.backward_gemms.begin(), op.backward_gemms.end());
  add("forward+backward", gemms, [&] { run_backward(ctx, op, grads); });
  return rows;
}

std::string cpu_model() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("model name"))
      if (size_t colon = line.find(": "); colon != std::string::npos) return line.substr(colon + 2);
  return "unknown CPU";
}

constexpr double kLargeCopy = 1 << 27;  // beyond every cache

Json to_json(const Row& row) {
  Json json = Json::object();
  json["op"] = row.op;
  json["shape"] = row.shape;
  json["dtype"] = name_of(row.dtype);
  json["pass"] = row.pass;
  json["ms"] = row.seconds * 1e3;
  json["gflops"] = row.cost.flops / row.seconds / 1e9;
  json["gbs"] = row.cost.bytes / row.seconds / 1e9;
  json["ceiling"] = row.ceiling;
  json["ceiling_ms"] = row.ceiling_seconds * 1e3;
  json["percent"] = 100 * row.ceiling_seconds / row.seconds;
  return json;
}

Json to_json(const Overhead& overhead) {
  Json json = Json::object();
  json["op"] = overhead.op;
  json["forward_ns"] = overhead.forward_ns;
  json["recorded_ns"] = overhead.recorded_ns;
  json["backward_ns"] = overhead.backward_ns;
  return json;
}

Json machine_json(const Settings& s) {
  Json json = Json::object();
  json["cpu"] = cpu_model();
  json["threads"] = s.threads;
  json["compiler"] = build_info().compiler;
  json["commit"] = build_info().commit;
  for (const BuildOption& option : build_info().options)
    if (option.name == "oneDNN") json["onednn"] = option.value;
  return json;
}

Json ceilings_json(Ceilings& ceilings) {
  Json json = Json::object();
  json["copy_one_thread_gbs"] = ceilings.copy_rate(kLargeCopy, false) / 1e9;
  json["copy_gbs"] = ceilings.copy_rate(kLargeCopy) / 1e9;
  json["fp32_gemm_gflops"] = ceilings.peak_flops(DType::F32) / 1e9;
  json["bf16_gemm_gflops"] = ceilings.peak_flops(DType::BF16) / 1e9;
  return json;
}

void print_row(std::FILE* out, const Row& row) {
  fmt::print(out, "{:<20}  {:<22}  {:<5}  {:<16}  {:>9.3f}  {:>8.1f}  {:>7.1f}  {:>6.1f} %  {}\n", row.op,
             row.shape, name_of(row.dtype), row.pass, row.seconds * 1e3, row.cost.flops / row.seconds / 1e9,
             row.cost.bytes / row.seconds / 1e9, 100 * row.ceiling_seconds / row.seconds, row.ceiling);
}

}  // namespace

std::string bench_ops_help() {
  Settings unused;
  return "usage: megatron bench ops [options]\n"
         "\n"
         "Runs every kernel on shapes of training, forward and with its backward pass, beside what this "
         "machine does at\n"
         "best: the matrix library alone on the same GEMMs, or, for the rest, a copy of as many bytes "
         "and the\n"
         "library's rate for as much arithmetic. Ends with what the engine costs per op.\n"
         "\n" +
         flags_help(flags(unused));
}

int run_bench_ops(Invocation& invocation) {
  Settings settings;
  auto words = parse_flags("bench ops", invocation.args, flags(settings));
  if (!words.empty()) throw UsageError(fmt::format("bench ops: '{}' is no option", words[0]));
  auto chosen = [&](std::string_view text) { return text.find(settings.filter) != std::string_view::npos; };
  const std::vector<BenchCase> all = bench_cases(settings.tokens);
  const auto label = [](const BenchCase& one) {
    return fmt::format("{} {} {}", one.op, one.shape, one.dtype);
  };
  if (!chosen("overhead") &&
      std::none_of(all.begin(), all.end(), [&](const BenchCase& one) { return chosen(label(one)); }))
    throw UsageError(fmt::format(
        "bench ops: no op has '{}' in its name, shape or dtype; without --filter all are measured and listed",
        settings.filter));

  RankContext ctx(kCpu, static_cast<int>(settings.threads));
  Ceilings ceilings(ctx, settings.repeat);
  Json machine = machine_json(settings), best = ceilings_json(ceilings);
  std::FILE* out = invocation.out;
  if (!settings.json) {
    for (const Json& part : {machine, best})
      for (const auto& [name, value] : part.as_object())
        fmt::print(out, "{:<20}  {}\n", name,
                   value.is_double() ? fmt::format("{:.1f}", value.as_double())
                   : value.is_int()  ? fmt::format("{}", value.as_int())
                                     : value.as_string());
    fmt::print(out, "\n{:<20}  {:<22}  {:<5}  {:<16}  {:>9}  {:>8}  {:>7}  {:>8}  {}\n", "op", "shape",
               "dtype", "pass", "ms", "GFLOP/s", "GB/s", "ceiling", "set by");
  }
  std::vector<Row> rows;
  for (const BenchCase& one : all) {
    if (!chosen(label(one))) continue;
    for (Row& row : measure(ctx, one, ceilings, settings.repeat)) {
      if (!settings.json) print_row(out, row);
      rows.push_back(std::move(row));
    }
    std::fflush(out);
  }
  std::vector<Overhead> overheads;
  std::optional<HostStep> step;
  if (chosen("overhead")) {
    overheads = measure_overhead(ctx, settings.repeat);
    step = measure_host_step(settings.repeat);
  }

  if (settings.json) {
    Json json = Json::object();
    json["machine"] = std::move(machine);
    json["ceilings"] = std::move(best);
    json["ops"] = Json::array();
    for (const Row& row : rows) json["ops"].push_back(to_json(row));
    json["overhead"] = Json::array();
    for (const Overhead& overhead : overheads) json["overhead"].push_back(to_json(overhead));
    if (step) {
      Json& host = json["host_step"] = Json::object();
      host["least_ms"] = step->least_ms;
      host["median_ms"] = step->median_ms;
    }
    fmt::print(out, "{}\n", json.dump(2));
    return 0;
  }
  if (!overheads.empty())
    fmt::print(out, "\none element, ns per op  {:>9}  {:>9}  {:>9}\n", "forward", "recorded", "backward");
  for (const Overhead& overhead : overheads)
    fmt::print(out, "{:<22}  {:>9.0f}  {:>9.0f}  {:>9.0f}\n", overhead.op, overhead.forward_ns,
               overhead.recorded_ns, overhead.backward_ns);
  if (step)
    fmt::print(
        out,
        "\nhost's part of a step of 24 layers, kernels that do nothing: {:.2f} ms at least, {:.2f} median\n",
        step->least_ms, step->median_ms);
  return 0;
}

}  // namespace megatron
