#include "megatron/training/log/step_probe.h"

#include <filesystem>
#include <sstream>

#include "megatron/base/json.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/safetensors.h"
#include "megatron/comm/string_collectives.h"
#include "megatron/training/step/module_name.h"

namespace megatron {
namespace {

namespace fs = std::filesystem;

Tensor on_host(RankContext& ctx, const Tensor& value) {
  Tensor result = host_tensor(value.shape(), value.dtype());
  if (value.numel() > 0) ctx.to_host(value, result.raw());
  return result;
}

Tensor as_host(RankContext& ctx, const Tensor& value, DType dtype) {
  Tensor cast = ctx.empty(value.shape(), dtype, MemoryTag::Workspace);
  if (value.numel() > 0) ctx.kernels->copy(ctx.kernel_context(), {value.detach(), cast});
  return on_host(ctx, cast);
}

std::ofstream append_to(const std::string& path) {
  std::ofstream file(path, std::ios::app | std::ios::binary);
  require(file.good(), "{}: cannot be written", path);
  return file;
}

// Writes a tensor's bytes behind those that are there; where they begin and end goes into the record.
void put(const std::string& path, const Tensor& tensor, const char* what, int64_t& written, Json& record) {
  auto file = append_to(path);
  const auto bytes = static_cast<int64_t>(tensor.bytes());
  file.write(static_cast<const char*>(tensor.raw()), bytes);
  file.flush();
  require(file.good(), "{}: cannot be written", path);
  record[std::string(what) + "_offset"] = written;
  record[std::string(what) + "_bytes"] = bytes;
  Json shape = Json::array();
  for (int64_t size : tensor.shape()) shape.push_back(size);
  record[std::string(what) + "_shape"] = std::move(shape);
  written += bytes;
}

// The name of this rank's file, which follows from where all ranks stand.
std::string own_dump_name(const Config& config, const ParallelContext& parallel) {
  const auto rank = [&](Axis axis) { return parallel.has(axis) ? parallel.rank(axis) : 0; };
  // Unequal replicas hold all experts each.
  const bool first_of_experts =
      config.model.num_moe_experts > 0 && !parallel.unequal() && rank(Axis::edp) == 0;
  const ProcessGroup& world = parallel.world();
  std::vector<DumpPlace> places;
  for (const std::string& text :
       all_gather_strings(world, fmt::format("{} {} {} {} {} {} {}", rank(Axis::tp), rank(Axis::pp),
                                             rank(Axis::ep), rank(Axis::cp), rank(Axis::gtp),
                                             parallel.replica(), static_cast<int>(first_of_experts)))) {
    DumpPlace& place = places.emplace_back();
    std::istringstream(text) >> place.tp >> place.pp >> place.ep >> place.cp >> place.gtp >> place.replica >>
        place.first_of_experts;
  }
  return dump_names(places)[static_cast<size_t>(world.rank())];
}

}  // namespace

// "decoder.layers.3.…", "mtp.layers.0.mtp_model_layer.…" or "mtp.layers.0.mtp_model_layer.layers.1.…".
struct StepProbe::Place {
  std::string block;
  int64_t depth = -1, layer = 0;  // depth: of an MTP layer

  static int64_t number_behind(std::string_view name, std::string_view word) {
    const size_t at = name.find(word);
    return at == std::string_view::npos ? 0 : std::atoll(std::string(name.substr(at + word.size())).c_str());
  }
  static Place of(std::string_view module) {
    if (!module.starts_with("mtp.")) return {"decoder", -1, number_behind(module, "layers.")};
    return {"mtp", number_behind(module, "mtp.layers."), number_behind(module, "mtp_model_layer.layers.")};
  }
  void into(Json& record) const {
    record["block"] = block;
    if (depth >= 0) record["mtp_idx"] = depth;
    record["layer"] = layer;
  }
};

std::vector<std::string> dump_names(const std::vector<DumpPlace>& places) {
  std::map<std::string, std::vector<size_t>> alike;
  for (size_t i = 0; i < places.size(); ++i)
    if (places[i].dumps())
      alike[fmt::format("mp_rank_{:02}_{:03}_{:03}", places[i].tp, places[i].pp, places[i].ep)].push_back(i);
  std::vector<std::string> names(places.size());
  for (const auto& [base, ranks] : alike) {
    for (const size_t rank : ranks) names[rank] = base;
    const auto tell_apart = [&](const char* axis, int DumpPlace::*place) {
      std::set<int> values;
      for (const size_t rank : ranks) values.insert(places[rank].*place);
      if (values.size() == 1) return;
      for (const size_t rank : ranks) names[rank] += fmt::format("_{}{:03}", axis, places[rank].*place);
    };
    tell_apart("cp", &DumpPlace::cp);
    tell_apart("gtp", &DumpPlace::gtp);
    tell_apart("dp", &DumpPlace::replica);
  }
  return names;
}

StepProbe::StepProbe(RankContext& ctx, const Config& config, const ParallelContext& parallel, bool restarted)
    : ctx_(ctx), config_(config) {
  const CheckpointConfig& c = config.checkpoint;
  if (!c.save.empty() && (c.save_activations_interval > 0 || c.save_dgrads_interval > 0))
    dump_name_ = own_dump_name(config, parallel);
  if (config.model.num_moe_experts > 0 && !config.logger.moe_routing_trace_path.empty())
    open_trace(restarted);
}

StepProbe::~StepProbe() {
  if (ctx_.probe == this) ctx_.probe = nullptr;
}

bool StepProbe::is_due(int64_t interval, int64_t iteration) const {
  return !config_.checkpoint.save.empty() && interval > 0 && iteration % interval == 0;
}

void StepProbe::begin(RankContext& ctx, int64_t iteration) {
  const CheckpointConfig& c = config_.checkpoint;
  activations_ = !dump_name_.empty() && is_due(c.save_activations_interval, iteration);
  dgrads_ = !dump_name_.empty() && is_due(c.save_dgrads_interval, iteration);
  const bool experts = config_.model.num_moe_experts > 0;
  counts_ = experts && is_due(c.save_tokens_per_expert_interval, iteration);
  const int64_t most = config_.logger.moe_routing_trace_max_training_iters;
  const bool wanted = most == 0 || std::ssize(traced_) < most || traced_.contains(iteration - 1);
  traces_ = experts && !config_.logger.moe_routing_trace_path.empty() && wanted;
  activation_tensors_.clear();
  gradient_tensors_.clear();
  rows_of_experts_.clear();
  choices_.clear();
  ctx.probe = activations_ || dgrads_ || counts_ || traces_ ? this : nullptr;
}

void StepProbe::see(RankContext& ctx, std::string_view parameter, std::string_view place,
                    const Tensor& value) {
  const std::string module = module_of(parameter);
  // Where a layer is computed twice, only the pass that is recorded counts.
  if (counts_ && place == "offsets" && ctx.tape && module.ends_with(".linear_fc1")) {
    const auto offsets = ctx.to_vector<int32_t>(value);
    std::vector<int64_t> rows;
    for (size_t i = 1; i < offsets.size(); ++i) rows.push_back(offsets[i] - offsets[i - 1]);
    rows_of_experts_[module].push_back(std::move(rows));
  }
  const bool router = module.ends_with(".router");
  if (traces_ && router && ctx.tape) see_router(ctx, module, place, value);
  if (place != "input0" && place != "output0" && place != "before_activation0") return;
  const std::string key = module + "/" + std::string(place);
  if (activations_) activation_tensors_[key] = on_host(ctx, value);
  if (dgrads_ && ctx.tape && ctx.tracks(value))
    ctx.tape->on_grad(value, [this, key](RankContext& c, const Tensor& grad) {
      gradient_tensors_[key] = on_host(c, grad);
      return grad;
    });
}

void StepProbe::see_router(RankContext& ctx, const std::string& module, std::string_view place,
                           const Tensor& value) {
  const LoggerConfig& l = config_.logger;
  if (place == "input0") {
    seen_ = {.module = module};
    if (l.moe_routing_trace_capture_hidden_states) seen_.hidden = as_host(ctx, value, DType::BF16);
  } else if (place == "output0") {
    if (l.moe_routing_trace_capture_logits) seen_.logits = as_host(ctx, value, DType::BF16);
  } else if (place == "experts") {
    seen_.experts = as_host(ctx, value, DType::I64);
    choices_.push_back(std::exchange(seen_, {}));
  } else if (l.moe_routing_trace_dump_weights && !router_state_.contains(module + "." + std::string(place))) {
    router_state_[module + "." + std::string(place)] = as_host(ctx, value, DType::F32);
  }
}

std::vector<std::string> StepProbe::finish(RankContext& ctx, int64_t iteration) {
  ctx.probe = nullptr;
  std::vector<std::string> told;
  if (activations_) told.push_back(write("activations", iteration, activation_tensors_));
  if (dgrads_) told.push_back(write("dgrads", iteration, gradient_tensors_));
  if (counts_) write_counts(iteration);
  if (traces_) write_trace(ctx, iteration);
  return told;
}

std::string StepProbe::write(const char* what, int64_t iteration, Tensors& tensors) const {
  const std::string folder = fmt::format("{}/{}/iter_{:07}", config_.checkpoint.save, what, iteration);
  fs::create_directories(folder);
  write_safetensors(fmt::format("{}/{}.safetensors", folder, dump_name_), {tensors.begin(), tensors.end()});
  tensors.clear();
  return "saved " + folder;
}

void StepProbe::write_counts(int64_t iteration) {
  const std::string folder = config_.checkpoint.save + "/tokens_per_expert";
  fs::create_directories(folder);
  auto file = append_to(fmt::format("{}/rank{}.jsonl", folder, ctx_.rank));
  for (const auto& [module, batches] : rows_of_experts_) {
    Json record = Json::object();
    record["iter"] = iteration;
    Place::of(module).into(record);
    Json list = Json::array();
    for (const std::vector<int64_t>& rows : batches) {
      Json one = Json::array();
      for (int64_t count : rows) one.push_back(count);
      list.push_back(std::move(one));
    }
    record["tpe"] = std::move(list);
    file << record.dump() << "\n";
  }
  rows_of_experts_.clear();
}

std::string StepProbe::trace_path(const char* name, const char* suffix) const {
  return fmt::format("{}/{}_rank{}.{}", config_.logger.moe_routing_trace_path, name, ctx_.rank, suffix);
}

// A trace is that of one run: what an earlier one has left goes away. After a restart it goes on, and the
// steps that are in it count.
void StepProbe::open_trace(bool restarted) {
  fs::create_directories(config_.logger.moe_routing_trace_path);
  const std::string trace = trace_path("router_trace", "jsonl"), hidden = trace_path("hidden_states", "bin"),
                    logits = trace_path("logits", "bin");
  if (!restarted) {
    for (const std::string& old : {trace, hidden, logits}) fs::remove(old);
    return;
  }
  const auto bytes = [](const std::string& path) {
    return fs::exists(path) ? static_cast<int64_t>(fs::file_size(path)) : 0;
  };
  hidden_bytes_ = bytes(hidden);
  logits_bytes_ = bytes(logits);
  if (!fs::exists(trace)) return;
  std::ifstream file(trace);
  uintmax_t whole = 0;  // bytes of whole lines: a process may have stopped while it wrote one
  for (std::string line; std::getline(file, line) && !file.eof(); whole += line.size() + 1)
    traced_.insert(Json::parse(line, trace).at("step").as_int());
  fs::resize_file(trace, whole);
}

void StepProbe::write_trace(RankContext& ctx, int64_t iteration) {
  const auto path = [&](const char* name, const char* suffix) { return trace_path(name, suffix); };
  auto file = append_to(path("router_trace", "jsonl"));
  for (const Choice& choice : choices_) {
    Json record = Json::object();
    record["step"] = iteration - 1;
    record["stage"] = "pre_dispatch";
    Place::of(choice.module).into(record);
    record["rank"] = ctx.rank;
    const int64_t tokens = choice.experts.size(0), k = choice.experts.size(1);
    record["num_tokens"] = tokens;
    record["topk"] = k;
    if (choice.hidden) put(path("hidden_states", "bin"), choice.hidden, "hs", hidden_bytes_, record);
    if (choice.logits) put(path("logits", "bin"), choice.logits, "logit", logits_bytes_, record);
    const auto* experts = static_cast<const int64_t*>(choice.experts.raw());
    Json rows = Json::array();
    for (int64_t t = 0; t < tokens; ++t) {
      Json row = Json::array();
      for (int64_t i = 0; i < k; ++i) row.push_back(experts[t * k + i]);
      rows.push_back(std::move(row));
    }
    record["top_indices"] = std::move(rows);
    file << record.dump() << "\n";
  }
  choices_.clear();
  if (traced_.empty() && !router_state_.empty())
    write_safetensors(path("router_state", "safetensors"), {router_state_.begin(), router_state_.end()});
  traced_.insert(iteration - 1);
}

}  // namespace megatron
