// Which sanitizer a build has. Defines __SANITIZE_ADDRESS__ and __SANITIZE_THREAD__, as GCC does, in builds by Clang, too.
#pragma once

#if defined(__has_feature)
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#if __has_feature(thread_sanitizer) && !defined(__SANITIZE_THREAD__)
#define __SANITIZE_THREAD__ 1
#endif
#endif

namespace ps_shm::test {

// For what is repeated until something rare may have happened: sanitizers see it the first time, and take long.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace ps_shm::test
