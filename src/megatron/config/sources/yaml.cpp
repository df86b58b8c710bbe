#include "megatron/config/sources/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <sstream>
#include <unordered_set>

#include "megatron/base/error.h"
#include "megatron/config/sources/value_parser.h"

namespace megatron {
namespace {

constexpr int deepest = 100;

// Remembers where the last document began.
class DocumentStarts final : public YAML::EventHandler {
 public:
  YAML::Mark last = YAML::Mark::null_mark();

  void OnDocumentStart(const YAML::Mark& mark) override { last = mark; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark&, const std::string&, YAML::anchor_t, const std::string&) override {}
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t,
                       YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {
  }
  void OnMapEnd() override {}
};

// Where text goes on after its first document. (YAML::LoadAll does not end where a document takes none of
// the text, as after a comma that belongs to nothing.)
std::optional<YAML::Mark> after_first_document(const std::string& text) {
  std::istringstream stream(text);
  YAML::Parser parser(stream);
  DocumentStarts starts;
  if (!parser.HandleNextDocument(starts) || !parser.HandleNextDocument(starts)) return {};
  return starts.last;
}

class Reader {
 public:
  explicit Reader(std::string_view origin) : origin_(origin) {}

  YAML::Node load(const std::string& text) const {
    try {
      YAML::Node root = YAML::Load(text);
      if (const std::optional<YAML::Mark> rest = after_first_document(text)) {
        const bool another = std::string_view(text)
                                 .substr(std::min(static_cast<size_t>(rest->pos), text.size()))
                                 .starts_with("---");
        throw ConfigError(fmt::format(
            "{}:{}: {}", origin_, rest->line + 1,
            another ? "a second document begins here: keep one" : "malformed YAML: nothing can follow here"));
      }
      return root;
    } catch (const YAML::Exception& error) {
      throw ConfigError(fmt::format("{}:{}: malformed YAML: {}", origin_, error.mark.line + 1, error.msg));
    }
  }

  int line(const YAML::Node& node) const { return node.Mark().line + 1; }

  Json value(const YAML::Node& node, int depth = 0) const {
    if (depth > deepest) throw ConfigError(fmt::format("{}:{}: nested too deep", origin_, line(node)));
    switch (node.Type()) {
      case YAML::NodeType::Undefined:
      case YAML::NodeType::Null:
        return {};
      case YAML::NodeType::Scalar:
        return scalar(node);
      case YAML::NodeType::Sequence: {
        Json items = Json::array();
        for (const YAML::Node& item : node) items.push_back(value(item, depth + 1));
        return items;
      }
      case YAML::NodeType::Map: {
        Json items = Json::object();
        for_each(node, [&](const std::string& key, const YAML::Node& item) {
          items[key] = value(item, depth + 1);
        });
        return items;
      }
    }
    return {};
  }

  // Calls visit(key, value) for each key of a mapping, first for what its << merges in and it does not say
  // itself.
  using Visit = std::function<void(const std::string& key, const YAML::Node& value)>;
  void for_each(const YAML::Node& map, const Visit& visit, int depth = 0) const {
    // A mapping may merge itself.
    if (depth > deepest) throw ConfigError(fmt::format("{}:{}: << merges too deep", origin_, line(map)));
    std::unordered_set<std::string> own;
    for (const auto& pair : map) {
      const YAML::Node& key = pair.first;
      if (!key.IsScalar()) throw ConfigError(fmt::format("{}:{}: a key must be a word", origin_, line(key)));
      if (!own.insert(key.Scalar()).second)
        throw ConfigError(
            fmt::format("{}:{}: the key {} stands twice: remove one", origin_, line(key), key.Scalar()));
    }
    for (const auto& pair : map) {
      if (pair.first.Scalar() != "<<") continue;
      std::vector<YAML::Node> merged;
      if (pair.second.IsSequence()) {
        for (const YAML::Node& source : pair.second) merged.push_back(source);
      } else {
        merged.push_back(pair.second);
      }
      for (const YAML::Node& source : merged) {
        if (!source.IsMap())
          throw ConfigError(fmt::format("{}:{}: << merges mappings only", origin_, line(pair.first)));
        for_each(
            source,
            [&](const std::string& name, const YAML::Node& value) {
              if (own.insert(name).second) visit(name, value);
            },
            depth + 1);
      }
    }
    for (const auto& pair : map)
      if (pair.first.Scalar() != "<<") visit(pair.first.Scalar(), pair.second);
  }

 private:
  Json scalar(const YAML::Node& node) const {
    // yaml-cpp tags a quoted scalar "!" and a plain one "?".
    const bool quoted = node.Tag() == "!" || node.Tag() == "tag:yaml.org,2002:str";
    return quoted ? Json(node.Scalar()) : parse_scalar(node.Scalar());
  }

  std::string_view origin_;
};

}  // namespace

Json parse_yaml(const std::string& text, std::string_view origin) {
  const Reader reader(origin);
  return reader.value(reader.load(text));
}

std::vector<YamlEntry> read_yaml(const std::string& text, std::string_view origin) {
  const Reader reader(origin);
  const YAML::Node root = reader.load(text);
  std::vector<YamlEntry> entries;
  if (root.IsNull()) return entries;
  if (!root.IsMap())
    throw ConfigError(fmt::format("{}: a configuration file is a mapping of sections", origin));
  reader.for_each(root, [&](const std::string& section, const YAML::Node& body) {
    if (!body.IsMap() || section == "env_vars") {
      entries.push_back({section, reader.value(body), reader.line(body)});
      return;
    }
    reader.for_each(body, [&](const std::string& key, const YAML::Node& value) {
      entries.push_back({section + "." + key, reader.value(value), reader.line(value)});
    });
  });
  return entries;
}

}  // namespace megatron
