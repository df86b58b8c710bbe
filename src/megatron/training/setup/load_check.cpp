#include "megatron/training/setup/load_check.h"

#include <set>

#include "megatron/base/nearest.h"
#include "megatron/base/problems.h"
#include "megatron/models/vision_language.h"

namespace megatron {
namespace {

constexpr std::string_view kOptimizerPrefix = "optimizer.";

// The parameter that a tensor of the optimizer belongs to: "optimizer.exp_avg.NAME" gives NAME.
std::string_view parameter_of(std::string_view name) {
  if (!name.starts_with(kOptimizerPrefix)) return {};
  name.remove_prefix(kOptimizerPrefix.size());
  return name.substr(name.find('.') + 1);
}

bool can_be_padded(std::string_view name) {
  return name.ends_with("word_embeddings.weight") || name.ends_with("output_layer.weight") ||
         name.ends_with("output_layer.bias");
}

bool converts(DType from, DType to) { return from == to || (is_floating(from) && is_floating(to)); }

}  // namespace

bool LoadCheck::tolerates_missing() const {
  return options_.strictness == Strictness::log_all || options_.strictness == Strictness::return_all ||
         options_.strictness == Strictness::ignore_all;
}

bool LoadCheck::reports_missing() const { return options_.strictness == Strictness::log_all; }

bool LoadCheck::may_lack(std::string_view parameter) const {
  return options_.allow_missing_vision_projection && is_of_projection(parameter);
}

bool LoadCheck::reports_unexpected() const {
  return options_.strictness == Strictness::log_unexpected || options_.strictness == Strictness::log_all ||
         options_.strictness == Strictness::raise_unexpected || options_.strictness == Strictness::raise_all;
}

bool LoadCheck::fits(ShardedTensor& target, const StoredTensor& stored) const {
  const Shape wanted = target.shard.global_shape;
  if (stored.shape == wanted) return true;
  if (!source_.padded_vocabulary || !can_be_padded(target.name) || stored.shape.rank() != wanted.rank())
    return false;
  for (int d = 1; d < wanted.rank(); ++d)
    if (stored.shape[d] != wanted[d]) return false;
  if (stored.shape[0] < wanted[0]) return false;
  target.shard.global_shape = stored.shape;
  return true;
}

std::vector<std::string> LoadCheck::unexpected(const std::vector<ShardedTensor>& tensors) const {
  std::set<std::string_view> wanted;
  for (const ShardedTensor& tensor : tensors) wanted.insert(tensor.name);
  std::vector<std::string> names;
  for (const StoredTensor& stored : source_.tensors) {
    const bool of_run = stored.name.starts_with(kOptimizerPrefix) || stored.name.starts_with("fp8.history.");
    if (of_run && !options_.optimizer) continue;
    if (!wanted.contains(stored.name)) names.push_back(stored.name);
  }
  return names;
}

LoadReport LoadCheck::fit(std::vector<ShardedTensor>& tensors) const {
  Problems problems;
  LoadReport report;
  std::vector<std::string> all;
  for (const StoredTensor& stored : source_.tensors) all.push_back(stored.name);
  size_t of_optimizer = 0, without_state = 0;
  bool state_alone = true;  // what does not fit is state of the optimizer that the checkpoint has not
  std::vector<ShardedTensor> found;
  for (ShardedTensor& target : tensors) {
    const StoredTensor* stored = source_.find(target.name);
    const std::string_view parameter = parameter_of(target.name);
    if (!parameter.empty()) ++of_optimizer;
    if (!stored && !parameter.empty() && source_.find(parameter)) {
      ++without_state;
      problems.add("{}: it is missing", target.name);
    } else if (!stored && may_lack(parameter.empty() ? target.name : parameter)) {
      report.missing.push_back(target.name);
    } else if (!stored && tolerates_missing()) {
      if (reports_missing()) report.missing.push_back(target.name);
    } else if (!stored) {
      state_alone = false;
      const std::string advice = did_you_mean(nearest(target.name, all));
      problems.add("{}: it is missing{}{}", target.name, advice.empty() ? "" : "; ", advice);
    } else if (!fits(target, *stored)) {
      state_alone = false;
      problems.add("{}: the checkpoint has {}, the model {}", target.name, stored->shape,
                   target.shard.global_shape);
    } else if (!converts(stored->dtype, target.dtype())) {
      state_alone = false;
      problems.add("{}: the checkpoint has {}, the model {}", target.name, stored->dtype, target.dtype());
    } else {
      found.push_back(target);
    }
  }
  if (of_optimizer > 0 && without_state == of_optimizer)
    throw ConfigError(
        fmt::format("the checkpoint {} has no state of the optimizer that fits; give --no-load-optim to go "
                    "on without it, "
                    "or --finetune to begin at iteration 0",
                    source_.path));
  problems.raise(state_alone
                     ? fmt::format("the checkpoint {} does not fit the optimizer, which is another than that "
                                   "of its run; give --no-load-optim to go on without its state, or "
                                   "--finetune to begin at iteration 0",
                                   source_.path)
                     : fmt::format("the checkpoint {} does not fit the model", source_.path));
  if (reports_unexpected()) report.unexpected = unexpected(tensors);
  tensors = std::move(found);
  return report;
}

}  // namespace megatron
