/* One scale of the undecimated wavelet transform with filters of four taps, and its adjoint, on images that wrap around.
 *
 * Memory is (images, height, width, inner): inner is 1 for real pixels and 2 for complex ones. Taps are `gap` pixels apart,
 * and 3 gap <= height, width. An item is a row of the result: the columns are filtered first, from four rows of each
 * input, into rows that are continued to where the taps along them reach.
 */
#include <stdint.h>
#include <string.h>

#include "parallel.h"

#define TAPS 4
#define GRAIN 16384 /* numbers below which a second thread costs more than it brings */

typedef struct {
    const void *x, *details, *taps; /* taps: low, then high */
    void *low, *bands, *y;          /* bands: (images, 3, height, width, inner) */
    int64_t images, height, width, inner, gap;
} job_t;

typedef struct {
    item_fn split, merge;
    size_t size;
} loops_t;

#define BODY "wavelet_body.h"
#include "instances.h"

static int run(item_fn item, const job_t *job, const loops_t *loops, int threads) {
    const int64_t row = job->width * job->inner, items = job->images * job->height;
    const size_t scratch = 2 * (size_t)(row + (TAPS - 1) * job->gap * job->inner) * loops->size;
    return lipspline_share(item, job, items, scratch, items * row < GRAIN ? 1 : threads);
}

/* Both return 0, or -1 if memory ran out. Nothing may be empty. `bits` is 32 or 64. */

/* low and (low, high), (high, low), (high, high): the first filter along the rows, the second along the columns. */
int lipspline_wavelet_split(int bits, const void *x, const void *taps, int64_t images, int64_t height, int64_t width,
                            int64_t inner, int64_t gap, void *low, void *bands, int threads) {
    const job_t job = {.x = x, .taps = taps, .low = low, .bands = bands, .images = images, .height = height,
                       .width = width, .inner = inner, .gap = gap};
    const loops_t *loops = LOOPS[lipspline_instruction_set()][bits == 64];
    return run(loops->split, &job, loops, threads);
}

int lipspline_wavelet_merge(int bits, const void *low, const void *details, const void *taps, int64_t images,
                            int64_t height, int64_t width, int64_t inner, int64_t gap, void *y, int threads) {
    const job_t job = {.x = low, .details = details, .taps = taps, .y = y, .images = images, .height = height,
                       .width = width, .inner = inner, .gap = gap};
    const loops_t *loops = LOOPS[lipspline_instruction_set()][bits == 64];
    return run(loops->merge, &job, loops, threads);
}
