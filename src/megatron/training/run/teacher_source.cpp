#include "megatron/training/run/teacher_source.h"

#include <filesystem>

#include "megatron/base/refuse.h"
#include "megatron/base/text_file.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/checkpoint/agree.h"
#include "megatron/config/resolve/model_settings.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/config/sources/yaml.h"
#include "megatron/config/sources/yaml_arguments.h"
#include "megatron/training/run/load_places.h"
#include "megatron/training/setup/checkpoint_tensors.h"
#include "megatron/training/step/teacher.h"

namespace megatron {
namespace {

constexpr const char* kTeacher = "--export-kd-teacher-load";
constexpr const char* kModelFile = "--export-kd-teacher-model-config";

// The fields of `model` of a teacher that is a student with other sizes: what follows from sizes is left out.
Json model_of(const ModelConfig& student) {
  Json model = model_settings(student);
  const auto forget = [&](std::string_view key) {
    std::erase_if(model.as_object(), [&](const auto& field) { return field.first == key; });
  };
  if (student.kv_channels * student.num_attention_heads == student.hidden_size) forget("kv_channels");
  if (student.num_query_groups == student.num_attention_heads) forget("num_query_groups");
  return model;
}

// Changes fields of `model` by a file that names them, or flags of Megatron-LM, or what NeMo calls them.
void apply_model_file(const std::string& path, Json& model) {
  const Json file = refuse_faults(kModelFile, [&] { return parse_yaml(read_text_file(path), path); });
  require_input(file.is_object(), "{} {}: it is no mapping of settings; write lines such as num_layers: 24",
                kModelFile, path);
  for (const auto& [key, value] : file.as_object()) {
    if (key == "encoder_seq_length") continue;  // rows are the student's
    const std::string name = key == "bias"         ? "add_bias_linear"
                             : key == "activation" ? "activation_func"
                                                   : key;
    const YamlArgument argument = yaml_argument({name, value, 0});
    if (argument.left_out || argument.row) continue;
    require_input(!argument.settings.empty(), "{} {}: there is no setting {} of a model; leave it out",
                  kModelFile, path, key);
    for (const auto& [setting, own] : argument.settings) {
      require_input(setting.starts_with("model."), "{} {}: {} is not a setting of a model; leave it out",
                    kModelFile, path, key);
      model[setting.substr(6)] = own;
    }
  }
}

// What differs from the defaults of the settings that lay a model out.
ConfigText layout_of(const Config& config) {
  const Json all = config.to_json().at("model"), defaults = Config().to_json().at("model");
  Json layout = Json::object();
  for (const Schema* rows : {&schema<ParallelConfig>(), &schema<PrecisionConfig>()})
    for (const Setting& setting : rows->rows())
      if (!(all.at(setting.key) == defaults.at(setting.key))) layout[setting.key] = all.at(setting.key);
  layout["seq_length"] = config.model.seq_length;
  Json file = Json::object();
  file["model"] = std::move(layout);
  return {"the student's layout", file.dump()};
}

Config resolved(const std::string& path, const Json& model, const Config& layout) {
  Sources sources;
  sources.checkpoint = model;
  sources.checkpoint_origin = path;
  sources.file = layout_of(layout);
  return resolve(sources, {.purpose = Purpose::forward}).config;
}

// Compares what learns with what teaches.
void check_pair(const std::string& path, const ModelConfig& student, const ModelConfig& teacher) {
  require_input(!teacher.masks_text() && !teacher.has_tower(),
                "{} {}: only decoders without a vision tower teach; name another model", kTeacher, path);
  require_input(teacher.vocab_size == student.vocab_size,
                "{} {}: it predicts {} tokens, the student {}; distillation compares predictions of one "
                "tokenizer's tokens: name a teacher that has the student's",
                kTeacher, path, teacher.vocab_size, student.vocab_size);
}

}  // namespace

TeacherSource TeacherSource::of(const Config& student) {
  const DistillConfig& distill = student.distill;
  TeacherSource source;
  if (!distill.has_teacher()) return source;
  source.path = distill.export_kd_teacher_load;
  const FoundCheckpoint found = recognise_checkpoint(source.path);
  Json model;
  if (found.kind == CheckpointKind::hugging_face) {
    source.hf = std::make_shared<const AutoBridge>(source.path);
    model = hf_model_settings(*source.hf);
  } else {
    named_place(kTeacher, source.path);
    model = checkpoint_model_settings(source.path, {});
  }
  std::string file = distill.export_kd_teacher_model_config;
  if (const std::string beside = source.path + "/model_config.yaml";
      file.empty() && !source.hf && std::filesystem::exists(beside))
    file = beside;
  if (model.is_null() || !file.empty()) model = model_of(student.model);
  if (!file.empty()) apply_model_file(file, model);
  // Megatron-LM's checkpoints say how far it padded the vocabulary, not how large it is.
  const Json* vocabulary = model.find("vocab_size");
  const bool padded = found.kind == CheckpointKind::torch_dist || found.kind == CheckpointKind::torch;
  if (padded && (!vocabulary || vocabulary->as_int() >= student.model.vocab_size))
    model["vocab_size"] = student.model.vocab_size;
  try {
    Config alone;
    alone.model.seq_length = student.model.seq_length;
    const ModelConfig plain = resolved(source.path, model, alone).model;
    check_pair(source.path, student.model, plain);
    // Once more under the layout, which depends on the number of layers.
    source.model = std::make_shared<const ModelConfig>(
        resolved(source.path, model, teacher_config(student, plain)).model);
  } catch (const Refused& refused) {
    std::string problems;
    for (const Problem& problem : refused.problems()) problems += "\n  " + problem.text();
    refuse("{} {}: the teacher cannot be laid out as the student is:{}", kTeacher, source.path, problems);
  }
  return source;
}

void TeacherSource::load(RankContext& ctx, const ProcessGroup& world, Teacher& teacher, bool verify) const {
  agree(world, "", [&]() -> std::string {
    const std::vector<Parameter*> parameters = teacher.parameters();
    if (hf) {
      hf->load(ctx, parameters);
    } else {
      std::vector<std::string> notes;
      const LoadPlace place = named_place(kTeacher, path);
      load_parameters(ctx, open_place(place, verify, world.size() == 1, notes), parameters);
    }
    return "";
  });
}

}  // namespace megatron
