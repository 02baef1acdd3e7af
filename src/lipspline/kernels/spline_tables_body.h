/* The loops of spline_tables.c for one number type and one instruction set; see instances.h for the macros.
 * An item is a row. Sums run in double: they are short, and their rounding would show in every value of the spline. */

TARGET static inline REAL NAME(slope)(const REAL *c, int64_t j, REAL T) { return (c[j + 1] - c[j]) / T; }

/* How far rounding the coefficients can push a slope out of [low, high]; such slopes keep their gradient. */
TARGET static inline REAL NAME(slack)(const job_t *job) {
    const double low = fabs(job->low), high = fabs(job->high);
    return (REAL)((sizeof(REAL) == 4 ? FLT_EPSILON : DBL_EPSILON) * (double)(job->regions + 1) * (low > high ? low : high));
}

TARGET static inline REAL NAME(clip)(REAL slope, REAL low, REAL high) {
    return slope < low ? low : slope > high ? high : slope; /* NaN stays NaN */
}

/* The clipped slopes s, for each knot the sum of those left of it, and the value of the first knot: value[j] = first +
 * step * risen[j]. Divisions come in a loop of their own, which the compiler vectorises; sums must run from left to right. */
TARGET static inline double NAME(values)(const job_t *job, const REAL *restrict c, double step, REAL *restrict s,
                                         double *restrict risen) {
    const REAL T = (REAL)step, low = (REAL)job->low, high = (REAL)job->high;
    for (int64_t j = 0; j < job->regions; j++) s[j] = NAME(clip)(NAME(slope)(c, j, T), low, high);
    double total = 0, sum = 0, area = 0;
    for (int64_t j = 0; j < job->regions; j++) {
        total += c[j];
        risen[j] = sum;
        sum += s[j];
        area += sum;
    }
    return (total + c[job->regions] - step * area) / (double)(job->regions + 1);
}

TARGET static void NAME(forward)(const void *data, int64_t row, void *scratch) {
    const job_t *job = data;
    const int64_t R = job->regions;
    const double step = 2 * job->radius / (double)R, scale = ((const REAL *)job->scale)[row];
    REAL *restrict b = (REAL *)job->b + row * R, *restrict s = (REAL *)job->s + row * R;
    double *restrict risen = scratch;
    const double first = NAME(values)(job, (const REAL *)job->c + row * (R + 1), step, s, risen);
    for (int32_t j = 0; j < R; j++) b[j] = (REAL)((first + step * risen[j] - s[j] * (step * j - job->radius)) / scale);
}

/* Sums run from left to right in a loop of their own, and leave what they pass on in `there`; the loops after it vectorise. */
TARGET static void NAME(backward)(const void *data, int64_t row, void *scratch) {
    const job_t *job = data;
    const int32_t R = (int32_t)job->regions;
    const double step = 2 * job->radius / (double)R, scale = ((const REAL *)job->scale)[row];
    const REAL *restrict c = (const REAL *)job->c + row * (R + 1), T = (REAL)step, slack = NAME(slack)(job);
    const REAL least = (REAL)job->low - slack, most = (REAL)job->high + slack;
    const REAL *restrict gb = (const REAL *)job->gb + row * R, *restrict gs = (const REAL *)job->gs + row * R;
    REAL *restrict gc = (REAL *)job->gc + row * (R + 1), *restrict s = (REAL *)((double *)scratch + R);
    double *restrict there = scratch, right = 0; /* right: gradients of the intercepts to the right */
    const double first = NAME(values)(job, c, step, s, there);
    for (int32_t j = 0; j < R; j++) right += gb[j];
    const double share = right / (scale * (double)(R + 1)); /* of each coefficient in the gradient of the mean */
    const double per_scale = 1 / scale, per_step = 1 / step;
    double by_scale = 0;
    for (int32_t j = 0; j < R; j++) {
        by_scale += gb[j] * (first + step * there[j] - s[j] * (step * j - job->radius));
        right -= gb[j];
        there[j] = right;
    }
    for (int32_t j = 0; j < R; j++) { /* the gradient of the difference of two coefficients */
        const REAL slope = NAME(slope)(c, j, T);
        const double knot = step * j - job->radius;
        const double by_slope = gs[j] + (step * there[j] - knot * gb[j]) * per_scale - step * (double)(R - j) * share;
        there[j] = (slope < least) | (slope > most) ? 0 : by_slope * per_step;
    }
    gc[0] = (REAL)(share - there[0]);
    for (int32_t j = 1; j < R; j++) gc[j] = (REAL)(share + there[j - 1] - there[j]);
    gc[R] = (REAL)(share + there[R - 1]);
    ((REAL *)job->gscale)[row] = (REAL)(-by_scale / (scale * scale));
}

static const loops_t NAME(loops) = {NAME(forward), NAME(backward)};
