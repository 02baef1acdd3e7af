/* Includes the file BODY once for each number type and instruction set.
 *
 * BODY sees the macros REAL (float or double), SINGLE (1 for float), TARGET (an attribute for every function) and NAME(f)
 * (f with a suffix of its own). It must define NAME(loops) of type loops_t; LOOPS[instruction set][is double] finds them.
 */
#include "instruction_set.h"

#define TARGET
#define REAL float
#define SINGLE 1
#define NAME(f) f##_f32_baseline
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#define REAL double
#define SINGLE 0
#define NAME(f) f##_f64_baseline
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#undef TARGET

#if X86
#define TARGET TARGET_AVX2
#define REAL float
#define SINGLE 1
#define NAME(f) f##_f32_avx2
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#define REAL double
#define SINGLE 0
#define NAME(f) f##_f64_avx2
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#undef TARGET

#define TARGET TARGET_AVX512
#define REAL float
#define SINGLE 1
#define NAME(f) f##_f32_avx512
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#define REAL double
#define SINGLE 0
#define NAME(f) f##_f64_avx512
#include BODY
#undef REAL
#undef SINGLE
#undef NAME
#undef TARGET

static const loops_t *const LOOPS[][2] = {{&loops_f32_baseline, &loops_f64_baseline},
                                          {&loops_f32_avx2, &loops_f64_avx2},
                                          {&loops_f32_avx512, &loops_f64_avx512}};
#else
static const loops_t *const LOOPS[][2] = {{&loops_f32_baseline, &loops_f64_baseline}};
#endif
