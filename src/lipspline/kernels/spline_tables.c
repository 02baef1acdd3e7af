/* From the coefficients of linear splines to the tables of piecewise_affine, and backward.
 *
 * For each row of c (K coefficients, T apart in [-radius, radius], R = K - 1 regions) and its scale:
 *
 *     s_j = clip((c_{j+1} - c_j) / T)          slopes
 *     v_k = m + T (sum_{i<k} s_i - average)    knot values with the mean m of c
 *     b_j = (v_j - s_j t_j) / scale            intercepts, t_j the left knot
 */
#include <float.h>
#include <math.h>
#include <stdint.h>

#include "parallel.h"
#include "spline_tables.h"

#define GRAIN 16384 /* coefficients below which a second thread costs more than it brings */

typedef struct {
    const void *c, *scale, *gb, *gs;
    void *b, *s, *gc, *gscale;
    double radius, low, high;
    int64_t regions;
} job_t;

typedef struct {
    item_fn forward, backward;
} loops_t;

#define BODY "spline_tables_body.h"
#include "instances.h"

static int run(item_fn item, const job_t *job, int64_t rows, int threads) {
    const size_t scratch = (size_t)job->regions * 2 * sizeof(double);
    return lipspline_share(item, job, rows, scratch, rows * job->regions < GRAIN ? 1 : threads);
}

int lipspline_spline_tables(int bits, const void *c, const void *scale, double radius, double low, double high,
                            int64_t rows, int64_t regions, void *b, void *s, int threads) {
    const job_t job = {.c = c, .scale = scale, .b = b, .s = s, .radius = radius, .low = low, .high = high,
                       .regions = regions};
    return run(LOOPS[lipspline_instruction_set()][bits == 64]->forward, &job, rows, threads);
}

int lipspline_spline_tables_backward(int bits, const void *gb, const void *gs, const void *c, const void *scale,
                                     double radius, double low, double high, int64_t rows, int64_t regions, void *gc,
                                     void *gscale, int threads) {
    const job_t job = {.gb = gb, .gs = gs, .c = c, .scale = scale, .gc = gc, .gscale = gscale, .radius = radius,
                       .low = low, .high = high, .regions = regions};
    return run(LOOPS[lipspline_instruction_set()][bits == 64]->backward, &job, rows, threads);
}
