#include "megatron/recipes/recipe_family.h"

#include <algorithm>

#include "megatron/base/error.h"
#include "megatron/base/nearest.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/recipes/recipe_row.h"

namespace megatron {
namespace {

const Json& none() {
  static const Json empty = Json::object();
  return empty;
}

const Json& part(const Json& object, std::string_view key) {
  const Json* found = object.find(key);
  return found ? *found : none();
}

void overlay(Json& target, const Json& stronger) {
  for (const auto& [key, value] : stronger.as_object()) target[key] = value;
}

class FamilyReader {
 public:
  FamilyReader(const RecipeFile& file, const Json& bases)
      : name_(file.name), bases_(bases), file_(parse_yaml(std::string(file.text), where(""))) {
    constexpr std::string_view known[] = {"architecture",  "needs",   "config", "text_config",
                                          "settings",      "sizes",   "tiny",   "defaults",
                                          "perf_defaults", "recipes", "perf"};
    for (const auto& [key, value] : file_.as_object())
      if (std::find(std::begin(known), std::end(known), key) == std::end(known))
        throw ConfigError(fmt::format("{}: there is no such key", where(key)));
  }

  std::vector<Recipe> read() {
    std::vector<Recipe> recipes;
    for (const auto& [name, row] : part(file_, "recipes").as_object())
      recipes.push_back(recipe(name, row, "defaults", {}));
    for (const auto& [name, row] : part(file_, "perf").as_object()) {
      recipes.push_back(recipe(name, row, "perf_defaults", "perf"));
      recipes.back().name = "perf/" + name;
    }
    if (file_.contains("tiny")) recipes.push_back(tiny());
    return recipes;
  }

 private:
  std::string where(std::string_view row) const {
    return fmt::format("recipes/{}.yaml{}{}", name_, row.empty() ? "" : ": ", row);
  }

  // The description of a size, with that of the one that it is like.
  Json size(std::string_view name) const {
    const Json* found = part(file_, "sizes").find(name);
    if (!found) throw ConfigError(fmt::format("{}: there is no such size", where(name)));
    return whole(*found);
  }
  Json whole(const Json& described) const {
    const Json* like = described.find("like");
    if (!like) return described;
    Json result = size(like->as_string());
    overlay(result, described);
    return result;
  }

  // config.json: what the family's models share, then what the size says; its words for itself left out.
  Json config(const Json& size) const {
    constexpr std::string_view own[] = {"like", "hf", "settings", "layouts", "note", "config"};
    Json result = Json::object();
    result["architectures"] = Json::array();
    result["architectures"].push_back(file_.at("architecture"));
    overlay(result, part(file_, "config"));
    // What is not of the text is a size's `config`, on top of what sizes share: {vision_config: {…}}.
    for (const auto& [key, value] : part(size, "config").as_object())
      if (value.is_object() && result.contains(key))
        overlay(result[key], value);
      else
        result[key] = value;
    Json* described = &result;
    if (const Json* text = file_.find("text_config")) {
      result["text_config"] = *text;
      described = &result["text_config"];
    }
    for (const auto& [key, value] : size.as_object())
      if (std::find(std::begin(own), std::end(own), key) == std::end(own)) (*described)[key] = value;
    return result;
  }

  void add_base(RecipeRow& row, std::string_view task) const {
    const Json& base = bases_.at(task);
    if (const Json* like = base.find("like")) add_base(row, like->as_string());
    Json own = Json::object();
    for (const auto& [key, value] : base.as_object())
      if (key != "like") own[key] = value;
    row.add(own, fmt::format("recipes/bases.yaml: {}", task));
  }

  void finish(Recipe& recipe, const RecipeRow& row, const Json& size) const {
    recipe.family = name_;
    if (const Json* hf = size.find("hf")) recipe.hf = hf->as_string();
    recipe.config = config(size);
    recipe.settings = row.settings;
    recipe.notes = row.notes;
    if (const Json* note = size.find("note")) recipe.notes.push_back(note->as_string());
    if (!row.needs.empty()) recipe.needs = row.needs;
    if (const Json* needs = file_.find("needs")) recipe.needs = needs->as_string();
  }

  Recipe recipe(const std::string& name, const Json& own, std::string_view defaults,
                std::string_view further) const {
    Recipe result;
    read_recipe_name(name, result);
    const Json described = size(result.model);
    RecipeRow row;
    add_base(row, "all");
    add_base(row, result.task);
    if (!further.empty()) add_base(row, further);
    row.settings["run.mixed_precision"] = precision_preset_of(result.precision);
    row.add(part(file_, "settings"), where("settings"));
    row.add(part(described, "settings"), where(result.model));
    row.add(part(part(file_, defaults), result.task), where(defaults));
    row.add(own, where(name));
    if (result.task == "peft") result.needs = "PEFT";
    if (result.precision == "fp8mx") result.needs = "MXFP8, of Blackwell GPUs";
    if (result.precision == "nvfp4") result.needs = "NVFP4, of Blackwell GPUs";
    set_layout(row, described);
    finish(result, row, described);
    return result;
  }

  // Stages that are not alike, by "PP" or "PPxVP".
  static void set_layout(RecipeRow& row, const Json& described) {
    const int64_t pp = row.integer("model.pipeline_model_parallel_size", 1);
    const int64_t vp = row.integer("model.virtual_pipeline_model_parallel_size", 1);
    const Json* layout =
        part(described, "layouts").find(vp > 1 ? fmt::format("{}x{}", pp, vp) : fmt::format("{}", pp));
    if (!layout) return;
    row.settings["model.pipeline_model_parallel_layout"] = *layout;
    // The layout says how many chunks a stage has.
    std::erase_if(row.settings.as_object(), [](const auto& setting) {
      return setting.first == "model.virtual_pipeline_model_parallel_size";
    });
  }

  Recipe tiny() const {
    Json described = whole(file_.at("tiny"));
    described["vocab_size"] = 256;
    if (!described.contains("n_positions")) described["max_position_embeddings"] = 64;
    RecipeRow row;
    add_base(row, "all");
    row.add(part(file_, "settings"), where("settings"));
    row.add(part(described, "settings"), where("tiny"));
    row.settings["model.make_vocab_size_divisible_by"] = 128;
    add_base(row, "tiny");
    Recipe result;
    result.name = "tiny/" + name_;
    result.model = name_;
    result.task = "pretrain";
    finish(result, row, described);
    return result;
  }

  std::string name_;
  const Json& bases_;
  Json file_;
};

}  // namespace

std::vector<Recipe> read_recipe_family(const RecipeFile& file, const Json& bases) {
  try {
    return FamilyReader(file, bases).read();
  } catch (const ConfigError&) {
    throw;
  } catch (const Error& error) {  // a value of another type
    throw ConfigError(fmt::format("recipes/{}.yaml: {}", file.name, error.what()));
  }
}

}  // namespace megatron
