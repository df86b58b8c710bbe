#include <gtest/gtest.h>

#include <fstream>

#include "megatron/base/error.h"
#include "megatron/base/mapped_file.h"
#include "megatron/datasets/images/image_processor.h"
#include "megatron/datasets/images/tar_file.h"
#include "support/golden.h"
#include "support/temp_dir.h"

// Image files and what the processors of transformers make of them.
namespace megatron {
namespace {

using testing::golden_path;
using testing::to_doubles;

const char* const kFiles[] = {"rgb.png",     "small.png",  "wide.png",        "large.png", "alpha.png",
                              "palette.png", "gray.png",   "bits.png",        "photo.jpg", "photo444.jpg",
                              "gray.jpg",    "turned.jpg", "progressive.jpg", "plain.ppm"};

std::string image_path(const std::string& name) { return golden_path("vision", "images/" + name); }

VisionConfig tower(const std::string& kind) {
  VisionConfig vision;
  vision.vision_tower = kind == "qwen"    ? VisionTowerKind::qwen2_5
                        : kind == "gemma" ? VisionTowerKind::siglip
                                          : VisionTowerKind::clip;
  vision.vision_image_size = kind == "gemma" ? 56 : 42;
  return vision;
}

ImageProcessor processor(const std::string& kind) {
  const Json all = Json::read(image_path("processors.json"));
  return {tower(kind), all.at(kind), "processors.json"};
}

// [1, 3, height, width] from patches in rows.
std::vector<double> as_planes(const ImagePatches& patches, int64_t side) {
  const int64_t wide = patches.grids[0].columns, high = patches.grids[0].rows, width = wide * side;
  std::vector<double> planes(patches.pixels.size());
  for (int64_t p = 0; p < wide * high; ++p)
    for (int64_t k = 0; k < 3 * side * side; ++k) {
      const int64_t c = k / (side * side), y = p / wide * side + k / side % side,
                    x = p % wide * side + k % side;
      planes[static_cast<size_t>((c * high * side + y) * width + x)] =
          patches.pixels[static_cast<size_t>(p * patches.features + k)];
    }
  return planes;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted, const std::string& what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  for (size_t i = 0; i < got.size(); ++i) ASSERT_NEAR(got[i], wanted[i], 1e-6) << what << " at " << i;
}

TEST(ImageFiles, AreDecodedToTheByte) {
  const SafetensorsFile expected(image_path("expected.safetensors"));
  for (const std::string name : kFiles) {
    const Image image = read_image(image_path(name));
    const Tensor wanted = expected.tensor("decoded/" + name);
    ASSERT_EQ((Shape{image.height, image.width, 3}), wanted.shape()) << name;
    const auto* bytes = wanted.data<uint8_t>();
    EXPECT_EQ(image.rgb, std::vector<uint8_t>(bytes, bytes + wanted.numel())) << name;
  }
}

TEST(ImageProcessors, OfQwenGiveItsPatches) {
  const SafetensorsFile expected(image_path("expected.safetensors"));
  const ImageProcessor process = processor("qwen");
  for (const std::string name : kFiles) {
    const ImagePatches patches = process(read_image(image_path(name)));
    EXPECT_EQ((std::vector<double>{1, static_cast<double>(patches.grids[0].rows),
                                   static_cast<double>(patches.grids[0].columns)}),
              to_doubles(expected.tensor("qwen/" + name + "/grid")));
    expect_near({patches.pixels.begin(), patches.pixels.end()}, to_doubles(expected.tensor("qwen/" + name)),
                name);
  }
}

TEST(ImageProcessors, OfGemmaAndClipGiveTheirPixels) {
  const SafetensorsFile expected(image_path("expected.safetensors"));
  for (const std::string kind : {"gemma", "clip"})
    for (const std::string name : kFiles)
      expect_near(as_planes(processor(kind)(read_image(image_path(name))), 14),
                  to_doubles(expected.tensor(kind + "/" + name)), kind + " " + name);
}

TEST(ImageProcessors, OfGemmaAtItsRealSize) {
  VisionConfig vision = tower("gemma");
  vision.vision_image_size = 896;
  const ImageProcessor process(vision, Json::object(), "usual");
  const std::vector<double> all = as_planes(process(read_image(image_path("large.png"))), 14);
  std::vector<double> some;
  for (size_t i = 0; i < all.size(); i += 97) some.push_back(all[i]);
  expect_near(some,
              to_doubles(SafetensorsFile(image_path("expected.safetensors")).tensor("gemma896/large.png")),
              "896");
}

TEST(ImageProcessors, OfQwenKeepTheRatioOfSides) {
  const ImageProcessor process(tower("qwen"), Json::object(), "usual");
  const std::vector<double> rows =
      to_doubles(SafetensorsFile(image_path("expected.safetensors")).tensor("smart_resize"));
  for (size_t i = 0; i < rows.size(); i += 4) {
    const auto height = static_cast<int64_t>(rows[i]), width = static_cast<int64_t>(rows[i + 1]);
    const auto size = process.size_of(width, height, "x");
    EXPECT_EQ(static_cast<double>(size[1]), rows[i + 2]) << height << " x " << width;
    EXPECT_EQ(static_cast<double>(size[0]), rows[i + 3]) << height << " x " << width;
  }
  EXPECT_THROW(process.size_of(201, 1, "x"), ConfigError);
}

TEST(ImageFiles, SpoiledOnesAreRefused) {
  for (const std::string name : {"rgb.png", "photo.jpg", "plain.ppm"}) {
    const MappedFile file(image_path(name));
    for (size_t part : {size_t{3}, file.bytes().size() / 3, file.bytes().size() - 60})
      EXPECT_THROW(decode_image(file.bytes().first(part), name), ConfigError) << name << " " << part;
  }
  const std::string gif = "GIF89a";
  EXPECT_THROW(decode_image(std::as_bytes(std::span(gif)), "x.gif"), ConfigError);
}

TEST(TarFiles, GiveTheirMembers) {
  const TarFile tar(golden_path("vision", "llava/data.tar"));
  ASSERT_EQ(tar.members().size(), 6u);
  EXPECT_EQ(tar.members()[0].name, "part/0000.json");
  EXPECT_EQ(tar.members()[1].name, "part/0000.0.png");
  const MappedFile image(golden_path("vision", "llava/a.png"));
  const auto bytes = tar.bytes(tar.members()[1]);
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), image.bytes().begin(), image.bytes().end()));
  const testing::TempDir folder;
  const std::string path = folder / "spoiled.tar";
  std::ofstream(path) << std::string(600, 'x');
  EXPECT_THROW(TarFile{path}, ConfigError);
}

}  // namespace
}  // namespace megatron
