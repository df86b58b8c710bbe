#include "megatron/autotune/search/search_state.h"

#include <fmt/core.h>

#include <fstream>

#include "megatron/base/json.h"

namespace megatron::autotune {
namespace {

Json plan_row(const ParallelPlan& p) {
  Json row = Json::array();
  for (const int64_t value : {int64_t{p.tp},
                              int64_t{p.pp},
                              int64_t{p.vpp},
                              int64_t{p.cp},
                              int64_t{p.ep},
                              int64_t{p.etp},
                              p.mbs,
                              int64_t{p.shards},
                              static_cast<int64_t>(p.precision),
                              static_cast<int64_t>(p.recompute),
                              static_cast<int64_t>(p.recompute_share * 100),
                              int64_t{p.modules},
                              static_cast<int64_t>(p.cp_exchange),
                              static_cast<int64_t>(p.schedule),
                              static_cast<int64_t>(p.offload_share * 100),
                              int64_t{p.shard_grads},
                              int64_t{p.cuda_graphs},
                              int64_t{p.last_stage_layers},
                              int64_t{p.gpus},
                              p.gbs,
                              p.seq,
                              int64_t{p.tp_spares},
                              int64_t{p.reduced_replicas},
                              p.packed})
    row.push_back(value);
  return row;
}

Candidate candidate_of(const SearchRequest& request, const Json& row) {
  ParallelPlan p;
  p.expert_imbalance = request.expert_imbalance;
  p.forward_only = request.forward_only;
  size_t at = 0;
  const auto next = [&] { return row[at++].as_int(); };
  p.tp = static_cast<int>(next());
  p.pp = static_cast<int>(next());
  p.vpp = static_cast<int>(next());
  p.cp = static_cast<int>(next());
  p.ep = static_cast<int>(next());
  p.etp = static_cast<int>(next());
  p.mbs = next();
  p.shards = static_cast<int>(next());
  p.precision = static_cast<Precision>(next());
  p.recompute = static_cast<Recompute>(next());
  p.recompute_share = static_cast<double>(next()) / 100;
  p.modules = static_cast<uint8_t>(next());
  p.cp_exchange = static_cast<ContextExchange>(next());
  p.schedule = static_cast<Schedule>(next());
  p.offload_share = static_cast<double>(next()) / 100;
  p.shard_grads = next() != 0;
  p.cuda_graphs = next() != 0;
  p.last_stage_layers = static_cast<int>(next());
  p.gpus = static_cast<int>(next());
  p.gbs = next();
  p.seq = next();
  p.tp_spares = static_cast<int>(next());
  p.reduced_replicas = static_cast<int>(next());
  p.packed = next();
  if (request.mean_length > 0 && request.mean_length < request.seq)
    p.useful = p.packed > 0 ? packed_rows(request.gbs, p.packed, p.seq).useful
                            : static_cast<double>(request.mean_length) / static_cast<double>(request.seq);
  p.sequence_parallel = p.tp > 1;
  p.tp_overlap = p.tp > 1 && !p.unequal();
  Candidate candidate{p, predict(request.in, p), memory_use(request.in, p).total(), {}, {}, {}};
  scale_to_samples(request, candidate);
  return candidate;
}

}  // namespace

std::string search_fingerprint(const SearchRequest& r) {
  const ModelShape& m = r.in.model;
  std::string text =
      fmt::format("{} {} {} {} {} {} {} {} {} {} {} {} {} | {} {} {} {} {} {} {} {} | {} {} {} {} {} |",
                  m.layers, m.hidden, m.heads, m.kv_heads, m.head_dim, m.ffn, m.vocab, m.experts, m.topk,
                  m.moe_ffn, m.kv_lora, m.mtp, m.params(), r.in.cluster.gpu.name, r.in.cluster.gpu.memory_gib,
                  r.in.cluster.gpus(), r.in.cluster.nvlink_domain, r.in.cluster.nic_gbs,
                  r.in.cluster.oversubscription, r.in.cluster.host_speed, r.in.stack.name, r.gbs, r.seq,
                  static_cast<int>(r.precision), r.expert_imbalance, r.forward_only);
  for (const auto& given : {r.tp, r.pp, r.vpp, r.cp, r.ep, r.etp})
    text += fmt::format(" {}", given.value_or(0));
  text += fmt::format(
      " {} {} {} {}", r.mbs.value_or(0), r.cp_exchange ? static_cast<int>(*r.cp_exchange) : -1,
      r.schedule ? static_cast<int>(*r.schedule) : -1, r.recompute ? static_cast<int>(*r.recompute) : -1);
  text += fmt::format(" {} {} {}", r.lost_gpus, r.mean_length, r.max_token_len);
  for (const Precision precision : r.precisions) text += fmt::format(" {}", precision_name(precision));
  const CostConstants& c = r.in.constants;
  return text + fmt::format(" | {} {} {} {} {} {}", c.gemm16, c.gemm8, c.memory, c.nvlink, c.nic, c.exposed);
}

std::string search_state_line(const std::string& name, const SearchPart& part) {
  Json json = Json::object();
  json["part"] = name;
  json["plans"] = part.plans;
  json["fitting"] = part.fitting;
  Json& refused = json["refused"] = Json::object();
  for (const auto& [reason, count] : part.refused) refused[reason] = count;
  const auto rows = [](const std::vector<Candidate>& candidates) {
    Json list = Json::array();
    for (const Candidate& c : candidates) list.push_back(plan_row(c.plan));
    return list;
  };
  json["best"] = rows(part.best);
  json["front"] = rows(part.front);
  return json.dump() + "\n";
}

SearchMemory read_search_state(const SearchRequest& request, const std::string& path) {
  SearchMemory memory;
  std::ifstream file(path);
  std::string line;
  if (!std::getline(file, line) || line != Json(search_fingerprint(request)).dump()) return memory;
  while (std::getline(file, line)) {
    SearchPart part;
    try {
      const Json json = Json::parse(line, path);
      part.plans = json.at("plans").as_int();
      part.fitting = json.at("fitting").as_int();
      for (const auto& [reason, count] : json.at("refused").as_object())
        part.refused[reason] = count.as_int();
      for (const Json& row : json.at("best").as_array()) part.best.push_back(candidate_of(request, row));
      for (const Json& row : json.at("front").as_array()) part.front.push_back(candidate_of(request, row));
      memory.parts[json.at("part").as_string()] = std::move(part);
    } catch (const std::exception&) {
      break;  // the line was being written when the search was stopped
    }
  }
  return memory;
}

}  // namespace megatron::autotune
