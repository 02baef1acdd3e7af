/* Activations on pairs of neighbouring channels (2j, 2j + 1), and their backward, on the CPU.
 *
 * Memory is read as (outer, pairs, 2, inner), dense. An item is a run of outer indices and, if inner is large, of pairs.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "parallel.h"

#define NARROW 16    /* below this inner size an item takes all pairs of its outer indices */
#define ITEMS 32     /* about how many items to make, so that threads finish together */
#define GRAIN 65536  /* elements below which a second thread costs more than it brings */
#define WIDTH 64     /* sums kept side by side, so that additions do not wait for one another */
#define FLUSH 16384  /* about so many elements are summed in the type of the input before the sums become doubles */

typedef struct {
    const void *g, *x, *v;
    void *y;
    double *partial; /* (outer, pairs, 2), or (items, pairs, 2) if inner is narrow: sums for the gradient of v */
    void *gv;
    int64_t outer, pairs, inner, items;
    int descending;
} job_t;

typedef struct {
    item_fn swap, reflect, reflect_backward, reduce;
    size_t size;
} loops_t;

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

#define BODY "pairs_body.h"
#include "instances.h"

/* Rows are what items are runs of. */
static int64_t rows_of(const job_t *job) { return job->inner < NARROW ? job->outer : job->outer * job->pairs; }

static int run(item_fn item, job_t *job, size_t scratch, int threads) {
    const int64_t elements = job->outer * job->pairs * 2 * job->inner;
    job->items = larger(1, smaller(ITEMS, smaller(rows_of(job), elements / 4096)));
    return lipspline_share(item, job, job->items, scratch, elements < GRAIN ? 1 : threads);
}

/* All return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

/* y = g with the members of each pair exchanged where those of x are out of order. */
int lipspline_swap_pairs(int bits, const void *g, const void *x, int64_t outer, int64_t pairs, int64_t inner,
                         int descending, void *y, int threads) {
    job_t job = {.g = g, .x = x, .y = y, .outer = outer, .pairs = pairs, .inner = inner, .descending = descending};
    return run(LOOPS[lipspline_instruction_set()][bits == 64]->swap, &job, 0, threads);
}

/* y = x with each pair reflected into the half plane v . x > 0. */
int lipspline_householder(int bits, const void *x, const void *v, int64_t outer, int64_t pairs, int64_t inner, void *y,
                          int threads) {
    job_t job = {.x = x, .v = v, .y = y, .outer = outer, .pairs = pairs, .inner = inner};
    return run(LOOPS[lipspline_instruction_set()][bits == 64]->reflect, &job, 0, threads);
}

int lipspline_householder_backward(int bits, const void *g, const void *x, const void *v, int64_t outer, int64_t pairs,
                                   int64_t inner, void *gx, void *gv, int threads) {
    job_t job = {.g = g, .x = x, .v = v, .y = gx, .gv = gv, .outer = outer, .pairs = pairs, .inner = inner};
    const loops_t *loops = LOOPS[lipspline_instruction_set()][bits == 64];
    const size_t sums = (size_t)pairs * 2, parts = (size_t)(inner < NARROW ? ITEMS : outer);
    job.partial = calloc(parts * sums, sizeof(double));
    if (!job.partial) return -1;
    int failed = run(loops->reflect_backward, &job, sums * loops->size, threads);
    if (!failed) loops->reduce(&job, 0, NULL);
    free(job.partial);
    return failed;
}
