// The rows of every struct, from the same .def files that declare its members.
#include "megatron/config/config.h"
#include "megatron/config/schema/conditions.h"

namespace megatron {

using namespace conditions;

// clang-format off
#define SECTION(type, object, section, title) \
  const Schema& type::rows() {                \
    using C = type;                           \
    static const Schema all = [] {            \
      Schema s(section, title);
#define SETTING(type, name, value, help, ...) s.field<&C::name>(#name, help) __VA_ARGS__;
#define END_SECTION return s; }(); return all; }
// clang-format on

#include "megatron/config/settings/sections.def"

}  // namespace megatron
