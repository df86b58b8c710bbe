#include "megatron/cli/commands.h"

#include <cstdlib>

#include "megatron/base/counted.h"
#include "megatron/bridge/auto_bridge.h"
#include "megatron/bridge/hf_settings.h"
#include "megatron/cli/doctor/doctor.h"
#include "megatron/cli/help_text.h"
#include "megatron/config/help.h"
#include "megatron/config/resolve/resolve.h"
#include "megatron/device/gpu_facts.h"
#include "megatron/recipes/recipe_catalogue.h"
#include "megatron/training/plan/launch_problems.h"
#include "megatron/training/setup/tokenizer_setup.h"

namespace megatron {
namespace {

constexpr CommandFlag kFlags[] = {
    {"--no-self-test", 0, "do not compute anything"},
    {"--json", 0, "one JSON document"},
};

constexpr std::string_view word(Grade grade) {
  return grade == Grade::Ok ? "ok" : grade == Grade::Note ? "note" : "WRONG";
}

void print_text(std::FILE* out, const std::vector<CheckList>& sections) {
  size_t width = 0;
  for (const CheckList& section : sections)
    for (const Finding& finding : section.findings) width = std::max(width, finding.subject.size());
  for (const CheckList& section : sections) {
    fmt::print(out, "{}\n", section.title);
    for (const Finding& finding : section.findings) {
      fmt::print(out, "  {:<5}  {:<{}}  {}\n", word(finding.grade), finding.subject, width, finding.text);
      if (!finding.advice.empty())
        fmt::print(out, "{}", fill_help(fmt::format("{:<{}}-> {}", "", width + 11, finding.advice)));
    }
  }
}

Json to_json(const std::vector<CheckList>& sections, int wrong) {
  Json json = Json::object();
  json["healthy"] = wrong == 0;
  Json& all = json["sections"] = Json::array();
  for (const CheckList& section : sections) {
    Json part = Json::object();
    part["title"] = section.title;
    Json& findings = part["findings"] = Json::array();
    for (const Finding& finding : section.findings) {
      Json entry = Json::object();
      entry["grade"] = finding.grade == Grade::Wrong ? "wrong" : word(finding.grade);
      entry["subject"] = finding.subject;
      entry["text"] = finding.text;
      if (!finding.advice.empty()) entry["advice"] = finding.advice;
      findings.push_back(std::move(entry));
    }
    all.push_back(std::move(part));
  }
  return json;
}

bool names_a_model(const CommandLine& line) {
  return !line.config_path.empty() || !line.hf_dir.empty() || !line.recipe_name.empty() ||
         !line.sources.flags.empty() || !line.sources.overrides.empty();
}

}  // namespace

std::string doctor_help() {
  std::string text =
      "usage: megatron doctor [settings] [options]\n"
      "\n"
      "Tells whether this machine can train: build and libraries, cores, memory, disks, GPUs and the links\n"
      "between them, how ranks were started and meet, and whether small trainings give the known results on\n"
      "the CPU, on several ranks and on every GPU. With the settings of a model also which kernels its "
      "shapes\n"
      "will use and whether it fits. Ends with 3 where something is wrong; a note is no fault.\n"
      "\n"
      "options:\n";
  for (const CommandFlag& flag : kFlags) text += fmt::format("  {:<14}  {}\n", flag.name, flag.help);
  return text + "\n" + settings_overview();
}

int run_doctor(Invocation& invocation) {
  const CommandLine line = parse_command_line(invocation.args, kFlags);
  if (!line.words.empty()) throw UsageError(fmt::format("doctor: cannot make sense of '{}'", line.words[0]));
  std::optional<Resolved> resolved;
  if (names_a_model(line) || !line.sources.problems.empty())
    resolved = resolve(read_sources(line, {.hf = read_hf_settings, .recipe = read_recipe}),
                       {.purpose = Purpose::model, .gpus = gpu_facts, .vocabulary = vocabulary_size});
  if (resolved) check_gpus(*resolved);
  const GpuReport gpus = look_for_gpus();
  const Machine machine = look_at_machine();
  std::vector<CheckList> sections = {build_section(), machine_section(machine), gpu_section(gpus),
                                     rank_section([](const char* name) { return std::getenv(name); })};
  if (resolved) sections.push_back(shape_section(*resolved, gpus, machine));
  if (!line.has("--no-self-test")) sections.push_back(numeric_section(gpus));
  int wrong = 0, notes = 0;
  for (const CheckList& section : sections)
    for (const Finding& finding : section.findings) {
      wrong += finding.grade == Grade::Wrong;
      notes += finding.grade == Grade::Note;
    }
  if (line.has("--json")) {
    fmt::print(invocation.out, "{}\n", to_json(sections, wrong).dump(2));
  } else {
    print_text(invocation.out, sections);
    if (wrong > 0)
      fmt::print(invocation.out, "\n{} {} wrong\n", counted(wrong, "thing"), wrong == 1 ? "is" : "are");
    else
      fmt::print(invocation.out, "\nready to train{}\n", notes == 0 ? "" : "; " + counted(notes, "note"));
  }
  return wrong > 0 ? 3 : 0;
}

}  // namespace megatron
