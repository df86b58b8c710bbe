#pragma once

#include <cstdint>
#include <memory>
#include <span>

namespace megatron {

// How far a text has come through what a constraint allows. One sequence has one.
class ConstraintState {
 public:
  virtual ~ConstraintState() = default;
  // Sets the bits of the tokens that may come next (token t is bit t % 32 of word t / 32) and clears the
  // rest; tokens that end a text are set where the text may end.
  virtual void allowed(std::span<uint32_t> bits) const = 0;
  virtual void advance(int64_t token) = 0;
};

// What a text must look like: a JSON schema, a regular expression or a list of choices over a vocabulary. It
// is compiled once and shared by all sequences that follow it.
class Constraint {
 public:
  virtual ~Constraint() = default;
  virtual std::unique_ptr<ConstraintState> start() const = 0;
};

}  // namespace megatron
