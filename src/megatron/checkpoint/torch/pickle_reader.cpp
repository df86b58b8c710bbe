#include "megatron/checkpoint/torch/pickle_reader.h"

#include <bit>

#include "megatron/base/error.h"

namespace megatron {

namespace {

// Numbers of pickle's opcodes, by the names that Python's pickletools gives them.
enum Op : uint8_t {
  MARK = '(',
  STOP = '.',
  POP = '0',
  POP_MARK = '1',
  DUP = '2',
  BINFLOAT = 'G',
  BININT = 'J',
  BININT1 = 'K',
  BININT2 = 'M',
  NONE = 'N',
  BINPERSID = 'Q',
  REDUCE = 'R',
  BINSTRING = 'T',
  SHORT_BINSTRING = 'U',
  BINUNICODE = 'X',
  APPEND = 'a',
  BUILD = 'b',
  GLOBAL = 'c',
  EMPTY_LIST = ']',
  EMPTY_DICT = '}',
  EMPTY_TUPLE = ')',
  APPENDS = 'e',
  BINGET = 'h',
  LONG_BINGET = 'j',
  BINPUT = 'q',
  LONG_BINPUT = 'r',
  SETITEM = 's',
  TUPLE = 't',
  SETITEMS = 'u',
  BINBYTES = 'B',
  SHORT_BINBYTES = 'C',
  PROTO = 0x80,
  NEWOBJ = 0x81,
  TUPLE1 = 0x85,
  TUPLE2 = 0x86,
  TUPLE3 = 0x87,
  NEWTRUE = 0x88,
  NEWFALSE = 0x89,
  LONG1 = 0x8a,
  LONG4 = 0x8b,
  SHORT_BINUNICODE = 0x8c,
  BINUNICODE8 = 0x8d,
  BINBYTES8 = 0x8e,
  EMPTY_SET = 0x8f,
  ADDITEMS = 0x90,
  FROZENSET = 0x91,
  NEWOBJ_EX = 0x92,
  STACK_GLOBAL = 0x93,
  MEMOIZE = 0x94,
  FRAME = 0x95,
  BYTEARRAY8 = 0x96,
};

constexpr size_t kMaxName = 128;  // of a module or a class

}  // namespace

PickleReader::PickleReader(PickleDocument& document, std::span<const std::byte> data,
                           const std::string& origin)
    : document_(document), data_(data), origin_(origin) {
  none_ = &make(PickleKind::none);
  true_ = &make(PickleKind::boolean);
  true_->boolean = true;
  false_ = &make(PickleKind::boolean);
  empty_tuple_ = &make(PickleKind::tuple);
}

void PickleReader::read() {
  while (step(static_cast<uint8_t>(number(1)))) continue;
  document_.root_ = &pop();
}

uint64_t PickleReader::number(size_t count) {
  const std::string_view text = bytes(count);
  uint64_t value = 0;
  for (size_t i = 0; i < count; ++i) value |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * i);
  return value;
}

std::string_view PickleReader::bytes(uint64_t count) {
  if (count > data_.size() - at_)
    refuse("it ends early ({} bytes wanted, {} are left); copy the file again", count, data_.size() - at_);
  const std::string_view text(reinterpret_cast<const char*>(data_.data()) + at_, count);
  at_ += count;
  return text;
}

std::string_view PickleReader::line() {
  const std::string_view rest(reinterpret_cast<const char*>(data_.data()) + at_, data_.size() - at_);
  const size_t end = rest.find('\n');
  if (end == std::string_view::npos) refuse("it ends early, within a name; copy the file again");
  at_ += end + 1;
  return rest.substr(0, end);
}

int64_t PickleReader::long_integer(uint64_t count) {
  const std::string_view text = bytes(count);
  const bool negative = !text.empty() && static_cast<int8_t>(text.back()) < 0;
  uint64_t value = negative ? ~uint64_t{0} : 0;
  for (size_t i = 0; i < text.size() && i < 8; ++i) {
    value &= ~(uint64_t{0xff} << (8 * i));
    value |= uint64_t{static_cast<uint8_t>(text[i])} << (8 * i);
  }
  // Wider ones, such as states of random numbers, keep their low bits: nothing computes with them.
  return static_cast<int64_t>(value);
}

PickleValue& PickleReader::make(PickleKind kind) {
  PickleValue& value = document_.values_.emplace_back();
  value.kind = kind;
  return value;
}

PickleValue& PickleReader::pop() {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() <= floor) refuse("a value is missing on the stack");
  PickleValue* value = stack_.back();
  stack_.pop_back();
  return *value;
}

PickleValue& PickleReader::top() {
  PickleValue& value = pop();
  push(&value);
  return value;
}

std::vector<const PickleValue*> PickleReader::pop_mark() {
  if (marks_.empty()) refuse("a mark is missing");
  std::vector<const PickleValue*> items(stack_.begin() + static_cast<int64_t>(marks_.back()), stack_.end());
  stack_.resize(marks_.back());
  marks_.pop_back();
  return items;
}

void PickleReader::push_text(PickleKind kind, std::string_view text) {
  PickleValue& value = make(kind);
  value.text = text;
  push(&value);
}

void PickleReader::push_tuple(size_t count) {
  PickleValue& value = make(PickleKind::tuple);
  value.items.resize(count);
  for (size_t i = count; i > 0; --i) value.items[i - 1] = &pop();
  push(&value);
}

void PickleReader::memoize(uint64_t index) { memo_[index] = &top(); }

void PickleReader::recall(uint64_t index) {
  const auto found = memo_.find(index);
  if (found == memo_.end()) refuse("memo {} was never set", index);
  push(found->second);
}

bool PickleReader::step(uint8_t op) {
  if (op == STOP) return false;
  if (!step_value(op) && !step_structure(op))
    refuse(
        "opcode 0x{:02x} is not one that torch.save writes with pickle protocols 2 to 5; save the file again "
        "with PyTorch's defaults",
        op);
  return true;
}

// Numbers, texts and the memo.
bool PickleReader::step_value(uint8_t op) {
  switch (op) {
    case PROTO:
      if (const uint64_t protocol = number(1); protocol < 2 || protocol > 5)
        refuse("protocol {}, expected 2 to 5", protocol);
      return true;
    case FRAME:
      if (const uint64_t size = number(8); size > data_.size() - at_)
        refuse("it ends early (a frame of {} bytes, {} are left)", size, data_.size() - at_);
      return true;
    case NONE:
      return push(none_), true;
    case NEWTRUE:
      return push(true_), true;
    case NEWFALSE:
      return push(false_), true;
    case BININT:
    case BININT1:
    case BININT2:
    case LONG1:
    case LONG4: {
      PickleValue& value = make(PickleKind::integer);
      value.integer = op == BININT    ? static_cast<int32_t>(number(4))
                      : op == BININT1 ? static_cast<int64_t>(number(1))
                      : op == BININT2 ? static_cast<int64_t>(number(2))
                                      : long_integer(number(op == LONG1 ? 1 : 4));
      return push(&value), true;
    }
    case BINFLOAT: {
      uint64_t bits = 0;
      for (char c : bytes(8)) bits = bits << 8 | static_cast<uint8_t>(c);
      PickleValue& value = make(PickleKind::real);
      value.real = std::bit_cast<double>(bits);
      return push(&value), true;
    }
    case BINUNICODE:
    case BINSTRING:
      return push_text(PickleKind::text, bytes(number(4))), true;
    case SHORT_BINUNICODE:
    case SHORT_BINSTRING:
      return push_text(PickleKind::text, bytes(number(1))), true;
    case BINUNICODE8:
      return push_text(PickleKind::text, bytes(number(8))), true;
    case BINBYTES:
      return push_text(PickleKind::bytes, bytes(number(4))), true;
    case SHORT_BINBYTES:
      return push_text(PickleKind::bytes, bytes(number(1))), true;
    case BINBYTES8:
    case BYTEARRAY8:
      return push_text(PickleKind::bytes, bytes(number(8))), true;
    case BINPUT:
      return memoize(number(1)), true;
    case LONG_BINPUT:
      return memoize(number(4)), true;
    case MEMOIZE:
      return memoize(memo_.size()), true;
    case BINGET:
      return recall(number(1)), true;
    case LONG_BINGET:
      return recall(number(4)), true;
    default:
      return false;
  }
}

// Containers, classes and objects.
bool PickleReader::step_structure(uint8_t op) {
  switch (op) {
    case MARK:
      return marks_.push_back(stack_.size()), true;
    case POP:
      if (!marks_.empty() && marks_.back() == stack_.size())
        marks_.pop_back();
      else
        pop();
      return true;
    case POP_MARK:
      return pop_mark(), true;
    case DUP:
      return push(&top()), true;
    case EMPTY_TUPLE:
      return push(empty_tuple_), true;
    case EMPTY_LIST:
    case EMPTY_SET:
      return push(&make(PickleKind::list)), true;
    case EMPTY_DICT:
      return push(&make(PickleKind::dict)), true;
    case TUPLE:
    case FROZENSET: {
      std::vector<const PickleValue*> items = pop_mark();
      PickleValue& value = make(op == TUPLE ? PickleKind::tuple : PickleKind::list);
      value.items = std::move(items);
      return push(&value), true;
    }
    case TUPLE1:
    case TUPLE2:
    case TUPLE3:
      return push_tuple(static_cast<size_t>(op - TUPLE1) + 1), true;
    case APPEND: {
      const PickleValue* item = &pop();
      return append({&item, 1}), true;
    }
    case APPENDS:
    case ADDITEMS:
      return append(pop_mark()), true;
    case SETITEM: {
      const PickleValue* value = &pop();
      const PickleValue* key = &pop();
      const PickleValue* pair[] = {key, value};
      return set_items(pair), true;
    }
    case SETITEMS:
      return set_items(pop_mark()), true;
    case GLOBAL: {
      const std::string_view module = line();
      return push_global(module, line()), true;
    }
    case STACK_GLOBAL: {
      const PickleValue &name = pop(), &module = pop();
      if (!name.is(PickleKind::text) || !module.is(PickleKind::text)) refuse("a class without a name");
      return push_global(module.text, name.text), true;
    }
    case REDUCE:
      return call(), true;
    case NEWOBJ_EX:
      pop();  // keyword arguments
      [[fallthrough]];
    case NEWOBJ: {
      const PickleValue &arguments = pop(), &of_class = pop();
      return new_object(of_class, arguments), true;
    }
    case BUILD:
      return build(), true;
    case BINPERSID:
      return persistent(), true;
    default:
      return false;
  }
}

void PickleReader::push_global(std::string_view module, std::string_view name) {
  if (module.size() > kMaxName || name.size() > kMaxName) refuse("the name of a class is too long");
  if (pickle_class(module, name) == PickleClass::unknown)
    refuse(
        "it holds {}.{}, which is not a tensor or a plain value; save the checkpoint without it, nothing of "
        "it was run",
        module, name);
  PickleValue& value = make(PickleKind::global);
  value.text = document_.texts_.emplace_back(fmt::format("{}.{}", module, name));
  push(&value);
}

void PickleReader::append(std::span<const PickleValue* const> items) {
  PickleValue& list = top();
  if (!list.is(PickleKind::list)) refuse("elements are appended to {}", name_of(list.kind));
  list.items.insert(list.items.end(), items.begin(), items.end());
}

void PickleReader::set_items(std::span<const PickleValue* const> pairs) {
  PickleValue& dict = top();
  if (!dict.is(PickleKind::dict)) refuse("entries are added to {}", name_of(dict.kind));
  if (pairs.size() % 2 != 0) refuse("a key has no value");
  dict.items.insert(dict.items.end(), pairs.begin(), pairs.end());
}

void PickleReader::build() {
  const PickleValue& state = pop();
  PickleValue& target = top();
  if (target.is(PickleKind::object))
    target.items.resize(1), target.items.push_back(&state);
  else if (!target.is(PickleKind::dict) && !target.is(PickleKind::tensor))  // attributes of those are hints
    refuse("attributes are set on {}", name_of(target.kind));
}

// ("storage", type, key, location, elements), as torch.save names the files beside the pickle.
void PickleReader::persistent() {
  const PickleValue& id = pop();
  const auto& items = id.items;
  if (!id.is(PickleKind::tuple) || items.size() < 5 || !items[0]->is(PickleKind::text) ||
      items[0]->text != "storage" || !items[1]->is(PickleKind::global) || !items[2]->is(PickleKind::text) ||
      !items[4]->is(PickleKind::integer) || items[4]->integer < 0)
    refuse("a reference to another file that is not a tensor's storage");
  PickleValue& value = make(PickleKind::storage);
  value.items = {items[1], items[2], items[4]};
  push(&value);
}

}  // namespace megatron
