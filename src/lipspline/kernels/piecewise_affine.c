/* y = b[c, i] + s[c, i] x with i = clamp(floor(scale[c] x + offset), 0, R - 1), and its backward, on the CPU.
 *
 * Memory is read as (groups, outer, channels, inner), dense; group and channel together select the row of the tables.
 *   inner >= NARROW   row items: some neighbouring channels, one row of one channel after the other
 *   inner <  NARROW   column items (channels last, matrices): some neighbouring channels over many rows
 *   few elements      direct items: building private tables would cost more than it saves
 */
#include "piecewise_affine.h"

#include <stdlib.h>

#define NARROW 16         /* below this inner size, channels are neighbours enough to be handled as columns */
#define RUN 12800         /* elements that a row item should find side by side; longer runs bring nothing */
#define ITEMS 32          /* about how many items to make, so that threads finish together */
#define PIECES 8          /* of them at least so many by dividing the channels: other divisions cost a sum of sums */
#define GRAIN 32768       /* elements below which a second thread costs more than it brings */
#define CACHE (128 * 1024) /* bytes of tables and sums that an item should not exceed */

#define BODY "piecewise_affine_body.h"
#include "instances.h"

enum kind { ROWS, COLUMNS, DIRECT };

/* Channels of a row item: as many as make a run, keep their sums in the cache, and leave enough items. */
static int64_t row_width(const job_t *job) {
    const int64_t sums = CACHE / lanes_of(job) / 8 / job->regions, share = job->groups * job->channels / PIECES;
    const int64_t most = larger(1, smaller(RUN / job->inner, smaller(sums, share)));
    const int64_t bands = (job->channels + most - 1) / most;
    return (job->channels + bands - 1) / bands; /* all bands alike */
}

/* Cut the job into items. Depends on the sizes alone, never on the number of threads. */
static enum kind plan(job_t *job, int64_t *items) {
    const int64_t each = job->outer * job->inner, R = job->regions; /* elements of a channel */
    const enum kind kind = 2 * each < R ? DIRECT : job->inner >= NARROW ? ROWS : COLUMNS;
    if (kind == ROWS)
        job->width = row_width(job);
    else if (kind == COLUMNS)
        job->width = smaller(larger(CACHE / 24 / R / 16 * 16, 16), SPAN / job->inner);
    else
        job->width = 64;
    job->bands = (job->channels + job->width - 1) / job->width;
    const int64_t pieces = job->groups * job->bands;
    job->chunks = kind == DIRECT ? 1 : larger(1, smaller(ITEMS / pieces, each / larger(2048, 64 * R)));
    *items = pieces * job->chunks;
    return kind;
}

static int threads_for(const job_t *job, int threads) {
    return job->groups * job->outer * job->channels * job->inner < GRAIN ? 1 : threads;
}

int lipspline_piecewise_affine(int bits, const void *x, const void *b, const void *s, const void *scale, double offset,
                               int64_t groups, int64_t outer, int64_t channels, int64_t inner, int64_t regions, void *y,
                               int threads) {
    job_t job = {.x = x, .b = b, .s = s, .scale = scale, .y = y, .offset = offset, .groups = groups, .outer = outer,
                 .channels = channels, .inner = inner, .regions = regions};
    const loops_t *loops = LOOPS[lipspline_instruction_set()][bits == 64];
    const size_t table = (size_t)regions * 2 * loops->size;
    int64_t items;
    threads = threads_for(&job, threads);
    switch (plan(&job, &items)) {
    case ROWS:
        return lipspline_share(loops->row_forward, &job, items, (size_t)job.width * table, threads);
    case COLUMNS:
        return lipspline_share(loops->columns_forward, &job, items, (size_t)job.width * table, threads);
    default:
        return lipspline_share(loops->direct_forward, &job, items, 0, threads);
    }
}

int lipspline_piecewise_affine_backward(int bits, const void *g, const void *x, const void *s, const void *scale,
                                        double offset, int64_t groups, int64_t outer, int64_t channels, int64_t inner,
                                        int64_t regions, void *gx, void *gb, void *gs, int threads) {
    job_t job = {.g = g, .x = x, .s = s, .scale = scale, .y = gx, .gb = gb, .gs = gs, .offset = offset,
                 .groups = groups, .outer = outer, .channels = channels, .inner = inner, .regions = regions};
    const loops_t *loops = LOOPS[lipspline_instruction_set()][bits == 64];
    const size_t totals = (size_t)regions * 2 * sizeof(double), sums = (size_t)regions * 2 * loops->size;
    const int64_t rows = groups * channels;
    int64_t items;
    int failed;
    threads = threads_for(&job, threads);
    const enum kind kind = plan(&job, &items);
    if (job.chunks > 1 && !(job.partial = malloc((size_t)(job.chunks * rows) * totals))) return -1;
    switch (kind) {
    case ROWS:
        failed = lipspline_share(loops->row_backward, &job, items,
                                 (size_t)job.width * (totals + (size_t)lanes_of(&job) * sums), threads);
        break;
    case COLUMNS:
        failed = lipspline_share(loops->columns_backward, &job, items, (size_t)job.width * (totals + sums), threads);
        break;
    default:
        failed = lipspline_share(loops->direct_backward, &job, items, 0, threads);
    }
    if (job.partial && !failed) failed = lipspline_share(loops->reduce, &job, rows, 0, threads);
    free(job.partial);
    return failed;
}
