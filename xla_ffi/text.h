// Text made of pieces.
//
// Not by streams: where libstdc++ is linked into the library, as with
// LDFLAGS=-static-libstdc++, its streams and those of the process disagree on which
// facet of a locale is which, and printing a number crashes.

#ifndef COOP_JAX_XLA_FFI_TEXT_H_
#define COOP_JAX_XLA_FFI_TEXT_H_

#include <string>

namespace coop_jax {

class Text {
 public:
  Text& operator<<(const std::string& piece) {
    text_ += piece;
    return *this;
  }
  Text& operator<<(const char* piece) {
    text_ += piece;
    return *this;
  }
  template <class Number>
  Text& operator<<(Number number) {
    text_ += std::to_string(number);
    return *this;
  }

  const std::string& str() const { return text_; }

 private:
  std::string text_;
};

}  // namespace coop_jax

#endif  // COOP_JAX_XLA_FFI_TEXT_H_
