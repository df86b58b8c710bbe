#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <mutex>

#include "parity/design_cases.h"
#include "parity/pass_through.h"

// A fault in any kind of communication of any kind of group turns parity red: layouts in which every setting
// stands at least once, and in each of them one fault after the other.
namespace megatron::testing {
namespace {

// A kind of operation of one group, such as "all_reduce of tp (ranks 0 1)".
struct Target {
  std::string group;  // its name
  CommKind kind = CommKind::Barrier;
  std::vector<int> ranks;
  auto operator<=>(const Target&) const = default;
};

// What all ranks of a run share.
struct Plan {
  std::mutex mutex;
  std::map<Target, int> seen;  // how many operations there were
  const Target* target = nullptr;
  int which = 0;                   // of the target's operations is the faulty one
  bool divides = false;            // a sum becomes a mean
  std::atomic<bool> bites{false};  // the fault changed something
};

class Planted final : public PassThrough {
 public:
  Planted(ProcessGroup inner, std::shared_ptr<Plan> plan) : PassThrough(std::move(inner)), plan_(plan) {}

 private:
  bool drops(const CommRequest& request) override {
    const Target own{name(), request.kind, world_ranks()};
    const int number = count_[request.kind]++;
    if (!plan_->target) {
      std::lock_guard lock(plan_->mutex);
      plan_->seen[own] = std::max(plan_->seen[own], number + 1);
      return false;
    }
    // That one and the next: one alone may be a load whose sequences are all on one rank.
    faulty_ = own == *plan_->target && (number == plan_->which || number == plan_->which + 1);
    if (!faulty_ || request.kind != CommKind::AllReduce || plan_->divides) return false;
    if (is_anything(request.input)) plan_->bites = true;
    return true;
  }

  void change(CommRequest& request) override {
    if (!faulty_) return;
    if (plan_->divides) {
      if (request.kind != CommKind::AllReduce && request.kind != CommKind::ReduceScatter) return;
      if (request.op != ReduceOp::Sum || !is_floating(request.input.dtype())) return;
      // The load of experts is compared with its own mean: no factor changes that.
      const bool is_load = request.kind == CommKind::AllReduce && name() == "tp-dp-cp";
      if (is_anything(request.input) && !is_load) plan_->bites = true;
      request.op = ReduceOp::Avg;
    } else if (rank() == 0 && request.input.defined()) {
      swap_halves(request.input);
    }
  }
  std::vector<Tensor> sent(const Tensor& tensor) override {
    if (faulty_ && !plan_->divides) swap_halves(tensor);
    return {tensor};
  }
  std::shared_ptr<GroupBackend> part(ProcessGroup group) override {
    return std::make_shared<Planted>(std::move(group), plan_);
  }

  // Sums of zeros may be left out: there is nothing of an expert in a dense model's norm.
  static bool is_anything(const Tensor& tensor) {
    const char* bytes = static_cast<const char*>(tensor.raw());
    return std::any_of(bytes, bytes + tensor.bytes(), [](char byte) { return byte != 0; });
  }

  void swap_halves(const Tensor& tensor) {
    const size_t half = tensor.bytes() / 2 / 16 * 16;
    if (half == 0) return;
    char *first = static_cast<char*>(tensor.raw()), *second = first + tensor.bytes() - half;
    if (std::memcmp(first, second, half) == 0) return;
    std::swap_ranges(first, first + half, second);
    plan_->bites = true;
  }

  std::shared_ptr<Plan> plan_;
  std::map<CommKind, int> count_;
  bool faulty_ = false;
};

bool differ(const Trained& a, const Trained& b) {
  const auto apart = [](double x, double y) { return !(std::abs(x - y) <= 1e-7 * std::abs(x)); };
  bool result = b.ranks_apart > 1e-7 || apart(a.evaluated, b.evaluated);
  for (size_t i = 0; i < a.losses.size(); ++i)
    result = result || apart(a.losses[i], b.losses[i]) || apart(a.grad_norms[i], b.grad_norms[i]);
  // Losses that are reported beside the objective's come from collectives of their own.
  for (size_t i = 0; i < a.reports.size(); ++i)
    for (size_t term = 0; term < a.reports[i].terms.size(); ++term)
      result = result || apart(a.reports[i].terms[term].value, b.reports[i].terms[term].value);
  std::string where;
  return result || difference(a.gradients, b.gradients, &where) > 1e-7 ||
         difference(a.parameters, b.parameters, &where) > 1e-7;
}

struct Faults {
  int planted = 0, void_ones = 0;
};

// Whether the run with this fault was seen to be wrong, or ended in an error.
void plant(const DesignCase& c, const Trained& one, References& references, const std::shared_ptr<Plan>& plan,
           Faults& faults) {
  bool red = false;
  try {
    red = differ(one, train(c.config, c.sizes, references.batches(c), DType::F64, [&](const ProcessGroup& w) {
                   return ProcessGroup(std::make_shared<Planted>(w, plan));
                 }));
  } catch (const Error&) {
    red = true;
  }
  if (!plan->bites) {
    ++faults.void_ones;
    return;
  }
  ++faults.planted;
  EXPECT_TRUE(red) << (plan->divides ? "a mean in the place of a sum: " : "left out or swapped: ")
                   << name_of(plan->target->kind) << " #" << plan->which << " of " << plan->target->group;
}

TEST(PlantedFault, AnyFaultInAnyGroupTurnsParityRed) {
  CoveringDesign design = layout_design();
  References references(2);
  Faults faults;
  std::set<std::pair<std::string, CommKind>> kinds;
  for (const DesignRow& row : design.rows(1)) {
    SCOPED_TRACE(design.text(row));
    DesignCase c = design_case(row);
    const Trained& one = references.of(c);
    auto record = std::make_shared<Plan>();
    train(c.config, c.sizes, references.batches(c), DType::F64,
          [&](const ProcessGroup& w) { return ProcessGroup(std::make_shared<Planted>(w, record)); });
    std::set<std::pair<std::string, CommKind>> done;
    for (const auto& [target, count] : record->seen) {
      if (target.ranks.size() < 2 || target.kind == CommKind::Recv) continue;
      if (!done.insert({target.group, target.kind}).second) continue;  // one group of a kind stands for all
      kinds.insert({target.group, target.kind});
      for (bool divides : {false, true}) {
        auto plan = std::make_shared<Plan>();
        plan->target = &target;
        plan->which = count > 4 ? count / 2 : 0;
        plan->divides = divides;
        plant(c, one, references, plan, faults);
      }
    }
  }
  fmt::print("{} faults planted in {} kinds of operations of groups; {} changed nothing\n", faults.planted,
             kinds.size(), faults.void_ones);
  EXPECT_GT(faults.planted, 50);
}

}  // namespace
}  // namespace megatron::testing
