// The pickles are Python's own, of
//   {'a': [1, -5, 2**40, -2**40, 3.5, True, None, 'täxt', b'\x00\xff\x80', (), (1,), (1, 2, 3, 4)],
//    'o': OrderedDict(x=1, y=2), 'n': Namespace(lr=0.5, name='run', sig=SIGTERM), 's': {7},
//    'np': numpy.float32(1.5), 'ni': numpy.int64(-3), 'again': the list of 'a'}
#include "megatron/checkpoint/torch/pickle.h"

#include <gtest/gtest.h>

#include "megatron/base/error.h"
#include "megatron/checkpoint/torch/pickle_writer.h"

namespace megatron::testing {
namespace {

constexpr std::string_view kProtocol2 =
    "80027d71002858010000006171015d7102284b014afbffffff8a060000000000018a060000000000ff47400c00000000"
    "0000884e580500000074c3a478747103635f636f646563730a656e636f64650a7104580500000000c3bfc28071055806"
    "0000006c6174696e317106867107527108294b01857109284b014b024b034b0474710a6558010000006f710b63636f6c"
    "6c656374696f6e730a4f726465726564446963740a710c2952710d28580100000078710e4b01580100000079710f4b02"
    "7558010000006e71106361726770617273650a4e616d6573706163650a7111298171127d71132858020000006c727114"
    "473fe000000000000058040000006e616d657115580300000072756e711658030000007369677117637369676e616c0a"
    "5369676e616c730a71184b0f85711952711a7562580100000073711b635f5f6275696c74696e5f5f0a7365740a711c5d"
    "711d4b076185711e52711f58020000006e707120636e756d70792e5f636f72652e6d756c746961727261790a7363616c"
    "61720a7121636e756d70790a64747970650a71225802000000663471238988877124527125284b0358010000003c7126"
    "4e4e4e4affffffff4affffffff4b0074712762680458050000000000c3803f7128680686712952712a86712b52712c58"
    "020000006e69712d6821682258020000006938712e898887712f527130284b0368264e4e4e4affffffff4affffffff4b"
    "007471316268045810000000c3bdc3bfc3bfc3bfc3bfc3bfc3bfc3bf7132680686713352713486713552713658050000"
    "00616761696e71376802752e";
constexpr std::string_view kProtocol5 =
    "80059599010000000000007d94288c0161945d94284b014afbffffff8a060000000000018a060000000000ff47400c00"
    "0000000000884e8c0574c3a4787494430300ff8094294b018594284b014b024b034b047494658c016f948c0b636f6c6c"
    "656374696f6e73948c0b4f72646572656444696374949394295294288c0178944b018c0179944b02758c016e948c0861"
    "72677061727365948c094e616d6573706163659493942981947d94288c026c7294473fe00000000000008c046e616d65"
    "948c0372756e948c03736967948c067369676e616c948c075369676e616c739493944b0f8594529475628c0173948f94"
    "284b07908c026e70948c166e756d70792e5f636f72652e6d756c74696172726179948c067363616c61729493948c056e"
    "756d7079948c0564747970659493948c02663494898887945294284b038c013c944e4e4e4affffffff4affffffff4b00"
    "74946243040000c03f94869452948c026e6994682268258c02693894898887945294284b0368294e4e4e4affffffff4a"
    "ffffffff4b007494624308fdffffffffffffff94869452948c05616761696e946802752e";
// [1, an object whose reduction is os.system("touch …")]
constexpr std::string_view kHostile =
    "80025d7100284b0163706f7369780a73797374656d0a71015810000000746f756368202f746d702f70776e6564710285"
    "7103527104652e";

std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return bytes;
}

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

void expect_refused(const std::string& pickle, std::string_view words) {
  try {
    const PickleDocument document(bytes_of(pickle), "file.pt");
    FAIL() << "taken, though it holds " << words;
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    EXPECT_EQ(std::string(error.what()).find("file.pt: pickle, byte "), 0u) << error.what();
  }
}

TEST(Pickle, ReadsWhatPythonWrote) {
  for (std::string_view hex : {kProtocol2, kProtocol5}) {
    const std::string pickle = from_hex(hex);
    const PickleDocument document(bytes_of(pickle), "file.pt");
    const PickleValue& root = document.root();
    const auto& list = root.find("a")->items;
    ASSERT_EQ(list.size(), 12u);
    EXPECT_EQ(list[0]->integer, 1);
    EXPECT_EQ(list[1]->integer, -5);
    EXPECT_EQ(list[2]->integer, int64_t{1} << 40);
    EXPECT_EQ(list[3]->integer, -(int64_t{1} << 40));
    EXPECT_EQ(list[4]->real, 3.5);
    EXPECT_TRUE(list[5]->is(PickleKind::boolean) && list[5]->boolean);
    EXPECT_TRUE(list[6]->is(PickleKind::none));
    EXPECT_EQ(list[7]->text, "täxt");
    EXPECT_TRUE(list[8]->is(PickleKind::bytes));
    EXPECT_EQ(list[8]->text, std::string_view("\0\xff\x80", 3));
    EXPECT_EQ(list[9]->items.size(), 0u);
    EXPECT_EQ(list[11]->items.size(), 4u);
    EXPECT_EQ(root.find("o")->find("y")->integer, 2);
    const PickleValue& run = *root.find("n");
    EXPECT_TRUE(run.is_object("argparse.Namespace"));
    EXPECT_EQ(run.find("lr")->real, 0.5);
    EXPECT_EQ(run.find("none"), nullptr);
    EXPECT_EQ(root.find("s")->items.at(0)->integer, 7);
    EXPECT_EQ(root.find("np")->real, 1.5);
    EXPECT_EQ(root.find("ni")->integer, -3);
    EXPECT_EQ(root.find("again"), root.find("a"));
    const Json json = to_json(run, "file.pt");
    EXPECT_EQ(json.dump(), R"({"lr":0.5,"name":"run","sig":15})");
  }
}

TEST(Pickle, RefusesOtherClassesByName) {
  expect_refused(from_hex(kHostile), "posix.system");
  expect_refused(
      "\x80\x02"
      "cbuiltins\neval\n.",
      "builtins.eval");
  expect_refused(
      "\x80\x02"
      "ctorch\nload\n.",
      "torch.load");
  expect_refused(
      "\x80\x02"
      "ctorch\nfloat32\n(tR.",
      "torch.float32");
}

TEST(Pickle, RefusesWhatIsMalformed) {
  expect_refused("\x80\x07N.", "protocol 7");
  expect_refused(
      "\x80\x02"
      "I1\n.",
      "opcode 0x49");
  expect_refused(
      "\x80\x02"
      "X\xff\xff\xff\xff"
      "a.",
      "ends early");
  expect_refused("\x80\x02", "ends early");
  expect_refused("\x80\x02.", "missing on the stack");
  expect_refused("\x80\x02(.", "missing on the stack");
  expect_refused(
      "\x80\x02"
      "h\x05.",
      "memo 5");
  expect_refused("\x80\x02}(K\x01u.", "no value");
  expect_refused(
      "\x80\x02K\x01K\x02"
      "a.",
      "appended to an integer");
  expect_refused(
      "\x80\x02"
      "e.",
      "mark is missing");
}

// Lists that hold the one before twice describe 2^60 values in 300 bytes.
TEST(Pickle, SharedPartsDoNotMultiply) {
  std::string pickle = "\x80\x02]q";
  pickle += '\0';
  for (char i = 0; i < 60; ++i) {
    pickle += "](h";
    pickle += i;
    pickle += 'h';
    pickle += i;
    pickle += "eq";
    pickle += static_cast<char>(i + 1);
  }
  pickle += '.';
  const PickleDocument document(bytes_of(pickle), "file.pt");
  EXPECT_THROW(to_json(document.root(), "file.pt"), ConfigError);
  // One that holds itself.
  std::string cycle = "\x80\x02]q";
  cycle += '\0';
  cycle += 'h';
  cycle += '\0';
  cycle += "a.";
  const PickleDocument round(bytes_of(cycle), "file.pt");
  EXPECT_THROW(to_json(round.root(), "file.pt"), ConfigError);
}

TEST(Pickle, WriterAndReaderAgree) {
  const Json value = Json::parse(R"({"a": [1, -2, 3000000000, 0.25, "text", null, true], "b": {"c": []}})");
  PickleWriter writer;
  writer.json(value);
  const std::string pickle = writer.finish();
  EXPECT_EQ(to_json(PickleDocument(bytes_of(pickle), "x").root(), "x"), value);
}

}  // namespace
}  // namespace megatron::testing
