/* The job that piecewise_affine.c plans and piecewise_affine_body.h carries out. */
#ifndef LIPSPLINE_PIECEWISE_AFFINE_H
#define LIPSPLINE_PIECEWISE_AFFINE_H

#include <stdint.h>
#include <string.h>

#include "parallel.h"

#define BLOCK 128  /* elements between the two passes of an inner loop over a row */
#define SPAN 256   /* the same for columns; no column item is wider */
#define LANES 4    /* sums a region owns in a row item; a power of two */
#define MANY 128   /* with more regions than this, one: neighbours rarely meet, and four times the sums leave the cache */
#define AHEAD 256  /* elements of a row are asked for so many elements early */
#define FLUSH 8192 /* about so many elements of a row are summed in the type of the input before the sums become doubles */

typedef struct {
    const void *g, *x, *b, *s, *scale; /* b (forward) or g (backward) is NULL */
    void *y, *gb, *gs;                 /* y is the output of forward and the gradient of x in backward */
    double *partial;                   /* (chunks, groups * channels, regions, 2), or NULL if there is one chunk */
    double offset, zero; /* zero is 0: see locate_row */
    int64_t groups, outer, channels, inner, regions;
    int64_t chunks; /* pieces of the elements of a channel */
    int64_t width;  /* channels in a band: the piece of the channels that an item takes */
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

/* Both return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

int lipspline_piecewise_affine(int bits, const void *x, const void *b, const void *s, const void *scale, double offset,
                               int64_t groups, int64_t outer, int64_t channels, int64_t inner, int64_t regions, void *y,
                               int threads);

int lipspline_piecewise_affine_backward(int bits, const void *g, const void *x, const void *s, const void *scale,
                                        double offset, int64_t groups, int64_t outer, int64_t channels, int64_t inner,
                                        int64_t regions, void *gx, void *gb, void *gs, int threads);

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int lanes_of(const job_t *job) { return job->regions > MANY ? 1 : LANES; }
static inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#endif
