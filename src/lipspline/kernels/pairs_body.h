/* The loops of pairs.c for one number type and one instruction set; see instances.h for the macros.
 *
 * The first member of pair k of a stretch is at k * step, the second one `partner` further on: step is 1 where inner is
 * wide and 2 where channels are neighbours in memory. Both are constants at every call, so each gets its own code.
 */

#define INLINE static inline __attribute__((always_inline))

/* Items are runs of rows; a row is a pair of channels, or all pairs of an outer index where inner is narrow. */
typedef struct {
    int64_t begin, end, size;
} NAME(run);

TARGET INLINE NAME(run) NAME(run_of)(const job_t *job, int64_t item) {
    const int narrow = job->inner < NARROW;
    const int64_t rows = narrow ? job->outer : job->outer * job->pairs;
    return (NAME(run)){rows * item / job->items, rows * (item + 1) / job->items,
                       2 * job->inner * (narrow ? job->pairs : 1)};
}

TARGET INLINE void NAME(swap_stretch)(const REAL *g, const REAL *x, int64_t n, const int64_t step, int64_t partner,
                                      REAL sign, REAL *restrict y) {
    for (int64_t k = 0; k < n; k++) {
        const int64_t a = k * step, b = a + partner;
        const REAL first = g[a], second = g[b];
        const int out_of_order = sign * x[a] > sign * x[b];
        y[a] = out_of_order ? second : first;
        y[b] = out_of_order ? first : second;
    }
}

TARGET static void NAME(swap)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(run) run = NAME(run_of)(job, item);
    const int64_t inner = job->inner, at = run.begin * run.size, n = (run.end - run.begin) * run.size / 2;
    const REAL *g = (const REAL *)job->g + at, *x = (const REAL *)job->x + at, sign = job->descending ? -1 : 1;
    REAL *y = (REAL *)job->y + at;
    (void)scratch;
    if (inner == 1)
        NAME(swap_stretch)(g, x, n, 2, 1, sign, y);
    else
        for (int64_t k = 0; k < 2 * n; k += 2 * inner)
            NAME(swap_stretch)(g + k, x + k, inner, 1, inner, sign, y + k);
}

/* y = x - 2 min(v . x, 0) v; with `turn` 0 all pairs share v, with 2 each has its own. */
TARGET INLINE void NAME(reflect_stretch)(const REAL *restrict x, const REAL *restrict v, const int64_t turn, int64_t n,
                                         const int64_t step, int64_t partner, REAL *restrict y) {
    for (int64_t k = 0; k < n; k++) {
        const int64_t a = k * step, b = a + partner;
        const REAL v1 = v[k * turn], v2 = v[k * turn + 1], x1 = x[a], x2 = x[b], t = v1 * x1 + v2 * x2;
        const REAL outside = t > 0 ? 0 : 2 * t;
        y[a] = x1 - outside * v1;
        y[b] = x2 - outside * v2;
    }
}

TARGET static void NAME(reflect)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(run) run = NAME(run_of)(job, item);
    const int64_t inner = job->inner, pairs = job->pairs;
    const REAL *v = job->v;
    (void)scratch;
    for (int64_t row = run.begin; row < run.end; row++) {
        const REAL *x = (const REAL *)job->x + row * run.size;
        REAL *y = (REAL *)job->y + row * run.size;
        if (inner == 1)
            NAME(reflect_stretch)(x, v, 2, pairs, 2, 1, y);
        else if (inner < NARROW)
            for (int64_t j = 0; j < pairs; j++)
                NAME(reflect_stretch)(x + 2 * j * inner, v + 2 * j, 0, inner, 1, inner, y + 2 * j * inner);
        else
            NAME(reflect_stretch)(x, v + 2 * (row % pairs), 0, inner, 1, inner, y);
    }
}

/* gx = g - 2 h v and sums += -2 (h x + t g), where t = min(v . x, 0) and h = v . g where x was reflected, else 0. Pair k of the stretch
 * adds to the sums number k. */
TARGET INLINE void NAME(reflect_backward_stretch)(const REAL *restrict g, const REAL *restrict x,
                                                  const REAL *restrict v, const int64_t turn, int64_t n,
                                                  const int64_t step, int64_t partner, REAL *restrict gx,
                                                  REAL *restrict sums1, REAL *restrict sums2) {
    for (int64_t k = 0; k < n; k++) {
        const int64_t a = k * step, b = a + partner;
        const REAL v1 = v[k * turn], v2 = v[k * turn + 1], x1 = x[a], x2 = x[b], g1 = g[a], g2 = g[b];
        const REAL dot = v1 * x1 + v2 * x2, t = dot > 0 ? 0 : 2 * dot, h = dot > 0 ? 0 : 2 * (v1 * g1 + v2 * g2);
        gx[a] = g1 - h * v1;
        gx[b] = g2 - h * v2;
        sums1[k] -= h * x1 + t * g1;
        sums2[k] -= h * x2 + t * g2;
    }
}

TARGET static void NAME(flush)(REAL *sums1, REAL *sums2, int64_t n, double *total, const int64_t turn) {
    for (int64_t k = 0; k < n; k++) {
        total[turn * k] += sums1[k];
        total[turn * k + 1] += sums2[k];
        sums1[k] = sums2[k] = 0;
    }
}

/* One pair of channels: WIDTH sums side by side, then one total. */
TARGET static void NAME(reflect_backward_row)(const REAL *g, const REAL *x, const REAL *v, int64_t inner, REAL *gx,
                                              double *total) {
    REAL sums1[WIDTH] = {0}, sums2[WIDTH] = {0};
    for (int64_t k = 0; k < inner; k += WIDTH) {
        const int64_t n = smaller(WIDTH, inner - k);
        NAME(reflect_backward_stretch)(g + k, x + k, v, 0, n, 1, inner, gx + k, sums1, sums2);
        if (k % FLUSH == FLUSH - WIDTH) NAME(flush)(sums1, sums2, WIDTH, total, 0);
    }
    NAME(flush)(sums1, sums2, WIDTH, total, 0);
}

TARGET static void NAME(reflect_backward)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const NAME(run) run = NAME(run_of)(job, item);
    const int64_t inner = job->inner, pairs = job->pairs, patience = larger(1, FLUSH / WIDTH / inner);
    const REAL *v = job->v;
    REAL *sums1 = scratch, *sums2 = sums1 + pairs;
    double *total = job->partial + 2 * pairs * item; /* where inner is narrow */
    memset(scratch, 0, (size_t)pairs * 2 * sizeof *sums1);
    for (int64_t row = run.begin; row < run.end; row++) {
        const REAL *g = (const REAL *)job->g + row * run.size, *x = (const REAL *)job->x + row * run.size;
        REAL *gx = (REAL *)job->y + row * run.size;
        if (inner >= NARROW) {
            NAME(reflect_backward_row)(g, x, v + 2 * (row % pairs), inner, gx, job->partial + 2 * row);
            continue;
        }
        if (inner == 1)
            NAME(reflect_backward_stretch)(g, x, v, 2, pairs, 2, 1, gx, sums1, sums2);
        else
            for (int64_t j = 0; j < pairs; j++) {
                const int64_t at = 2 * j * inner;
                for (int64_t k = 0; k < inner; k++)
                    NAME(reflect_backward_stretch)(g + at + k, x + at + k, v + 2 * j, 0, 1, 1, inner, gx + at + k,
                                                   sums1 + j, sums2 + j);
            }
        if ((row - run.begin) % patience == patience - 1) NAME(flush)(sums1, sums2, pairs, total, 2);
    }
    if (inner < NARROW) NAME(flush)(sums1, sums2, pairs, total, 2);
}

/* The gradient of v: the parts added up, always in the same order. */
TARGET static void NAME(reduce)(const void *data, int64_t item, void *scratch) {
    const job_t *job = data;
    const int64_t parts = job->inner < NARROW ? job->items : job->outer;
    (void)item, (void)scratch;
    for (int64_t j = 0; j < 2 * job->pairs; j++) {
        double sum = 0;
        for (int64_t part = 0; part < parts; part++) sum += job->partial[2 * job->pairs * part + j];
        ((REAL *)job->gv)[j] = (REAL)sum;
    }
}

static const loops_t NAME(loops) = {NAME(swap), NAME(reflect), NAME(reflect_backward), NAME(reduce), sizeof(REAL)};

#undef INLINE
