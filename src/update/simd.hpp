// How arithmetic on arrays gets the processor's vector width.
#pragma once

// Before a function: one source, several widths, chosen once when the library is loaded. Sanitizers run before the
// choice could be made, so their builds have the default width only. The function is in an unnamed namespace: of any
// other the library would export the choice (GCC 12).
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__) && \
    !defined(__SANITIZE_ADDRESS__)
#define PS_SIMD_CLONES __attribute__((target_clones("default", "avx2", "avx512f")))
#else
#define PS_SIMD_CLONES
#endif

// Before a loop: no turn of it reads what another one writes, whatever the compiler can prove of its pointers.
#if defined(__clang__)
#define PS_SIMD_LOOP _Pragma("clang loop vectorize(assume_safety)")
#else
#define PS_SIMD_LOOP _Pragma("GCC ivdep")
#endif
