#include "megatron/parallel/data/fold_plan.h"

namespace megatron {
namespace {

// Where what a rank holds meets what a position owns.
std::vector<FoldPart> common_boxes(size_t item, const ShardSpec& held, const ShardSpec& owned) {
  std::vector<FoldPart> parts;
  for (const ShardBlock& from : held.blocks)
    for (const ShardBlock& to : owned.blocks)
      if (const auto both = intersect({from.global_offset, from.extent}, {to.global_offset, to.extent}))
        parts.push_back({item,
                         {shifted(both->offset, from.global_offset, from.local_offset), both->extent},
                         {shifted(both->offset, to.global_offset, to.local_offset), both->extent}});
  return parts;
}

// Whether the owner needs nobody's copy but its own.
bool owner_holds(const FoldItem& item, size_t owner) {
  int64_t common = 0, owned = 0;
  for (const FoldPart& part : common_boxes(0, item.held[owner], item.owned[owner]))
    common += part.held.volume();
  for (const ShardBlock& block : item.owned[owner].blocks) owned += block.extent.numel();
  return common == owned;
}

}  // namespace

int64_t FoldMessage::numel() const {
  int64_t sum = 0;
  for (const FoldPart& part : parts) sum += part.held.volume();
  return sum;
}

FoldPlan FoldPlan::of(std::span<const FoldItem> items) {
  FoldPlan plan;
  if (items.empty()) return plan;
  for (size_t owner = 0; owner < items[0].owned.size(); ++owner)
    for (size_t holder = 0; holder < items[0].held.size(); ++holder) {
      FoldMessage to{static_cast<int>(holder), static_cast<int>(owner), {}}, back = to;
      for (size_t i = 0; i < items.size(); ++i) {
        const std::vector<FoldPart> parts = common_boxes(i, items[i].held[holder], items[i].owned[owner]);
        back.parts.insert(back.parts.end(), parts.begin(), parts.end());
        // Where all copies are equal, the owner's own will do.
        if (items[i].summed || holder == owner || !owner_holds(items[i], owner))
          to.parts.insert(to.parts.end(), parts.begin(), parts.end());
      }
      if (!to.parts.empty()) plan.fold.push_back(std::move(to));
      if (!back.parts.empty()) plan.unfold.push_back(std::move(back));
    }
  return plan;
}

}  // namespace megatron
