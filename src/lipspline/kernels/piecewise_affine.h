/* The job that piecewise_affine.c plans and piecewise_affine_body.h carries out. */
#ifndef LIPSPLINE_PIECEWISE_AFFINE_H
#define LIPSPLINE_PIECEWISE_AFFINE_H

#include <stdint.h>
#include <string.h>

#include "parallel.h"

#define BLOCK 256  /* elements between the two passes of an inner loop; no column item is wider */
#define LANES 7    /* sums a region owns in a row item; with its slope they fill a cache line */
#define AHEAD 8192 /* so many bytes of the next row of a channel are fetched while this one is computed */
#define FLUSH 8192 /* about so many elements of a row are summed in the type of the input before the sums become doubles */

typedef struct {
    const void *g, *x, *b, *s, *scale; /* b (forward) or g (backward) is NULL */
    void *y, *gb, *gs;                 /* y is the output of forward and the gradient of x in backward */
    double *partial;                   /* (chunks, groups * channels, regions, 2), or NULL if there is one chunk */
    double offset;
    int64_t groups, outer, channels, inner, regions;
    int64_t chunks; /* pieces of the elements of a channel */
    int64_t width;  /* channels in a band: the piece of the channels that a column or direct item takes */
    int64_t bands;
} job_t;

/* What one instruction set offers for one number type. */
typedef struct {
    item_fn row_forward, row_backward, columns_forward, columns_backward, direct_forward, direct_backward, reduce;
    size_t size;
} loops_t;

typedef float float4 __attribute__((vector_size(16)));
typedef int32_t lanes4 __attribute__((vector_size(16)));
typedef double bits2 __attribute__((vector_size(16))); /* two float pairs in the shape of doubles */
typedef double pair_bits __attribute__((may_alias));

#if defined(__clang__) || __GNUC__ >= 12
#define SHUFFLE(p, q, ...) __builtin_shufflevector(p, q, __VA_ARGS__)
#else
#define SHUFFLE(p, q, ...) __builtin_shuffle(p, q, (lanes4){__VA_ARGS__})
#endif

/* Kept out of the functions around it, whose many variables would crowd its registers. */
#define LOOP __attribute__((noinline))

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
