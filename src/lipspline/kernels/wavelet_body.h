/* The loops of wavelet.c for one number type and one instruction set; see instances.h for the macros. */

#define INLINE static inline __attribute__((always_inline))

/* y = sum_k t_k x_k, or added to y. */
TARGET INLINE void NAME(combine)(const REAL *const *x, const REAL *t, int64_t n, const int add, REAL *restrict y) {
    const REAL *restrict a = x[0], *restrict b = x[1], *restrict c = x[2], *restrict d = x[3];
    for (int64_t j = 0; j < n; j++) {
        const REAL sum = t[0] * a[j] + t[1] * b[j] + t[2] * c[j] + t[3] * d[j];
        y[j] = add ? y[j] + sum : sum;
    }
}

/* Row i of the low and the high part of x along its columns, continued by `reach` numbers on the right. */
TARGET static void NAME(split)(const void *what, int64_t item, void *scratch) {
    const job_t *job = what;
    const int64_t image = item / job->height, i = item % job->height, n = job->width * job->inner;
    const int64_t step = job->gap * job->inner, reach = (TAPS - 1) * step, plane = job->height * n;
    const REAL *x = (const REAL *)job->x + image * plane, *taps = job->taps, *rows[TAPS], *along[TAPS];
    REAL *columns[2] = {scratch, (REAL *)scratch + n + reach};
    REAL *details = (REAL *)job->bands + 3 * image * plane + i * n;
    REAL *results[4] = {(REAL *)job->low + image * plane + i * n, details, details + plane, details + 2 * plane};
    for (int k = 0; k < TAPS; k++) rows[k] = x + (i + k * job->gap) % job->height * n;
    for (int vertical = 0; vertical < 2; vertical++) {
        REAL *row = columns[vertical];
        NAME(combine)(rows, taps + vertical * TAPS, n, 0, row);
        memcpy(row + n, row, (size_t)reach * sizeof(REAL));
        for (int k = 0; k < TAPS; k++) along[k] = row + k * step;
        for (int horizontal = 0; horizontal < 2; horizontal++)
            NAME(combine)(along, taps + horizontal * TAPS, n, 0, results[2 * horizontal + vertical]);
    }
}

/* The adjoint: taps reach to the left and upwards, so rows are continued on the left. */
TARGET static void NAME(merge)(const void *what, int64_t item, void *scratch) {
    const job_t *job = what;
    const int64_t image = item / job->height, i = item % job->height, n = job->width * job->inner;
    const int64_t step = job->gap * job->inner, reach = (TAPS - 1) * step, plane = job->height * n;
    const REAL *details = (const REAL *)job->details + 3 * image * plane, *taps = job->taps, *rows[TAPS], *along[TAPS];
    const REAL *bands[4] = {(const REAL *)job->x + image * plane, details, details + plane, details + 2 * plane};
    REAL *columns[2] = {scratch, (REAL *)scratch + n + reach}, *y = (REAL *)job->y + image * plane + i * n;
    for (int horizontal = 0; horizontal < 2; horizontal++) {
        REAL *row = columns[horizontal] + reach;
        for (int vertical = 0; vertical < 2; vertical++) {
            for (int k = 0; k < TAPS; k++)
                rows[k] = bands[2 * horizontal + vertical] + (i + job->height - k * job->gap) % job->height * n;
            NAME(combine)(rows, taps + vertical * TAPS, n, vertical, row);
        }
        memcpy(row - reach, row + n - reach, (size_t)reach * sizeof(REAL));
        for (int k = 0; k < TAPS; k++) along[k] = row - k * step;
        NAME(combine)(along, taps + horizontal * TAPS, n, horizontal, y);
    }
}

#undef INLINE

static const loops_t NAME(loops) = {NAME(split), NAME(merge), sizeof(REAL)};
