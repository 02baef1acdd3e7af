/* The proximal map of the total variation of rows, exactly, by dynamic programming.
 *
 * For each row y of n numbers with precisions d > 0 and a weight w >= 0 it finds the u that minimises
 *
 *     sum_i d_i / 2 (u_i - y_i)^2  +  w sum_i |u_{i+1} - u_i|.
 *
 * Let F_i(b) be the least value of all terms of u_0 ... u_i given that u_{i+1} = b. Its derivative is a continuous,
 * non-decreasing, piecewise linear function with values in [-w, w]: that of F_{i-1} plus d_i (b - y_i), cut off at -w and
 * at w. The places where it is cut, low_i and high_i, are all that is needed: u_i is u_{i+1}, clamped to [low_i, high_i].
 * Numbers that are merged are therefore equal to the last bit. Knots enter and leave at the two ends of a list, each once,
 * so that the time is proportional to n.
 */
#include <stdint.h>

#include "parallel.h"

#define GRAIN 4096 /* numbers below which a second thread costs more than it brings */

typedef struct {
    const double *y, *d, *w;
    double *u;
    int64_t n;
} job_t;

typedef struct {
    double place, slope, offset; /* what is added to the line when the place is passed from left to right */
} knot_t;

static void row(const job_t *job, int64_t index, void *scratch) {
    const int64_t n = job->n;
    const double *y = job->y + index * n, *d = job->d + index * n, w = job->w[index];
    double *u = job->u + index * n;
    double *low = scratch, *high = low + n;
    knot_t *knots = (knot_t *)(high + n); /* 2n of them; the list grows from the middle to both sides */
    int64_t first = n, end = n;
    double slope, offset;
    if (!(w > 0)) {
        for (int64_t i = 0; i < n; i++) u[i] = y[i];
        return;
    }
    for (int64_t i = 0; i < n - 1; i++) {
        const double left = i ? -w : 0, right = i ? w : 0;
        slope = d[i];
        offset = left - d[i] * y[i];
        while (first < end && slope * knots[first].place + offset < -w) {
            slope += knots[first].slope;
            offset += knots[first++].offset;
        }
        low[i] = (-w - offset) / slope;
        const knot_t begin = {low[i], slope, offset + w};
        slope = d[i];
        offset = right - d[i] * y[i];
        while (first < end && slope * knots[end - 1].place + offset > w) {
            slope -= knots[--end].slope;
            offset -= knots[end].offset;
        }
        high[i] = (w - offset) / slope;
        if (high[i] < low[i]) high[i] = low[i]; /* rounding, where w is nothing beside the rest */
        const knot_t finish = {high[i], -slope, w - offset};
        knots[--first] = begin;
        knots[end++] = finish;
    }
    slope = d[n - 1];
    offset = (n > 1 ? -w : 0) - d[n - 1] * y[n - 1];
    while (first < end && slope * knots[first].place + offset < 0) {
        slope += knots[first].slope;
        offset += knots[first++].offset;
    }
    u[n - 1] = -offset / slope;
    for (int64_t i = n - 2; i >= 0; i--) u[i] = u[i + 1] < low[i] ? low[i] : u[i + 1] > high[i] ? high[i] : u[i + 1];
}

static void item(const void *job, int64_t index, void *scratch) { row(job, index, scratch); }

/* u = the proximal map of each of `rows` rows of y, (rows, n); d is (rows, n), w is (rows). 0, or -1 without memory. */
int lipspline_total_variation(const double *y, const double *d, const double *w, int64_t rows, int64_t n, double *u,
                              int threads) {
    const job_t job = {y, d, w, u, n};
    const size_t scratch = (size_t)n * (2 * sizeof(double) + 2 * sizeof(knot_t));
    return lipspline_share(item, &job, rows, scratch, rows * n < GRAIN ? 1 : threads);
}
