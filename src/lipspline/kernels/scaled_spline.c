/* A learned spline from its coefficients to its output in one call, and backward: tables, then elements. */
#include <stdlib.h>

#include "piecewise_affine.h"
#include "spline_tables.h"

typedef struct {
    void *b, *s, *rate;
} tables_t;

/* The caller's buffer of rows * (2 regions + 1) numbers: intercepts, slopes, and regions per unit of x. */
static tables_t parts(void *tables, int bits, int64_t rows, int64_t regions) {
    const int64_t size = rows * regions * bits / 8;
    return (tables_t){tables, (char *)tables + size, (char *)tables + 2 * size};
}

/* Both return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

int lipspline_scaled_spline(int bits, const void *x, const void *c, const void *scale, double radius, double low,
                            double high, int64_t groups, int64_t outer, int64_t channels, int64_t inner, int64_t regions,
                            void *tables, void *y, int threads) {
    const int64_t rows = groups * channels;
    const tables_t t = parts(tables, bits, rows, regions);
    const double step = 2 * radius / (double)regions;
    for (int64_t row = 0; row < rows; row++)
        if (bits == 64)
            ((double *)t.rate)[row] = ((const double *)scale)[row] / step;
        else
            ((float *)t.rate)[row] = ((const float *)scale)[row] / (float)step;
    return lipspline_spline_tables(bits, c, scale, radius, low, high, rows, regions, t.b, t.s, threads) ||
                   lipspline_piecewise_affine(bits, x, t.b, t.s, t.rate, (double)regions / 2, groups, outer, channels,
                                              inner, regions, y, threads)
               ? -1
               : 0;
}

/* `glog` is the gradient of the logarithm of scale. */
int lipspline_scaled_spline_backward(int bits, const void *g, const void *x, const void *c, const void *scale,
                                     double radius, double low, double high, int64_t groups, int64_t outer,
                                     int64_t channels, int64_t inner, int64_t regions, void *tables, void *gx, void *gc,
                                     void *glog, int threads) {
    const int64_t rows = groups * channels, size = rows * regions * bits / 8;
    const tables_t t = parts(tables, bits, rows, regions);
    char *gb = malloc((size_t)(2 * size)), *gs = gb + size;
    const int failed =
        !gb ||
        lipspline_piecewise_affine_backward(bits, g, x, t.s, t.rate, (double)regions / 2, groups, outer, channels, inner,
                                            regions, gx, gb, gs, threads) ||
        lipspline_spline_tables_backward(bits, gb, gs, c, scale, radius, low, high, rows, regions, gc, glog, threads);
    free(gb);
    for (int64_t row = 0; row < rows && !failed; row++)
        if (bits == 64)
            ((double *)glog)[row] *= ((const double *)scale)[row];
        else
            ((float *)glog)[row] *= ((const float *)scale)[row];
    return failed ? -1 : 0;
}
