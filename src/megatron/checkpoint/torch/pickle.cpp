#include "megatron/checkpoint/torch/pickle.h"

#include "megatron/base/error.h"
#include "megatron/checkpoint/torch/pickle_reader.h"

namespace megatron {
namespace {

constexpr int64_t kMaxJsonValues = int64_t{1} << 20;

// Lists may share parts, so that a small pickle describes a huge value: the values are counted.
Json as_json(const PickleValue& value, const std::string& origin, int depth, int64_t& left) {
  if (depth > 64) throw ConfigError(fmt::format("{}: values are nested deeper than 64", origin));
  if (--left < 0) throw ConfigError(fmt::format("{}: more than {} values", origin, kMaxJsonValues));
  switch (value.kind) {
    case PickleKind::boolean:
      return value.boolean;
    case PickleKind::integer:
      return value.integer;
    case PickleKind::real:
      return value.real;
    case PickleKind::text:
      return value.text;
    case PickleKind::global:
      return value.text.starts_with("torch.") ? value.text.substr(6) : value.text;
    case PickleKind::list:
    case PickleKind::tuple: {
      Json list = Json::array();
      for (const PickleValue* item : value.items) list.push_back(as_json(*item, origin, depth + 1, left));
      return list;
    }
    case PickleKind::dict:
    case PickleKind::object: {
      // An enum is its value, a path its parts.
      if (value.is(PickleKind::object) && value.items.size() == 1 && value.items[0]->items.size() == 1)
        return as_json(*value.items[0]->items[0], origin, depth + 1, left);
      Json object = Json::object();
      const auto entries = value.entries();
      for (size_t i = 0; i + 1 < entries.size(); i += 2)
        if (entries[i]->is(PickleKind::text))
          object.as_object().emplace_back(std::string(entries[i]->text),
                                          as_json(*entries[i + 1], origin, depth + 1, left));
      return object;
    }
    default:
      return nullptr;
  }
}

}  // namespace

std::span<const PickleValue* const> PickleValue::entries() const {
  if (is(PickleKind::dict)) return items;
  if (!is(PickleKind::object) || items.size() < 2) return {};
  const PickleValue* state = items[1];
  if (state->is(PickleKind::tuple) && !state->items.empty()) state = state->items[0];
  return state->is(PickleKind::dict) ? std::span<const PickleValue* const>(state->items)
                                     : std::span<const PickleValue* const>();
}

const PickleValue* PickleValue::find(std::string_view key) const {
  const auto pairs = entries();
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    if (pairs[i]->is(PickleKind::text) && pairs[i]->text == key) return pairs[i + 1];
  return nullptr;
}

const char* name_of(PickleKind kind) {
  constexpr const char* kNames[] = {"None",      "a bool",    "an integer", "a float", "a text",
                                    "bytes",     "a list",    "a tuple",    "a dict",  "a class",
                                    "an object", "a storage", "a tensor"};
  return kNames[static_cast<size_t>(kind)];
}

PickleDocument::PickleDocument(std::span<const std::byte> data, const std::string& origin) {
  PickleReader(*this, data, origin).read();
}

Json to_json(const PickleValue& value, const std::string& origin) {
  int64_t left = kMaxJsonValues;
  return as_json(value, origin, 0, left);
}

}  // namespace megatron
