#include <gtest/gtest.h>

#include "megatron/checkpoint/directory.h"
#include "megatron/checkpoint/host_tensor.h"
#include "megatron/checkpoint/load.h"
#include "megatron/checkpoint/reshard.h"
#include "megatron/checkpoint/save.h"
#include "support/error_of.h"
#include "support/golden.h"
#include "support/temp_dir.h"

namespace megatron {
namespace {

using testing::error_of;
using testing::TempDir;

// What each rank holds, per tensor of the small model below.
struct Layout {
  std::string name;
  int ranks;
  std::function<std::vector<ShardedTensor>(RankContext&, int rank)> shards;
};

// The value of an element says which it is.
double value_at(const std::string& name, int64_t index) {
  return static_cast<double>(index) + 100000.0 * static_cast<double>(name.size());
}

ShardedTensor make_shard(RankContext& ctx, const std::string& name, const ShardSpec& spec,
                         DType dtype = DType::F32) {
  return {name, spec, ctx.full(spec.local_shape, dtype, -1)};
}

void for_each_element(const ShardedTensor& piece,
                      const std::function<void(int64_t global, int64_t local)>& visit) {
  const Shape global = piece.shard.global_shape.row_major_strides(), &local = piece.tensor.strides();
  for (const ShardBlock& block : piece.shard.blocks) {
    const Shape inner = block.extent.row_major_strides();
    for (int64_t i = 0; i < block.extent.numel(); ++i) {
      int64_t g = 0, l = 0;
      for (int dim = 0; dim < block.extent.rank(); ++dim) {
        const int64_t at = i / inner[dim] % block.extent[dim];
        g += (block.global_offset[dim] + at) * global[dim];
        l += (block.local_offset[dim] + at) * local[dim];
      }
      visit(g, l);
    }
  }
}

void fill(const std::vector<ShardedTensor>& pieces) {
  for (const ShardedTensor& piece : pieces)
    for_each_element(piece, [&](int64_t global, int64_t local) {
      piece.tensor.data<float>()[local] = static_cast<float>(value_at(piece.name, global));
    });
}

void expect_filled(const std::vector<ShardedTensor>& pieces, const std::string& what) {
  for (const ShardedTensor& piece : pieces) {
    int wrong = 0;
    for_each_element(piece, [&](int64_t global, int64_t local) {
      wrong += piece.tensor.data<float>()[local] != static_cast<float>(value_at(piece.name, global));
    });
    EXPECT_EQ(wrong, 0) << what << ": " << piece.name;
  }
}

constexpr int64_t hidden = 12, heads = 6, groups = 3, head_dim = 4, ffn = 24, vocab = 22;

// QKV stands in groups: [q q k v] per group of two query heads.
ShardSpec qkv(int rank, int size) {
  const int64_t rows = groups * (heads / groups + 2) * head_dim;
  return ShardSpec::split({rows, hidden}, 0, rank, size);
}

// The same rows on ranks of unequal width.
ShardSpec uneven(const Shape& shape, int rank) {
  const ShardSpec::Range two[] = {{0, 16}}, one[] = {{16, shape[0]}};
  return rank == 0 ? ShardSpec::ranges(shape, 0, two) : ShardSpec::ranges(shape, 0, one);
}

// The vocabulary is padded to 8 · size rows; the padding is on the last rank and is never saved.
ShardSpec padded_vocabulary(int rank, int size) {
  const int64_t rows = 24 / size, begin = rank * rows, end = std::min(vocab, begin + rows);
  const ShardSpec::Range range[] = {{begin, end}};
  ShardSpec spec = ShardSpec::ranges({vocab, hidden}, 0, range);
  spec.local_shape[0] = rows;
  return spec;
}

std::vector<ShardedTensor> tensor_parallel(RankContext& ctx, int rank, int size) {
  const int64_t gated[] = {ffn, ffn};
  return {
      make_shard(ctx, "embedding.word_embeddings.weight", padded_vocabulary(rank, size)),
      make_shard(ctx, "linear_qkv.weight", qkv(rank, size)),
      make_shard(ctx, "linear_proj.weight", ShardSpec::split({hidden, heads * head_dim}, 1, rank, size)),
      make_shard(ctx, "linear_fc1.weight", ShardSpec::split_parts({2 * ffn, hidden}, 0, gated, rank, size)),
      make_shard(ctx, "norm.weight", ShardSpec::whole({hidden})),
      make_shard(ctx, "experts.fc2.weight", ShardSpec::split({6, hidden, 5}, 0, rank, size)),
      make_shard(ctx, "scale", ShardSpec::whole({}))};
}

// Each of `size` tensor-parallel shards is split evenly, flat, over `replicas` ranks (ZeRO).
std::vector<ShardedTensor> flat_over_replicas(RankContext& ctx, int rank, int size, int replicas) {
  std::vector<ShardedTensor> pieces;
  for (const ShardedTensor& whole : tensor_parallel(ctx, rank % size, size)) {
    const int64_t n = whole.tensor.numel(), begin = n * (rank / size) / replicas,
                  end = n * (rank / size + 1) / replicas;
    for (ShardedTensor& piece :
         flat_range(whole.name, whole.shard, ctx.full({end - begin}, DType::F32, -1), begin))
      pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::vector<Layout> layouts() {
  std::vector<Layout> list;
  for (int size : {1, 2, 3})
    list.push_back({"tp" + std::to_string(size), size,
                    [=](RankContext& ctx, int rank) { return tensor_parallel(ctx, rank, size); }});
  list.push_back(
      {"tp2 dp2", 4, [](RankContext& ctx, int rank) { return tensor_parallel(ctx, rank % 2, 2); }});
  list.push_back(
      {"tp2 zero3", 6, [](RankContext& ctx, int rank) { return flat_over_replicas(ctx, rank, 2, 3); }});
  list.push_back({"uneven tp beside tp3", 5, [](RankContext& ctx, int rank) {
                    std::vector<ShardedTensor> list = tensor_parallel(ctx, rank % 3, 3);
                    if (rank >= 3)
                      list[1] = make_shard(ctx, "linear_qkv.weight", uneven({48, hidden}, rank - 3));
                    return list;
                  }});
  list.push_back({"stages", 2, [](RankContext& ctx, int rank) {
                    std::vector<ShardedTensor> all = tensor_parallel(ctx, 0, 1), own;
                    for (size_t i = 0; i < all.size(); ++i)
                      if (static_cast<int>(i % 2) == rank) own.push_back(all[i]);
                    return own;
                  }});
  return list;
}

TrainingState at_iteration(int64_t iteration) {
  TrainingState state;
  state.iteration = iteration;
  return state;
}

std::string save(RankContext& ctx, const std::string& root, const Layout& layout, TrainingState state) {
  std::vector<std::vector<ShardedTensor>> tensors;
  std::vector<std::vector<ShardDescription>> described;
  for (int rank = 0; rank < layout.ranks; ++rank) {
    tensors.push_back(layout.shards(ctx, rank));
    fill(tensors.back());
    described.push_back(shards_from_text(to_text(describe(tensors.back()))));
  }
  const std::string directory = begin_save(root, state.iteration);
  std::vector<StoredTensor> plan = plan_save(described);
  std::vector<std::optional<WrittenFile>> files;
  for (int rank = 0; rank < layout.ranks; ++rank)
    files.push_back(write_pieces(directory, rank, own_pieces(rank, tensors[rank], plan)));
  const int64_t iteration = state.iteration;
  write_index(directory, make_index(std::move(state), std::move(plan), files));
  return publish_save(root, iteration);
}

TEST(Reshard, EveryLayoutLoadsFromEveryOther) {
  RankContext ctx;
  for (const Layout& saved : layouts()) {
    TempDir dir;
    save(ctx, dir.path(), saved, at_iteration(3));
    EXPECT_TRUE(verify_checkpoint(dir / "iter_0000003").empty())
        << verify_checkpoint(dir / "iter_0000003").text();
    for (const Layout& loaded : layouts()) {
      for (int rank = 0; rank < loaded.ranks; ++rank) {
        std::vector<ShardedTensor> tensors = loaded.shards(ctx, rank);
        CheckpointReader reader(dir.path());
        reader.load(ctx, tensors);
        expect_filled(tensors, saved.name + " to " + loaded.name + " on rank " + std::to_string(rank));
      }
    }
  }
}

TEST(Reshard, RewrittenWholeFromEveryLayout) {
  RankContext ctx;
  for (const Layout& saved : layouts()) {
    TempDir dir, other;
    TrainingState state = at_iteration(3);
    state.extra = Json::parse(R"({"loss_scale": 2.0})");
    save(ctx, dir.path(), saved, state);
    const std::string path = reshard_checkpoint(dir.path(), other.path(), 2);
    EXPECT_TRUE(verify_checkpoint(path).empty()) << verify_checkpoint(path).text();
    CheckpointReader reader(other.path());
    EXPECT_EQ(reader.state().extra, state.extra);
    EXPECT_EQ(reader.index().files.size(), 2u);
    for (const StoredTensor& tensor : reader.index().tensors)
      EXPECT_EQ(tensor.pieces.size(), 1u) << tensor.name;
    std::vector<ShardedTensor> tensors = layouts()[4].shards(ctx, 1);
    reader.load(ctx, tensors);
    expect_filled(tensors, saved.name);
  }
}

TEST(Cut, BoxesCoverInRowMajorOrder) {
  for (const int64_t elements : {1, 5, 7, 12, 60, 1000}) {
    int64_t at = 0;
    for (const Box& box : cut({1, 12, 5}, elements)) {
      EXPECT_EQ(box.offset[1] * 5, at);
      EXPECT_LE(box.volume(), std::max<int64_t>(elements, 5));
      at += box.volume();
    }
    EXPECT_EQ(at, 60);
  }
  EXPECT_EQ(cut({}, 1).size(), 1u);
}

TEST(Reshard, PaddingIsNeitherSavedNorTouched) {
  RankContext ctx;
  TempDir dir;
  const Layout two = layouts()[1];
  CheckpointIndex index = read_index(save(ctx, dir.path(), two, at_iteration(1)));
  EXPECT_EQ(index.find("embedding.word_embeddings.weight")->shape, (Shape{vocab, hidden}));
  std::vector<ShardedTensor> last = two.shards(ctx, 1);
  CheckpointReader(dir.path()).load(ctx, last);
  for (int64_t i = 10 * hidden; i < 12 * hidden; ++i) EXPECT_EQ(last[0].tensor.data<float>()[i], -1);
}

TEST(Reshard, ReplicasAreWrittenOnceAndTheBytesSpread) {
  RankContext ctx;
  TempDir dir;
  const Layout replicas{"dp4", 4, [](RankContext& ctx, int) { return tensor_parallel(ctx, 0, 1); }};
  CheckpointIndex index = read_index(save(ctx, dir.path(), replicas, at_iteration(1)));
  ASSERT_EQ(index.files.size(), 4u);
  int64_t total = 0;
  for (const StoredTensor& tensor : index.tensors) {
    EXPECT_EQ(tensor.pieces.size(), 1u);
    total += tensor.shape.numel() * 4;
  }
  int64_t stored = 0;
  for (const StoredFile& file : index.files) {
    const SafetensorsFile contents(dir / ("iter_0000001/" + file.name));
    for (const SafetensorsEntry& entry : contents.entries()) stored += static_cast<int64_t>(entry.bytes);
  }
  EXPECT_EQ(stored, total);
}

TEST(Reshard, AnySafetensorsReaderFindsWholeTensorsByTheirNames) {
  RankContext ctx;
  TempDir dir;
  const std::string path = save(ctx, dir.path(), layouts()[0], at_iteration(1));
  SafetensorsFile file(path + "/rank_00000.safetensors");
  EXPECT_EQ(file.at("linear_proj.weight").shape, (Shape{hidden, heads * head_dim}));
  const std::string two = save(ctx, dir.path(), layouts()[1], at_iteration(2));
  EXPECT_EQ(SafetensorsFile(two + "/rank_00001.safetensors").at("linear_proj.weight[0:12, 12:24]").shape,
            (Shape{hidden, 12}));
}

TEST(Reshard, ConvertsFloatingPointAndKeepsBitsOtherwise) {
  RankContext ctx;
  TempDir dir;
  const Shape shape{4, 6};
  Tensor narrow = ctx.full(shape, DType::BF16, 0), count = ctx.full(shape, DType::I64, 7);
  for (int64_t i = 0; i < 24; ++i)
    narrow.data<bf16>()[i].bits = static_cast<uint16_t>(0x7f80 + i);  // inf, NaNs
  const std::vector<ShardedTensor> tensors = {{"a", ShardSpec::whole(shape), narrow},
                                              {"n", ShardSpec::whole(shape), count}};
  std::vector<std::vector<ShardDescription>> described = {describe(tensors)};
  std::vector<StoredTensor> plan = plan_save(described);
  const std::string directory = begin_save(dir.path(), 1);
  std::vector<std::optional<WrittenFile>> files = {write_pieces(directory, 0, own_pieces(0, tensors, plan))};
  write_index(directory, make_index({}, plan, files));
  publish_save(dir.path(), 1);

  std::vector<ShardedTensor> same = {make_shard(ctx, "a", ShardSpec::split(shape, 1, 1, 2), DType::BF16)};
  std::vector<ShardedTensor> wide = {make_shard(ctx, "a", ShardSpec::split(shape, 1, 0, 2), DType::F32)};
  CheckpointReader reader(dir.path());
  reader.load(ctx, same);
  reader.load(ctx, wide);
  for (int64_t i = 0; i < 4; ++i)
    for (int64_t j = 0; j < 3; ++j) {
      EXPECT_EQ(same[0].tensor.data<bf16>()[i * 3 + j].bits, 0x7f80 + i * 6 + 3 + j);
      EXPECT_EQ(std::isnan(wide[0].tensor.data<float>()[i * 3 + j]), i + j > 0);
    }
  std::vector<ShardedTensor> wrong = {make_shard(ctx, "n", ShardSpec::whole(shape), DType::F32)};
  EXPECT_NE(error_of([&] { reader.load(ctx, wrong); }).find("n: the checkpoint has int64, the model fp32"),
            std::string::npos);
}

TEST(Reshard, StridedTensorsAreSavedAndLoaded) {
  RankContext ctx;
  TempDir dir;
  const Shape shape{5, 7};
  const auto transposed = [&](double value) {
    return ShardedTensor{"w", ShardSpec::whole(shape), ctx.full({7, 5}, DType::F32, value).transpose(0, 1)};
  };
  const Layout layout{"transposed", 1, [&](RankContext&, int) { return std::vector{transposed(-1)}; }};
  save(ctx, dir.path(), layout, at_iteration(1));
  std::vector<ShardedTensor> back = {transposed(0)}, plain = {make_shard(ctx, "w", ShardSpec::whole(shape))};
  CheckpointReader reader(dir.path());
  reader.load(ctx, back);
  reader.load(ctx, plain);
  expect_filled(back, "transposed");
  expect_filled(plain, "plain");
}

TEST(Reshard, TrainingStateComesBack) {
  RankContext ctx;
  TempDir dir;
  TrainingState state{12,
                      3456,
                      78,
                      0xfedcba9876543210u,
                      Json::parse(R"({"model": {"hidden_size": 12}})"),
                      Json::parse(R"({"note": 65536.0})")};
  state.loss_scale = {32768, 17, 1};
  save(ctx, dir.path(), layouts()[0], state);
  const TrainingState back = CheckpointReader(dir.path()).state();
  EXPECT_EQ(back.iteration, 12);
  EXPECT_EQ(back.consumed_samples, 3456);
  EXPECT_EQ(back.consumed_valid_samples, 78);
  EXPECT_EQ(back.seed, 0xfedcba9876543210u);
  EXPECT_EQ(back.config, state.config);
  EXPECT_EQ(back.extra, state.extra);
  EXPECT_EQ(back.loss_scale, state.loss_scale);
}

TEST(Reshard, ListsWhatDoesNotFitTheModel) {
  RankContext ctx;
  TempDir dir;
  save(ctx, dir.path(), layouts()[0], at_iteration(1));
  const std::vector<ShardedTensor> wrong = {make_shard(ctx, "norm.wieght", ShardSpec::whole({hidden})),
                                            make_shard(ctx, "norm.weight", ShardSpec::whole({hidden + 1})),
                                            make_shard(ctx, "scale", ShardSpec::whole({}))};
  EXPECT_EQ(error_of([&] { CheckpointReader(dir.path()).load(ctx, wrong); }),
            "the checkpoint " + dir / "iter_0000001" +
                " does not fit the model:\n"
                "  norm.wieght: it is missing; did you mean 'norm.weight'?\n"
                "  norm.weight: the checkpoint has [12], the model [13]");
  EXPECT_EQ(wrong[2].tensor.data<float>()[0], -1) << "nothing is loaded where anything does not fit";
}

TEST(SavePlan, RanksMustAgreeAndHoldEverything) {
  const auto plan = [](std::vector<std::vector<ShardDescription>> ranks) {
    return error_of([&] { plan_save(ranks); });
  };
  EXPECT_EQ(
      plan({{{"w", DType::F32, ShardSpec::whole({4})}}, {{"w", DType::F32, ShardSpec::whole({5})}}}),
      "checkpoint: the ranks disagree about what to save:\n  w: rank 0 has it as fp32[4], rank 1 as fp32[5]");
  EXPECT_EQ(
      plan({{{"w", DType::F32, ShardSpec::split({4}, 0, 0, 4)}},
            {{"w", DType::F32, ShardSpec::split({4}, 0, 2, 4)}}}),
      "checkpoint: parts of the model are on no rank:\n  w: no piece holds [1:2]\n  w: no piece holds [3:4]");
}

TEST(FlatRange, CoversExactlyTheRange) {
  RankContext ctx;
  const Shape shape{3, 4, 5};
  const ShardSpec spec = ShardSpec::split({3, 8, 5}, 1, 1, 2);
  for (int64_t begin = 0; begin <= 60; ++begin) {
    for (int64_t end = begin; end <= 60; ++end) {
      std::vector<double> values;
      for (int64_t i = begin; i < end; ++i) values.push_back(static_cast<double>(i));
      std::vector<int> seen(60, 0);
      for (const ShardedTensor& piece : flat_range("w", spec, ctx.from_vector(values, {end - begin}), begin))
        for_each_element(piece, [&](int64_t global, int64_t local) {
          const int64_t i = global / 40, j = global / 5 % 8 - 4, k = global % 5, flat = (i * 4 + j) * 5 + k;
          EXPECT_EQ(piece.tensor.data<double>()[local], static_cast<double>(flat));
          ++seen[static_cast<size_t>(flat)];
        });
      for (int64_t i = 0; i < 60; ++i) ASSERT_EQ(seen[i], begin <= i && i < end ? 1 : 0);
    }
  }
}

}  // namespace
}  // namespace megatron
