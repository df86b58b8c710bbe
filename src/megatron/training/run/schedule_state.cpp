#include "megatron/training/run/schedule_state.h"

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

Json schedule_state(const LearningRateSchedule& schedule) {
  Json state = Json::object();
  state["max_lr"] = schedule.peak;
  state["min_lr"] = schedule.minimum;
  state["init_lr"] = schedule.initial;
  state["lr_warmup_steps"] = schedule.warmup;
  state["lr_decay_steps"] = schedule.duration;
  state["lr_decay_style"] = name_of(schedule.decay);
  state["wsd_decay_steps"] = schedule.wsd_duration;
  state["lr_wsd_decay_style"] = name_of(schedule.wsd_decay);
  return state;
}

LearningRateSchedule schedule_from_state(const Json& state, LearningRateSchedule schedule,
                                         const std::string& origin) {
  const auto find = [&](std::string_view key) {
    const Json* value = state.find(key);
    return value && !value->is_null() ? value : nullptr;
  };
  try {
    if (const Json* value = find("max_lr")) schedule.peak = value->as_double();
    if (const Json* value = find("min_lr")) schedule.minimum = value->as_double();
    if (const Json* value = find("init_lr")) schedule.initial = value->as_double();
    if (const Json* value = find("lr_warmup_steps")) schedule.warmup = value->as_int();
    if (const Json* value = find("lr_decay_steps")) schedule.duration = value->as_int();
    if (const Json* value = find("lr_decay_style"))
      schedule.decay = choice_from(*value, schedule.decay, "lr_decay_style");
    if (const Json* value = find("wsd_decay_steps")) schedule.wsd_duration = value->as_int();
    if (const Json* value = find("lr_wsd_decay_style"))
      schedule.wsd_decay = choice_from(*value, schedule.wsd_decay, "lr_wsd_decay_style");
  } catch (const Error& error) {
    throw ConfigError(fmt::format("{}: its schedule cannot be used: {}; give --override-opt_param-scheduler",
                                  origin, error.what()));
  }
  return schedule;
}

std::string schedule_difference(const LearningRateSchedule& ours, const LearningRateSchedule& checkpoint) {
  std::string text;
  const auto compare = [&](std::string_view name, const auto& a, const auto& b) {
    if (a == b) return;
    text += fmt::format("{}{} {} (the checkpoint has {})", text.empty() ? "" : ", ", name, a, b);
  };
  compare("max_lr", ours.peak, checkpoint.peak);
  compare("lr_decay_style", std::string_view(name_of(ours.decay)),
          std::string_view(name_of(checkpoint.decay)));
  compare("lr_warmup_steps", ours.warmup, checkpoint.warmup);
  if (ours.warmup > 0 || checkpoint.warmup > 0) compare("init_lr", ours.initial, checkpoint.initial);
  if (ours.decay == LrDecay::constant && checkpoint.decay == LrDecay::constant) return text;
  compare("min_lr", ours.minimum, checkpoint.minimum);
  compare("lr_decay_steps", ours.duration, checkpoint.duration);
  if (ours.decay == LrDecay::wsd || checkpoint.decay == LrDecay::wsd) {
    compare("wsd_decay_steps", ours.wsd_duration, checkpoint.wsd_duration);
    compare("lr_wsd_decay_style", std::string_view(name_of(ours.wsd_decay)),
            std::string_view(name_of(checkpoint.wsd_decay)));
  }
  return text;
}

}  // namespace megatron
