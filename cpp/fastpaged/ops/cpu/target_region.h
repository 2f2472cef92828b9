// Target regions: the functions between BEGIN and END are compiled for an instruction set that the rest of the program
// does not assume.
//
// Why not -mavx512f for the file: it would apply to every inline function of the headers too, and the linker may pick
// such a copy for the whole program. So: include everything first, then open a region, and define only functions of
// internal linkage inside. No templates of the standard library are called there (their copies would be shared).
#pragma once

// What the tables need; CpuFeatures::avx2_fma and avx512_bf16 say whether this CPU has it.
#define FASTPAGED_AVX2_FEATURES "avx2,fma,f16c"
#define FASTPAGED_AVX512_FEATURES "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512bf16"

#define FASTPAGED_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define FASTPAGED_BEGIN_TARGET(features) \
  FASTPAGED_PRAGMA(clang attribute push(__attribute__((target(features))), apply_to = function))
#define FASTPAGED_END_TARGET FASTPAGED_PRAGMA(clang attribute pop)
#else
#define FASTPAGED_BEGIN_TARGET(features) \
  FASTPAGED_PRAGMA(GCC push_options)     \
  FASTPAGED_PRAGMA(GCC target(features))
#define FASTPAGED_END_TARGET FASTPAGED_PRAGMA(GCC pop_options)
#endif
