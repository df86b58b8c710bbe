#include "megatron/autotune/search/search.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <set>
#include <tuple>

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

int kinds_of_communication(const ParallelPlan& p) {
  return (p.tp > 1) + (p.pp > 1) + (p.cp > 1) + (p.ep > 1) + (p.vpp > 1) + (p.shards > 1) +
         (p.recompute != Recompute::none);
}

class Search {
 public:
  explicit Search(const SearchRequest& request) : request_(request) {}

  SearchResult run() {
    const auto start = std::chrono::steady_clock::now();
    const ModelShape& model = request_.in.model;
    const Cluster& cluster = request_.in.cluster;
    ParallelPlan plan;
    plan.gpus = cluster.gpus();
    plan.gbs = request_.gbs;
    plan.seq = request_.seq;
    plan.precision = request_.precision;
    plan.expert_imbalance = request_.expert_imbalance;
    const int widest = std::min(cluster.nvlink_domain, plan.gpus);
    for (const int tp : choices(request_.tp, powers_of_two(widest)))
      for (const int cp :
           choices(request_.cp, powers_of_two(static_cast<int>(std::min<int64_t>(64, plan.seq / 1024)))))
        for (const int pp : choices(
                 request_.pp, divisors(std::max(1, plan.gpus / (tp * cp)), static_cast<int>(model.layers)))) {
          plan.tp = tp;
          plan.cp = cp;
          plan.pp = pp;
          plan.sequence_parallel = plan.tp_overlap = tp > 1;
          expert_layouts(plan);
        }
    finish();
    result_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return std::move(result_);
  }

 private:
  void expert_layouts(ParallelPlan plan) {
    const ModelShape& model = request_.in.model;
    if (!model.moe()) return batches(plan);
    const int ranks = std::max(1, plan.gpus / plan.pp);
    std::vector<int> widths{1};
    if (plan.tp > 1) widths.push_back(plan.tp);
    for (const int etp : choices(request_.etp, widths))
      for (const int ep :
           choices(request_.ep, powers_of_two(static_cast<int>(std::min<int64_t>(model.experts, ranks))))) {
        plan.ep = ep;
        plan.etp = etp;
        batches(plan);
      }
  }

  void batches(ParallelPlan plan) {
    std::vector<int64_t> sizes{1, 2, 4, 8, 16};
    if (request_.mbs) sizes = {*request_.mbs};
    for (const int64_t mbs : sizes) {
      plan.mbs = mbs;
      plan.vpp = 1;
      plan.last_stage_layers = 0;
      if (const std::string_view reason = illegal(request_.in.model, request_.in.cluster, plan);
          !reason.empty()) {
        ++result_.refused[std::string(reason)];
        continue;
      }
      const int balanced = balanced_last_stage(request_.in, plan);
      for (const int vpp : chunk_counts(plan)) {
        plan.vpp = vpp;
        // Uneven stages need at least a layer for each chunk.
        plan.last_stage_layers = balanced >= vpp ? balanced : 0;
        recomputes(plan);
      }
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

  void recomputes(ParallelPlan plan) {
    for (const Recompute recompute : {Recompute::none, Recompute::moe, Recompute::full}) {
      if (recompute == Recompute::moe && !request_.in.model.moe()) continue;
      plan.recompute = recompute;
      for (const double share : {0.25, 0.5, 0.75, 1.0}) {
        if (recompute != Recompute::full && share < 1) continue;
        plan.recompute_share = share;
        plan.shards = 0;
        price(plan);
        if (plan.pp == 1 && plan.dp() > 1) {
          plan.shards = plan.dp() * plan.cp;
          price(plan);
        }
      }
    }
  }

  void price(const ParallelPlan& plan) {
    ++result_.plans;
    if (request_.progress && result_.plans % 65536 == 0) request_.progress(result_.plans);
    const MemoryUse use = memory_use(request_.in, plan);
    if (!fits(request_.in, use)) {
      ++result_.refused["memory"];
      return;
    }
    ++result_.fitting;
    const Candidate candidate{plan, predict(request_.in, plan), use.total()};
    add_to_front(candidate);
    result_.best.push_back(candidate);
    if (result_.best.size() > 4096) trim(1024);
  }

  static bool faster(const Candidate& a, const Candidate& b) {
    return a.prediction.seconds < b.prediction.seconds;
  }

  void trim(size_t count) {
    if (result_.best.size() <= count) return;
    std::nth_element(result_.best.begin(), result_.best.begin() + static_cast<std::ptrdiff_t>(count),
                     result_.best.end(), faster);
    result_.best.resize(count);
  }

  // The front is sorted by time, so that memory falls along it.
  void add_to_front(const Candidate& candidate) {
    std::vector<Candidate>& front = result_.front;
    const auto place = std::lower_bound(front.begin(), front.end(), candidate, faster);
    if (place != front.begin() && std::prev(place)->bytes <= candidate.bytes) return;
    auto end = place;
    while (end != front.end() && end->bytes >= candidate.bytes) ++end;
    front.insert(front.erase(place, end), candidate);
  }

  void finish() {
    std::vector<Candidate>& best = result_.best;
    if (best.empty()) return;
    const double least = std::min_element(best.begin(), best.end(), faster)->prediction.seconds;
    // One per cent is less than the model knows: the simpler plan goes first.
    const auto order = [&](const Candidate& c) {
      return std::tuple(std::floor(std::log(c.prediction.seconds / least) / 0.01),
                        kinds_of_communication(c.plan), c.prediction.seconds);
    };
    std::sort(best.begin(), best.end(),
              [&](const Candidate& a, const Candidate& b) { return order(a) < order(b); });
    std::set<std::tuple<int, int, int, int, int, int, int64_t, int>> seen;
    std::vector<Candidate> distinct;
    for (const Candidate& c : best) {
      const ParallelPlan& p = c.plan;
      if (!seen.insert({p.tp, p.pp, p.cp, p.ep, p.etp, p.vpp, p.mbs, p.shards}).second) continue;
      distinct.push_back(c);
      if (distinct.size() == kKept) break;
    }
    best = std::move(distinct);
  }

  const SearchRequest& request_;
  SearchResult result_;
};

}  // namespace

SearchResult search(const SearchRequest& request) { return Search(request).run(); }

std::string_view illegal(const ModelShape& model, const Cluster& cluster, const ParallelPlan& plan) {
  const auto divides = [](int64_t part, int64_t whole) { return part > 0 && whole % part == 0; };
  if (plan.tp < 1 || plan.pp < 1 || plan.cp < 1 || plan.ep < 1 || plan.etp < 1 || plan.mbs < 1)
    return "sizes below 1";
  if (!divides(int64_t{plan.tp} * plan.pp * plan.cp, plan.gpus))
    return "tp x pp x cp does not divide the GPUs";
  if (plan.tp > cluster.nvlink_domain) return "tp leaves the NVLink domain";
  if (model.heads > 0 && !divides(plan.tp, model.heads)) return "tp does not divide the heads";
  if (model.kv_heads > 0 && !divides(plan.tp, model.kv_heads) && !divides(model.kv_heads, plan.tp))
    return "tp suits the KV heads neither way";
  if (model.ffn > 0 && !divides(plan.tp, model.ffn)) return "tp does not divide ffn";
  if (plan.pp > model.layers) return "more stages than layers";
  if (plan.cp > 1 && !divides(2 * plan.cp, plan.seq)) return "2 x cp does not divide the length";
  if (plan.tp > 1 && !divides(int64_t{plan.tp} * plan.cp, plan.seq))
    return "tp x cp does not divide the length";
  if (!divides(plan.mbs * plan.dp(), plan.gbs)) return "mbs x dp does not divide the batch";
  if (model.moe()) {
    if (!divides(plan.ep, model.experts)) return "ep does not divide the experts";
    if (!divides(int64_t{plan.ep} * plan.etp, plan.gpus / plan.pp))
      return "ep x etp does not divide tp x cp x dp";
    if (!divides(plan.etp, model.moe_ffn)) return "etp does not divide the experts' ffn";
  } else if (plan.ep > 1) {
    return "the model has no experts";
  }
  return "";
}

}  // namespace megatron::autotune
