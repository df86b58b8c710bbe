#pragma once

#include <memory>
#include <string>

#include "megatron/comm/process_group.h"
#include "megatron/config/config.h"

namespace megatron {

class AutoBridge;
class Teacher;
struct RankContext;

// The model that --export-kd-teacher-load names.
struct TeacherSource {
  std::string path;
  std::shared_ptr<const AutoBridge> hf;      // null: a checkpoint
  std::shared_ptr<const ModelConfig> model;  // null: the run has no teacher

  // Of a run's configuration. The files of the teacher say what model it is; those of Megatron-LM may not,
  // and then it is the student with what --export-kd-teacher-model-config changes. A ConfigError where it
  // cannot teach this student under its layout.
  static TeacherSource of(const Config& student);

  // Fills one rank's part of it; all ranks of `world` call this.
  void load(RankContext& ctx, const ProcessGroup& world, Teacher& teacher, bool verify) const;
};

}  // namespace megatron
