// Thrust's iterator over numbers, to the extent that kernels/ uses it.
#pragma once

namespace thrust {

template <class T>
class counting_iterator {
 public:
  explicit counting_iterator(T first) : first_(first) {}
  T operator[](int i) const { return static_cast<T>(first_ + static_cast<T>(i)); }

 private:
  T first_;
};

}  // namespace thrust
