#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "megatron/autotune/measure/step_database.h"
#include "megatron/cli/command.h"
#include "megatron/config/config.h"

// The parts of `megatron autotune`.
namespace megatron {

std::string autotune_search_help();
int run_autotune_search(Invocation& invocation);

std::string autotune_simulate_help();
int run_autotune_simulate(Invocation& invocation);

std::string autotune_validate_help();
int run_autotune_validate(Invocation& invocation);

std::string autotune_profile_ops_help();
int run_autotune_profile_ops(Invocation& invocation);

std::string autotune_profile_comm_help();
int run_autotune_profile_comm(Invocation& invocation);

// Times every way in which communication can run beside the GEMMs of four linear layers, on tensor ranks as
// the configuration has them, and writes the fastest as --tp-comm-overlap-cfg reads it.
int profile_tp_overlap(Invocation& invocation, Config config, const std::string& path, int64_t repeat,
                       bool json);

// Reads a database from a file, or takes the one of that name which comes with the program (h200).
autotune::StepDatabase autotune_step_database(const std::string& name);
// Trains small models of many shapes here and keeps the time of every op in the database `path`. Of the grid
// all are run where none are chosen.
int profile_grid_steps(Invocation& invocation, const std::string& path, double seconds,
                       const std::vector<size_t>& chosen);

}  // namespace megatron
