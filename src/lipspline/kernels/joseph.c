/* Sums of linear interpolations along sheared lines, and their transpose, on four interleaved lanes.
 *
 *     out[b, i, j, :] = sum over k of  (1 - f) src[b, k, n, :] + f src[b, k, n + 1, :],
 *     n + f = start[i, k] + j step[i, k],   0 <= f <= 1;   positions outside [0, L - 1] add nothing.
 *
 * Shapes: src (B, K, L, 4), out (B, I, J, 4), start and step (I, K) in double, step > 0, L >= 2.
 * Rays that fan out cross the k-th row at positions that are affine in k instead: `ray_sums` and `ray_spread` take
 *
 *     n + f = start[i, j] + k step[i, j]     with start and step (I, J), step of either sign.
 *
 * Four lanes, because a square has four symmetries that turn a ray into others with the same positions: each position is
 * computed once and both neighbours of all lanes lie side by side in memory, so nothing is gathered.
 */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "instruction_set.h"
#include "parallel.h"

#define RAYS 32 /* of a fan that are summed together */
#define ROWS 4  /* of an image that rays are spread to together */

typedef struct {
    const void *from;          /* src, or the data to spread */
    const double *start, *step;
    void *to;
    int64_t I, J, K, L;
} job_t;

typedef struct {
    item_fn sums, spread, ray_sums, ray_spread;
    size_t size;
} loops_t;

/* Scratch memory of an item: `pairs` sums of eight numbers on a cache line's boundary, then fraction and entry of J rays. */
static size_t scratch_size(int64_t pairs, int64_t J, size_t size) {
    return 64 + (size_t)pairs * 8 * size + (size_t)J * (size + sizeof(int32_t));
}

static void *on_a_line(void *scratch) { return (void *)(((uintptr_t)scratch + 63) & ~(uintptr_t)63); }

/* The j whose position lies inside [0, L - 1]: first <= j < end. */
static void inside(double start, double step, int64_t J, int64_t L, int64_t *first, int64_t *end) {
    const double low = ceil(-start / step), high = floor(((double)(L - 1) - start) / step) + 1;
    *first = low <= 0 ? 0 : low >= (double)J ? J : (int64_t)low;
    *end = high <= 0 ? 0 : high >= (double)J ? J : (int64_t)high;
}

/* The same for a step that may be negative or zero. */
static void inside_either_way(double start, double step, int64_t K, int64_t L, int64_t *first, int64_t *end) {
    if (step > 0) {
        inside(start, step, K, L, first, end);
    } else if (step < 0) { /* seen from the other end of the row the position grows */
        inside((double)(L - 1) - start, -step, K, L, first, end);
    } else {
        *first = 0;
        *end = start >= 0 && start <= (double)(L - 1) ? K : 0;
    }
}

#define TARGET
#define REAL float
#define NAME(f) f##_f32_baseline
#include "joseph_body.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(f) f##_f64_baseline
#include "joseph_body.h"
#undef REAL
#undef NAME
#undef TARGET

#if X86
#define TARGET TARGET_AVX2
#define REAL float
#define NAME(f) f##_f32_avx2
#include "joseph_body.h"
#undef REAL
#undef NAME
#define REAL double
#define NAME(f) f##_f64_avx2
#include "joseph_body.h"
#undef REAL
#undef NAME
#undef TARGET

static const loops_t *const LOOPS[][2] = {{&loops_f32_baseline, &loops_f64_baseline}, {&loops_f32_avx2, &loops_f64_avx2}};
#else
static const loops_t *const LOOPS[][2] = {{&loops_f32_baseline, &loops_f64_baseline}};
#endif

static const loops_t *loops_for(int bits) { return LOOPS[lipspline_instruction_set() > 0][bits == 64]; }

/* Both return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

int lipspline_line_sums(int bits, const void *src, const double *start, const double *step, void *out, int64_t B, int64_t I,
                        int64_t J, int64_t K, int64_t L, int threads) {
    const job_t job = {src, start, step, out, I, J, K, L};
    const loops_t *loops = loops_for(bits);
    return lipspline_share(loops->sums, &job, B * I, scratch_size(J, J, loops->size), threads);
}

int lipspline_line_spread(int bits, const void *y, const double *start, const double *step, void *dst, int64_t B, int64_t I,
                          int64_t J, int64_t K, int64_t L, int threads) {
    const job_t job = {y, start, step, dst, I, J, K, L};
    const loops_t *loops = loops_for(bits);
    return lipspline_share(loops->spread, &job, B * K, scratch_size(L, J, loops->size), threads);
}

int lipspline_ray_sums(int bits, const void *src, const double *start, const double *step, void *out, int64_t B, int64_t I,
                       int64_t J, int64_t K, int64_t L, int threads) {
    const job_t job = {src, start, step, out, I, J, K, L};
    const loops_t *loops = loops_for(bits);
    return lipspline_share(loops->ray_sums, &job, B * I, scratch_size(RAYS, 0, loops->size), threads);
}

int lipspline_ray_spread(int bits, const void *y, const double *start, const double *step, void *dst, int64_t B, int64_t I,
                         int64_t J, int64_t K, int64_t L, int threads) {
    const job_t job = {y, start, step, dst, I, J, K, L};
    const loops_t *loops = loops_for(bits);
    return lipspline_share(loops->ray_spread, &job, B * ((K + ROWS - 1) / ROWS), scratch_size(ROWS * (L + 1), J, loops->size),
                           threads);
}
