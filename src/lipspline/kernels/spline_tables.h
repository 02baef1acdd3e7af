/* From the coefficients of linear splines to the tables of piecewise_affine, and backward: see spline_tables.c. */
#ifndef LIPSPLINE_SPLINE_TABLES_H
#define LIPSPLINE_SPLINE_TABLES_H

#include <stdint.h>

/* Both return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

int lipspline_spline_tables(int bits, const void *c, const void *scale, double radius, double low, double high,
                            int64_t rows, int64_t regions, void *b, void *s, int threads);

int lipspline_spline_tables_backward(int bits, const void *gb, const void *gs, const void *c, const void *scale,
                                     double radius, double low, double high, int64_t rows, int64_t regions, void *gc,
                                     void *gscale, int threads);

#endif
