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

/* What the values of the knots follow from: value[j] = first + step * (sum of the slopes left of j). */
TARGET static inline double NAME(first_value)(const job_t *job, const REAL *c, double step) {
    const REAL T = (REAL)step, low = (REAL)job->low, high = (REAL)job->high;
    double total = 0, risen = 0, area = 0;
    for (int64_t j = 0; j < job->regions; j++) {
        total += c[j];
        risen += NAME(clip)(NAME(slope)(c, j, T), low, high);
        area += risen;
    }
    return (total + c[job->regions] - step * area) / (double)(job->regions + 1);
}

TARGET static void NAME(forward)(const void *data, int64_t row, void *scratch) {
    const job_t *job = data;
    const int64_t R = job->regions;
    const double step = 2 * job->radius / (double)R, scale = ((const REAL *)job->scale)[row];
    const REAL *c = (const REAL *)job->c + row * (R + 1), T = (REAL)step, low = (REAL)job->low, high = (REAL)job->high;
    REAL *b = (REAL *)job->b + row * R, *s = (REAL *)job->s + row * R;
    const double first = NAME(first_value)(job, c, step);
    double risen = 0;
    (void)scratch;
    for (int64_t j = 0; j < R; j++) {
        s[j] = NAME(clip)(NAME(slope)(c, j, T), low, high);
        b[j] = (REAL)((first + step * risen - s[j] * (step * (double)j - job->radius)) / scale);
        risen += s[j];
    }
}

TARGET static void NAME(backward)(const void *data, int64_t row, void *scratch) {
    const job_t *job = data;
    const int64_t R = job->regions;
    const double step = 2 * job->radius / (double)R, scale = ((const REAL *)job->scale)[row];
    const REAL *c = (const REAL *)job->c + row * (R + 1), T = (REAL)step, low = (REAL)job->low, high = (REAL)job->high;
    const REAL slack = NAME(slack)(job), *gb = (const REAL *)job->gb + row * R, *gs = (const REAL *)job->gs + row * R;
    REAL *gc = (REAL *)job->gc + row * (R + 1);
    const double first = NAME(first_value)(job, c, step);
    double right = 0; /* gradients of the intercepts to the right */
    (void)scratch;
    for (int64_t j = 0; j < R; j++) right += gb[j];
    const double share = right / (scale * (double)(R + 1)); /* of each coefficient in the gradient of the mean */
    double risen = 0, by_scale = 0, before = 0; /* before: gradient of the difference to the left */
    for (int64_t j = 0; j < R; j++) {
        const REAL slope = NAME(slope)(c, j, T), s = NAME(clip)(slope, low, high);
        const double knot = step * (double)j - job->radius;
        right -= gb[j];
        by_scale += gb[j] * (first + step * risen - s * knot);
        risen += s;
        const double by_slope = gs[j] + (step * right - knot * gb[j]) / scale - step * (double)(R - j) * share;
        const double here = slope < low - slack || slope > high + slack ? 0 : by_slope / step;
        gc[j] = (REAL)(share + before - here);
        before = here;
    }
    gc[R] = (REAL)(share + before);
    ((REAL *)job->gscale)[row] = (REAL)(-by_scale / (scale * scale));
}

static const loops_t NAME(loops) = {NAME(forward), NAME(backward)};
