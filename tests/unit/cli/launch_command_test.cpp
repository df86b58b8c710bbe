#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "megatron/config/sources/compat.h"
#include "support/temp_dir.h"
#include "unit/cli/run_command.h"

namespace megatron {
namespace {

void expect_refused(std::vector<std::string> args, const std::string& words) {
  const Outcome outcome = run_command(std::move(args));
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_NE(outcome.err.find(words), std::string::npos) << outcome.err;
}

// What would do nothing is refused, above all where it was to keep the job from starting.
TEST(LaunchCommand, RefusesFlagsOfTheOtherWay) {
  expect_refused({"launch", "--dry-run", "--", "true"},
                 "launch: --dry-run says something about --slurm alone");
  expect_refused({"launch", "--nodes=2", "--", "true"}, "add --slurm");
  expect_refused({"launch", "--slurm", "--dry-run", "--backoff", "2", "--", "true"},
                 "launch: --backoff does nothing with --slurm");
}

// A torchrun line of one of several machines.
TEST(LaunchCommand, KnowsTorchrunsNames) {
  testing::TempDir dir;
  const Outcome outcome =
      run_command({"launch", "--nnodes", "2", "--node-rank", "1", "--nproc-per-node", "2", "--master-addr",
                   "10.0.0.7", "--master_port", "2950", "--log-dir", dir / "logs", "--", "/bin/sh", "-c",
                   "echo $RANK of $WORLD_SIZE, $LOCAL_RANK on $GROUP_RANK, $MASTER_ADDR:$MASTER_PORT"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* line : {"[2] 2 of 4, 0 on 1, 10.0.0.7:2950", "[3] 3 of 4, 1 on 1, 10.0.0.7:2950"})
    EXPECT_NE(outcome.out.find(line), std::string::npos) << outcome.out;
  expect_refused({"launch", "--nnodes", "2", "--", "true"}, "give --master-port");
  expect_refused({"launch", "--nnodes", "2", "--master-port", "1", "--", "true"}, "give --master-addr");
  expect_refused({"launch", "--nnodes", "2", "--node-rank", "2", "--master-addr", "10.0.0.7", "--master-port",
                  "1", "--", "true"},
                 "the last of which is 1");
  expect_refused({"launch", "--node-rank", "1", "--", "true"}, "give --nnodes");
}

TEST(LaunchCommand, HostsNameTheMachines) {
  testing::TempDir dir;
  const std::string file = dir / "hosts";
  std::ofstream(file) << "node1 slots=2\n";
  expect_refused({"launch", "--hosts", file, "--nnodes", "2", "--", "true"}, "--hosts names the machines");
  expect_refused({"launch", "--hosts", file, "--slurm", "--dry-run", "--", "true"},
                 "--hosts does nothing with --slurm");
  expect_refused({"launch", "--ssh", "ssh -p 22", "--", "true"}, "give --hosts");
  const Outcome absent = run_command({"launch", "--hosts", dir / "absent", "--", "true"});
  EXPECT_EQ(absent.code, 1);
  EXPECT_NE(absent.err.find("cannot be read"), std::string::npos) << absent.err;
}

// What a refusal calls an option of another command is one.
TEST(LaunchCommand, OptionsOfOtherCommandsAreTheirs) {
  size_t count = 0;
  for (const CompatRow& row : compat_rows()) {
    const std::string_view lead = "an option of megatron ";
    if (!row.text.starts_with(lead)) continue;
    const std::string rest(row.text.substr(lead.size())), command = rest.substr(0, rest.find_first_of(",; "));
    const std::string help = run_command({command, "--help"}).out;
    std::istringstream flags{std::string(row.flags)};
    for (std::string flag; flags >> flag; ++count)
      EXPECT_TRUE(help.find(flag + " ") != std::string::npos || help.find(flag + "\n") != std::string::npos)
          << command << " " << flag;
  }
  EXPECT_GT(count, 30u);
}

TEST(ResilienceCommand, RefusesATraceOfNothing) {
  for (const char* flag : {"--days", "--rate-factor", "--failures-per-gpu-day"})
    expect_refused({"resilience", "simulate", flag, "0"}, flag);
}

}  // namespace
}  // namespace megatron
