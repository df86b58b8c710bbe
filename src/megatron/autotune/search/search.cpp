#include "megatron/autotune/search/search.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "megatron/autotune/simulate/stage_layout.h"
#include "megatron/base/seconds_since.h"

namespace megatron::autotune {
namespace {

constexpr size_t kKept = 20;

std::vector<int> powers_of_two(int most) {
  std::vector<int> result;
  for (int64_t value = 1; value <= most; value *= 2) result.push_back(static_cast<int>(value));
  return result;
}

std::vector<int> divisors(int number, int most) {
  std::vector<int> result;
  for (int value = 1; value <= std::min(number, most); ++value)
    if (number % value == 0) result.push_back(value);
  return result;
}

// The given value alone, where it was given.
std::vector<int> choices(const std::optional<int>& fixed, std::vector<int> all) {
  return fixed ? std::vector<int>{*fixed} : all;
}

// What a plan asks for beyond data parallelism, each of which can go wrong.
int complexity(const ParallelPlan& p) {
  return (p.tp > 1) + (p.pp > 1) + (p.cp > 1) + (p.ep > 1) + (p.vpp > 1) + (p.shards > 1) +
         (p.recompute != Recompute::none) + (p.schedule != Schedule::one_f_one_b) + (p.offload_share > 0) +
         p.cuda_graphs + p.shard_grads + p.unequal() + (p.cp > 1 && p.cp_exchange != ContextExchange::ring);
}

bool faster(const Candidate& a, const Candidate& b) { return a.prediction.seconds < b.prediction.seconds; }

void trim(std::vector<Candidate>& best, size_t count) {
  if (best.size() <= count) return;
  std::nth_element(best.begin(), best.begin() + static_cast<std::ptrdiff_t>(count), best.end(), faster);
  best.resize(count);
}

// The front is sorted by time, so that memory falls along it.
void add_to_front(std::vector<Candidate>& front, const Candidate& candidate) {
  const auto place = std::lower_bound(front.begin(), front.end(), candidate, faster);
  if (place != front.begin() && std::prev(place)->bytes <= candidate.bytes) return;
  auto end = place;
  while (end != front.end() && end->bytes >= candidate.bytes) ++end;
  front.insert(front.erase(place, end), candidate);
}

// Everything under one size of tensor and context parallelism.
class PartSearch {
 public:
  PartSearch(const SearchRequest& request, std::atomic<int64_t>& priced)
      : request_(request), priced_(priced) {}

  SearchPart run(ParallelPlan plan) {
    expert_layouts(plan);
    trim(part_.best, 256);
    part_.refused["memory"] = memory_refused_;
    priced_ += part_.plans - told_;
    return std::move(part_);
  }

 private:
  void expert_layouts(ParallelPlan plan) {
    const ModelShape& model = request_.in.model;
    if (!model.moe()) return precisions(plan);
    std::vector<int> widths{1};
    if (plan.tp > 1) widths.push_back(plan.tp);
    const int ranks = std::max(1, plan.gpus);
    for (const int etp : choices(request_.etp, widths))
      for (const int ep :
           choices(request_.ep, powers_of_two(static_cast<int>(std::min<int64_t>(model.experts, ranks))))) {
        plan.ep = ep;
        plan.etp = etp;
        precisions(plan);
      }
  }

  void precisions(ParallelPlan plan) {
    batches(plan);
    for (const Precision precision : request_.precisions) {
      if (precision == request_.precision) continue;
      plan.precision = precision;
      batches(plan);
    }
  }

  void batches(ParallelPlan plan) {
    std::vector<int64_t> sizes{1, 2, 4, 8, 16};
    if (request_.mbs) sizes = {*request_.mbs};
    for (const int64_t mbs : sizes) {
      plan.mbs = mbs;
      recomputes(plan);
    }
  }

  void recomputes(ParallelPlan plan) {
    const auto wanted = [&](Recompute r) { return !request_.recompute || *request_.recompute == r; };
    plan.recompute = Recompute::none;
    plan.recompute_share = 1;
    if (wanted(Recompute::none) || plan.forward_only) stages(plan);
    if (plan.forward_only) return;
    if (wanted(Recompute::selective)) {
      const std::vector<uint8_t> sets = recompute_sets(request_.in, plan);
      plan.recompute = Recompute::selective;
      for (const uint8_t modules : sets) {
        plan.modules = modules;
        stages(plan);
      }
    }
    if (!wanted(Recompute::full)) return;
    plan.recompute = Recompute::full;
    plan.modules = 0;
    for (const double share : {0.25, 0.5, 0.75, 1.0}) {
      plan.recompute_share = share;
      stages(plan);
    }
  }

  // Prices do not depend on stages and replicas, so that they are made once.
  void stages(ParallelPlan plan) {
    plan.schedule = Schedule::one_f_one_b;
    prices_ = stage_prices(request_.in, plan);
    plan.schedule = Schedule::zb_h1;
    const bool deferred_differ = plan.tp > 1 && plan.tp_overlap && plan.recompute == Recompute::none;
    deferred_prices_ = deferred_differ ? stage_prices(request_.in, plan) : prices_;
    const int all = plan.gpus, most = std::max(1, all / (plan.tp * plan.cp));
    for (const int pp : choices(request_.pp, divisors(most, static_cast<int>(request_.in.model.layers)))) {
      plan.pp = pp;
      plan.gpus = request_.lost_gpus > 0 && plan.tp_spares == 0 ? gpus_left(plan, all) : all;
      if (plan.gpus == 0) {
        if (plan.recompute == Recompute::none) ++part_.refused["no replica is left"];
        continue;
      }
      plan.vpp = 1;
      plan.schedule = Schedule::one_f_one_b;
      plan.last_stage_layers = 0;
      if (const std::string_view reason = illegal(request_.in.model, request_.in.cluster, plan);
          !reason.empty()) {
        if (plan.recompute == Recompute::none) ++part_.refused[std::string(reason)];
        continue;
      }
      schedules(plan);
    }
  }

  // With replicas left out whose domains lost a GPU, as many as the batch can be shared by.
  int gpus_left(const ParallelPlan& plan, int all) const {
    const int model_ranks = plan.tp * plan.cp * plan.pp;
    const int domain = std::min(all, request_.in.cluster.nvlink_domain);
    const int left = (all - std::min(all, request_.lost_gpus * domain)) / model_ranks;
    for (int replicas = left; replicas > 1; --replicas)
      if (plan.gbs % (plan.mbs * replicas) == 0) return replicas * model_ranks;
    return left > 0 ? model_ranks : 0;
  }

  void schedules(ParallelPlan plan) {
    const int balanced = balanced_last_stage(request_.in.model, plan, prices_);
    const auto wanted = [&](Schedule s) { return !request_.schedule || *request_.schedule == s; };
    if (wanted(Schedule::one_f_one_b))
      for (const int vpp : chunk_counts(plan)) {
        plan.vpp = vpp;
        // Uneven stages need at least a layer for each chunk.
        plan.last_stage_layers = balanced >= vpp ? balanced : 0;
        shardings(plan);
      }
    plan.vpp = 1;
    // Weight gradients that are put off would keep what recompute wants to forget.
    if (plan.pp == 1 || plan.forward_only || plan.microbatches() < plan.pp ||
        plan.recompute != Recompute::none)
      return;
    if (wanted(Schedule::zb_h1) && (!request_.vpp || *request_.vpp == 1)) {
      plan.schedule = Schedule::zb_h1;
      plan.last_stage_layers = balanced;
      shardings(plan);
    }
    if (wanted(Schedule::zb_v) && (!request_.vpp || *request_.vpp == 2) &&
        request_.in.model.layers % (2 * plan.pp) == 0) {
      plan.schedule = Schedule::zb_v;
      plan.last_stage_layers = 0;
      shardings(plan);
    }
  }

  std::vector<int> chunk_counts(const ParallelPlan& plan) const {
    if (request_.vpp) return {*request_.vpp};
    std::vector<int> result{1};
    if (plan.pp == 1 || plan.microbatches() % plan.pp != 0) return result;
    const int layers = static_cast<int>(request_.in.model.layers) / plan.pp;
    for (int chunks = 2; chunks <= std::min(layers, 24); ++chunks)
      if (layers % chunks == 0) result.push_back(chunks);
    return result;
  }

  void shardings(ParallelPlan plan) {
    plan.shards = 0;
    plan.shard_grads = false;
    if (plan.tp_spares > 0) {
      plan.reduced_replicas = std::min(request_.lost_gpus, plan.dp());
      plan.tp_spares = (request_.lost_gpus + plan.reduced_replicas - 1) / plan.reduced_replicas;
      if (plan.dp() > 1 && plan.tp_spares < plan.tp) price(plan);
      return;
    }
    offloads(plan);
    const int copies = plan.dp() * plan.cp;
    if (plan.pp > 1 || plan.dp() == 1 || plan.forward_only) return;
    plan.shard_grads = true;
    price(plan);
    plan.shard_grads = false;
    plan.shards = copies;
    price(plan);
    // Whole copies in each NVLink domain, where there are several.
    const int inside = request_.in.cluster.nvlink_domain / std::max(1, plan.tp);
    if (inside > 1 && inside < copies && copies % inside == 0) {
      plan.shards = inside;
      price(plan);
    }
  }

  void offloads(ParallelPlan plan) {
    const bool fitted = graphs(plan);
    // Offloading costs time and saves nothing else: it is for plans that would not fit.
    if (fitted || plan.pp > 1 || plan.recompute != Recompute::none || plan.forward_only || request_.recompute)
      return;
    for (const double share : {0.25, 0.5, 0.75}) {
      plan.offload_share = share;
      price(plan);
    }
  }

  bool graphs(ParallelPlan plan) {
    const Candidate* candidate = price(plan);
    if (candidate == nullptr) return false;
    const ModelShape& model = request_.in.model;
    // Graphs help where the GPU waits for the host; experts and MTP layers cannot be captured.
    if (candidate->prediction.breakdown.host < 0.005 * candidate->prediction.seconds || model.moe() ||
        model.mtp > 0)
      return true;
    plan.cuda_graphs = true;
    price(plan);
    return true;
  }

  const Candidate* price(const ParallelPlan& plan) {
    ++part_.plans;
    if (part_.plans - told_ == 16384) {
      priced_ += 16384;
      told_ = part_.plans;
    }
    const MemoryUse use = memory_use(request_.in, plan);
    if (!fits(request_.in, use)) {
      ++memory_refused_;
      return nullptr;
    }
    ++part_.fitting;
    part_.best.push_back({plan,
                          plan.cuda_graphs
                              ? predict(request_.in, plan)
                              : predict(request_.in, plan,
                                        plan.schedule == Schedule::one_f_one_b ? prices_ : deferred_prices_),
                          use.total(),
                          {},
                          {},
                          {}});
    scale_to_samples(request_, part_.best.back());
    add_to_front(part_.front, part_.best.back());
    if (part_.best.size() > 4096) {
      const Candidate last = part_.best.back();
      part_.best.pop_back();
      trim(part_.best, 1024);
      part_.best.push_back(last);
    }
    return &part_.best.back();
  }

  const SearchRequest& request_;
  std::atomic<int64_t>& priced_;
  int64_t told_ = 0, memory_refused_ = 0;
  StagePrices prices_, deferred_prices_;  // the second of schedules that put weight gradients off
  SearchPart part_;
};

struct NamedPart {
  std::string name;
  ParallelPlan plan;
};

std::vector<NamedPart> parts_of_search(const SearchRequest& request) {
  const Cluster& cluster = request.in.cluster;
  ParallelPlan plan;
  plan.gpus = cluster.gpus();
  plan.gbs = request.gbs;
  plan.seq = request.seq;
  plan.precision = request.precision;
  plan.expert_imbalance = request.expert_imbalance;
  plan.forward_only = request.forward_only;
  std::vector<NamedPart> parts;
  const int widest = std::min(cluster.nvlink_domain, plan.gpus);
  const auto add = [&](const std::string& kind) {
    const int longest = static_cast<int>(std::clamp<int64_t>(plan.context() / 1024, 1, 64));
    for (const int tp : choices(request.tp, powers_of_two(widest)))
      for (const int cp : choices(request.cp, powers_of_two(longest)))
        for (const ContextExchange exchange :
             {ContextExchange::ring, ContextExchange::all_gather, ContextExchange::all_to_all}) {
          if (cp == 1 ? exchange != ContextExchange::ring
                      : request.cp_exchange.value_or(exchange) != exchange)
            continue;
          plan.tp = tp;
          plan.cp = cp;
          plan.cp_exchange = exchange;
          plan.sequence_parallel = plan.tp_overlap = tp > 1;
          plan.tp_spares = 0;
          parts.push_back({fmt::format("tp{} cp{} {}{}", tp, cp, exchange_name(exchange), kind), plan});
          // What replicas of unequal sizes cannot do, their rules tell (config/rules/nonuniform_rules.cpp).
          if (request.lost_gpus == 0 || tp == 1 || tp > request.in.model.heads || request.in.model.moe() ||
              plan.fp8() || plan.forward_only || exchange == ContextExchange::all_to_all)
            continue;
          plan.tp_spares = 1;
          plan.tp_overlap = false;
          parts.push_back({parts.back().name + " unequal", plan});
        }
  };
  if (request.mean_length > 0 && request.mean_length < request.seq) {
    plan.useful = static_cast<double>(request.mean_length) / static_cast<double>(request.seq);
    add("");
    for (plan.seq = request.seq; plan.seq <= request.max_token_len; plan.seq *= 2) {
      const PackedRows packed = packed_rows(request.gbs, request.mean_length, plan.seq);
      plan.packed = request.mean_length;
      plan.gbs = packed.rows;
      plan.useful = packed.useful;
      add(fmt::format(" packed {}", plan.seq));
    }
    return parts;
  }
  add("");
  return parts;
}

// Near-ties by simplicity and room in memory, since one per cent is less than the model knows; no two alike.
void order_best(const SearchRequest& request, std::vector<Candidate>& best) {
  if (best.empty()) return;
  const double least = std::min_element(best.begin(), best.end(), faster)->prediction.seconds;
  const double roomy = 0.85 * request.in.cluster.gpu.memory_gib * 1073741824.0;
  const auto order = [&](const Candidate& c) {
    return std::tuple(std::floor(std::log(c.prediction.seconds / least) / 0.01),
                      complexity(c.plan) + (c.bytes > roomy), c.prediction.seconds);
  };
  std::sort(best.begin(), best.end(),
            [&](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
  std::set<std::tuple<int, int, int, int, int, int, int64_t, int, int64_t>> seen;
  std::vector<Candidate> distinct;
  for (const Candidate& c : best) {
    const ParallelPlan& p = c.plan;
    if (!seen.insert({p.tp, p.pp, p.cp, p.ep, p.etp, p.vpp, p.mbs, p.shards,
                      static_cast<int64_t>(p.schedule) * 8 + static_cast<int64_t>(p.precision) +
                          64 * (p.packed > 0 ? p.seq : 0) + 32 * p.unequal()})
             .second)
      continue;
    distinct.push_back(c);
    if (distinct.size() == kKept) break;
  }
  best = std::move(distinct);
}

}  // namespace

PackedRows packed_rows(int64_t samples, int64_t mean_length, int64_t seq) {
  // Packers leave about half of a sample empty at the end of every other row.
  const double filled = std::max(0.5, 1 - 0.25 * static_cast<double>(mean_length) / static_cast<double>(seq));
  const double wanted =
      static_cast<double>(samples) * static_cast<double>(mean_length) / (filled * static_cast<double>(seq));
  // Rows that can be shared out: a multiple of the largest power of two that changes the batch by an eighth
  // at most.
  int64_t step = 1;
  while (8 * step <= wanted) step *= 2;
  return {std::max<int64_t>(step, std::llround(wanted / static_cast<double>(step)) * step), filled};
}

void scale_to_samples(const SearchRequest& request, Candidate& candidate) {
  if (candidate.plan.packed == 0) return;
  const ParallelPlan& plan = candidate.plan;
  const double held = static_cast<double>(plan.gbs) * static_cast<double>(plan.seq) * plan.useful /
                      static_cast<double>(plan.packed);
  const double factor = static_cast<double>(request.gbs) / held;
  candidate.prediction.seconds *= factor;
  for (double Breakdown::*part :
       {&Breakdown::gemm, &Breakdown::attention, &Breakdown::memory, &Breakdown::tp, &Breakdown::cp,
        &Breakdown::ep, &Breakdown::pp, &Breakdown::dp, &Breakdown::host, &Breakdown::bubble,
        &Breakdown::optimizer, &Breakdown::step, &Breakdown::offload})
    candidate.prediction.breakdown.*part *= factor;
}

SearchResult search(const SearchRequest& request, const SearchMemory& memory) {
  const auto start = std::chrono::steady_clock::now();
  const std::vector<NamedPart> parts = parts_of_search(request);
  std::vector<SearchPart> found(parts.size());
  std::atomic<size_t> next = 0;
  std::atomic<int64_t> priced = 0;
  std::atomic<int> resumed = 0, finished = 0;
  std::mutex telling;
  const auto work = [&](bool tells) {
    for (size_t at; (at = next++) < parts.size();) {
      if (const auto known = memory.parts.find(parts[at].name); known != memory.parts.end()) {
        found[at] = known->second;
        ++resumed;
        continue;
      }
      found[at] = PartSearch(request, priced).run(parts[at].plan);
      ++finished;
      if (tells && request.progress) request.progress(finished, static_cast<int64_t>(parts.size()), priced);
      if (memory.finished) {
        const std::lock_guard lock(telling);
        memory.finished(parts[at].name, found[at]);
      }
    }
  };
  std::vector<std::thread> threads;
  const int count = std::clamp<int>(request.threads, 1, static_cast<int>(parts.size()));
  for (int i = 1; i < count; ++i) threads.emplace_back(work, false);
  work(true);
  for (std::thread& thread : threads) thread.join();

  SearchResult result;
  result.resumed = resumed;
  for (SearchPart& part : found) {
    result.plans += part.plans;
    result.fitting += part.fitting;
    for (const auto& [reason, number] : part.refused) result.refused[reason] += number;
    for (const Candidate& c : part.front) add_to_front(result.front, c);
    result.best.insert(result.best.end(), part.best.begin(), part.best.end());
  }
  order_best(request, result.best);
  for (std::vector<Candidate>* list : {&result.best, &result.front})
    for (Candidate& c : *list) c.stage_layers = best_stage_layers(request.in, c.plan);
  result.seconds = seconds_since(start);
  return result;
}

}  // namespace megatron::autotune
