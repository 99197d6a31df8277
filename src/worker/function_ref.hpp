// A reference to a callable, for functions that are compiled once and not for every callable that they get. As
// std::function_ref of C++26, without what is not needed here.
#pragma once

#include <type_traits>

namespace ps_shm {

template <class Signature>
class FunctionRef;

template <class Result, class... Arguments>
class FunctionRef<Result(Arguments...)> {
 public:
  // Requires: `function` lives until the last call.
  template <class Function>
    requires(!std::is_same_v<Function, FunctionRef>)
  FunctionRef(const Function& function) noexcept
      : function_(&function), call_([](const void* of, Arguments... arguments) -> Result {
          return (*static_cast<const Function*>(of))(arguments...);
        }) {}

  Result operator()(Arguments... arguments) const { return call_(function_, arguments...); }

 private:
  const void* function_;
  Result (*call_)(const void* function, Arguments... arguments);
};

}  // namespace ps_shm
