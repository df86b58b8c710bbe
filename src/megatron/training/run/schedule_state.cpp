#include "megatron/training/run/schedule_state.h"

#include <type_traits>

#include "megatron/base/error.h"

namespace megatron {
namespace {

template <class E>
E choice_from(const Json& value, E otherwise, const std::string& key) {
  const auto texts = names(otherwise);
  for (size_t i = 0; i < texts.size(); ++i)
    if (value.as_string() == texts[i]) return static_cast<E>(i);
  fail("{} is '{}', which is no style of this program", key, value.as_string());
}

}  // namespace

Json schedule_state(const RateSchedule& schedule) {
  const LearningRateSchedule& lr = schedule.lr;
  const WeightDecaySchedule& decay = schedule.weight_decay;
  Json state = Json::object();
  state["max_lr"] = lr.peak;
  state["min_lr"] = lr.minimum;
  state["init_lr"] = lr.initial;
  state["lr_warmup_steps"] = lr.warmup;
  state["lr_decay_steps"] = lr.duration;
  state["lr_decay_style"] = name_of(lr.decay);
  state["wsd_decay_steps"] = lr.wsd_duration;
  state["lr_wsd_decay_style"] = name_of(lr.wsd_decay);
  state["start_wd"] = decay.start;
  state["end_wd"] = decay.end;
  state["wd_incr_style"] = name_of(decay.growth);
  state["wd_incr_steps"] = decay.duration;
  return state;
}

RateSchedule schedule_from_state(const Json& state, RateSchedule schedule, const std::string& origin) {
  const auto take = [&](std::string_view key, auto& target) {
    using Value = std::remove_reference_t<decltype(target)>;
    const Json* value = state.find(key);
    if (!value || value->is_null()) return;
    if constexpr (std::is_enum_v<Value>)
      target = choice_from(*value, target, std::string(key));
    else if constexpr (std::is_same_v<Value, double>)
      target = value->as_double();
    else
      target = value->as_int();
  };
  LearningRateSchedule& lr = schedule.lr;
  WeightDecaySchedule& decay = schedule.weight_decay;
  try {
    take("max_lr", lr.peak);
    take("min_lr", lr.minimum);
    take("init_lr", lr.initial);
    take("lr_warmup_steps", lr.warmup);
    take("lr_decay_steps", lr.duration);
    take("lr_decay_style", lr.decay);
    take("wsd_decay_steps", lr.wsd_duration);
    take("lr_wsd_decay_style", lr.wsd_decay);
    take("start_wd", decay.start);
    take("end_wd", decay.end);
    take("wd_incr_style", decay.growth);
    take("wd_incr_steps", decay.duration);
  } catch (const Error& error) {
    throw ConfigError(
        fmt::format("{}: its schedule cannot be used: {}; give --no-load-optim to go on without it", origin,
                    error.what()));
  }
  return schedule;
}

std::string schedule_difference(const RateSchedule& ours, const RateSchedule& checkpoint) {
  std::string text;
  const auto compare = [&](std::string_view name, const auto& a, const auto& b) {
    if (a == b) return;
    text += fmt::format("{}{} {} (the checkpoint has {})", text.empty() ? "" : ", ", name, a, b);
  };
  const auto compare_choice = [&](std::string_view name, auto a, auto b) {
    compare(name, std::string_view(name_of(a)), std::string_view(name_of(b)));
  };
  const LearningRateSchedule &a = ours.lr, &b = checkpoint.lr;
  compare("max_lr", a.peak, b.peak);
  compare_choice("lr_decay_style", a.decay, b.decay);
  compare("lr_warmup_steps", a.warmup, b.warmup);
  if (a.warmup > 0 || b.warmup > 0) compare("init_lr", a.initial, b.initial);
  if (a.decay != LrDecay::constant || b.decay != LrDecay::constant) {
    compare("min_lr", a.minimum, b.minimum);
    compare("lr_decay_steps", a.duration, b.duration);
  }
  if (a.decay == LrDecay::wsd || b.decay == LrDecay::wsd) {
    compare("wsd_decay_steps", a.wsd_duration, b.wsd_duration);
    compare_choice("lr_wsd_decay_style", a.wsd_decay, b.wsd_decay);
  }
  const WeightDecaySchedule &c = ours.weight_decay, &d = checkpoint.weight_decay;
  compare_choice("wd_incr_style", c.growth, d.growth);
  compare("end_wd", c.end, d.end);
  if (c.growth == WeightDecayGrowth::constant && d.growth == WeightDecayGrowth::constant) return text;
  compare("start_wd", c.start, d.start);
  compare("wd_incr_steps", c.duration, d.duration);
  return text;
}

}  // namespace megatron
