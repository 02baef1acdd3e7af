/* The loops of joseph.c for one number type and one instruction set.
 *
 * Included several times by joseph.c with these macros set:
 *   REAL      float or double
 *   NAME(f)   the name of f for this type and instruction set
 *   TARGET    the compiler attribute that selects the instruction set
 */

/* The two neighbours of a position side by side: four lanes weighted by 1 - f, four by f. */
typedef REAL NAME(pair) __attribute__((vector_size(8 * sizeof(REAL)), aligned(sizeof(REAL)), may_alias));

#define PAIR NAME(pair)
#define WEIGHTS(f) ((PAIR){1, 1, 1, 1, 0, 0, 0, 0} + (f) * (PAIR){-1, -1, -1, -1, 1, 1, 1, 1})

/* Entry and fraction of the positions first..end. Both directions take their weights from here: an exact transpose. */
TARGET static inline void NAME(locate)(int32_t *restrict n, REAL *restrict f, double start, double step, int64_t first,
                                       int64_t end, int64_t L) {
    const int32_t last = (int32_t)L - 2;
    for (int32_t j = (int32_t)first; j < (int32_t)end; j++) {
        const double position = start + j * step;
        const int32_t below = (int32_t)position < last ? (int32_t)position : last;
        n[j] = below;
        f[j] = (REAL)(position - below);
    }
}

/* out (J, 4) of one b and one i. */
TARGET static void NAME(sums)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t J = job->J, K = job->K, L = job->L, b = item / job->I, i = item % job->I;
    const double *start = job->start + i * K, *step = job->step + i * K;
    const REAL *src = (const REAL *)job->from + b * K * L * 4;
    REAL *out = (REAL *)job->to + item * J * 4;
    PAIR *total = on_a_line(scratch);
    REAL *f = (REAL *)(total + J);
    int32_t *n = (int32_t *)(f + J);

    memset(total, 0, (size_t)J * sizeof(PAIR));
    for (int64_t k = 0; k < K; k++, src += 4 * L) {
        int64_t first, end;
        inside(start[k], step[k], J, L, &first, &end);
        NAME(locate)(n, f, start[k], step[k], first, end, L);
        for (int64_t j = first; j < end; j++) total[j] += WEIGHTS(f[j]) * *(const PAIR *)(src + 4 * (int64_t)n[j]);
    }
    for (int64_t j = 0; j < J; j++)
        for (int lane = 0; lane < 4; lane++) out[4 * j + lane] = total[j][lane] + total[j][lane + 4];
}

/* dst (L, 4) of one b and one k. */
TARGET static void NAME(spread)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t I = job->I, J = job->J, K = job->K, L = job->L, b = item / K, k = item % K;
    const REAL *y = (const REAL *)job->from + b * I * J * 4;
    REAL *dst = (REAL *)job->to + item * L * 4;
    PAIR *total = on_a_line(scratch);
    REAL *f = (REAL *)(total + L);
    int32_t *n = (int32_t *)(f + J);

    memset(total, 0, (size_t)L * sizeof(PAIR));
    for (int64_t i = 0; i < I; i++, y += 4 * J) {
        const double start = job->start[i * K + k], step = job->step[i * K + k];
        int64_t first, end;
        inside(start, step, J, L, &first, &end);
        NAME(locate)(n, f, start, step, first, end, L);
        for (int64_t j = first; j < end; j++) {
            const REAL *v = y + 4 * j;
            total[n[j]] += WEIGHTS(f[j]) * (PAIR){v[0], v[1], v[2], v[3], v[0], v[1], v[2], v[3]};
        }
    }
    for (int lane = 0; lane < 4; lane++) dst[lane] = total[0][lane];
    for (int64_t l = 1; l < L; l++)
        for (int lane = 0; lane < 4; lane++) dst[4 * l + lane] = total[l][lane] + total[l - 1][lane + 4];
}

/* Rows k0..k1 of RAYS neighbouring rays; without `masked` all of them are inside the image there. */
TARGET static inline void NAME(add_rows)(PAIR *restrict total, const REAL *restrict src, const double *restrict start,
                                         const double *restrict step, int64_t k0, int64_t k1, int64_t L, int masked) {
    const int32_t last = (int32_t)L - 2;
    int32_t n[RAYS];
    REAL f[RAYS], whole[RAYS];
    for (int64_t k = k0; k < k1; k++) {
        const REAL *row = src + 4 * k * L;
        for (int r = 0; r < RAYS; r++) {
            const double position = start[r] + (double)k * step[r];
            const int within = !masked || (position >= 0 && position <= (double)(L - 1));
            const double kept = within ? position : 0;
            const int32_t below = (int32_t)kept < last ? (int32_t)kept : last;
            n[r] = below;
            f[r] = (REAL)(kept - below);
            whole[r] = within;
        }
        if (masked) {
            for (int r = 0; r < RAYS; r++) total[r] += whole[r] * (WEIGHTS(f[r]) * *(const PAIR *)(row + 4 * (int64_t)n[r]));
        } else {
            for (int r = 0; r < RAYS; r++) total[r] += WEIGHTS(f[r]) * *(const PAIR *)(row + 4 * (int64_t)n[r]);
        }
    }
}

/* out (J, 4) of one b and one i: RAYS neighbouring rays together, row by row, so that they read the same memory. */
TARGET static void NAME(ray_sums)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t J = job->J, K = job->K, L = job->L, b = item / job->I, i = item % job->I;
    const REAL *src = (const REAL *)job->from + b * K * L * 4;
    REAL *out = (REAL *)job->to + item * J * 4;
    PAIR *total = on_a_line(scratch);

    for (int64_t j0 = 0; j0 < J; j0 += RAYS) {
        double start[RAYS], step[RAYS];
        int64_t some = K, none = 0, all = 0, fewer = K; /* rows some..none meet a ray, rows all..fewer meet every one */
        for (int r = 0; r < RAYS; r++) {
            const int64_t j = j0 + r < J ? j0 + r : J - 1; /* the last ones again, to be thrown away */
            int64_t first, end;
            start[r] = job->start[i * J + j];
            step[r] = job->step[i * J + j];
            inside_either_way(start[r], step[r], K, L, &first, &end);
            if (first < end) {
                some = first < some ? first : some;
                none = end > none ? end : none;
            }
            all = first > all ? first : all;
            fewer = end < fewer ? end : fewer;
        }
        memset(total, 0, RAYS * sizeof(PAIR));
        if (all >= fewer) {
            NAME(add_rows)(total, src, start, step, some, none, L, 1);
        } else {
            NAME(add_rows)(total, src, start, step, some, all, L, 1);
            NAME(add_rows)(total, src, start, step, all, fewer, L, 0);
            NAME(add_rows)(total, src, start, step, fewer, none, L, 1);
        }
        for (int64_t j = j0; j < J && j < j0 + RAYS; j++)
            for (int lane = 0; lane < 4; lane++) out[4 * j + lane] = total[j - j0][lane] + total[j - j0][lane + 4];
    }
}

/* Whether a ray is on one side of the image in the first and in the last of some rows, and so in all of them. */
TARGET static inline int NAME(passes_by)(double start, double step, int64_t k0, int64_t rows, int64_t L) {
    const double here = start + (double)k0 * step, there = start + (double)(k0 + rows - 1) * step;
    return (here < 0 && there < 0) || (here > (double)(L - 1) && there > (double)(L - 1));
}

/* dst (ROWS, L, 4) of one b and some rows: what is read of an i serves all of them. */
TARGET static void NAME(ray_spread)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t I = job->I, J = job->J, K = job->K, L = job->L, blocks = (K + ROWS - 1) / ROWS;
    const int64_t b = item / blocks, k0 = item % blocks * ROWS, rows = K - k0 < ROWS ? K - k0 : ROWS;
    const REAL *y = (const REAL *)job->from + b * I * J * 4;
    REAL *dst = (REAL *)job->to + (b * K + k0) * L * 4;
    PAIR *totals = on_a_line(scratch); /* of each row L sums, and one for rays outside the image */
    REAL *restrict f = (REAL *)(totals + ROWS * (L + 1));
    int32_t *restrict n = (int32_t *)(f + J);
    const int32_t last = (int32_t)L - 2, outside = (int32_t)L;

    memset(totals, 0, (size_t)(rows * (L + 1)) * sizeof(PAIR));
    for (int64_t i = 0; i < I; i++, y += 4 * J) {
        const double *start = job->start + i * J, *step = job->step + i * J;
        int64_t left = 0, right = J; /* the other rays, at both ends, pass by all of these rows on one side */
        while (left < right && NAME(passes_by)(start[left], step[left], k0, rows, L)) left++;
        while (left < right && NAME(passes_by)(start[right - 1], step[right - 1], k0, rows, L)) right--;
        for (int64_t row = 0; row < rows; row++) {
            PAIR *restrict total = totals + row * (L + 1);
            const double k = (double)(k0 + row);
            for (int64_t j = left; j < right; j++) {
                const double position = start[j] + k * step[j];
                const int within = position >= 0 && position <= (double)(L - 1);
                const double kept = within ? position : 0;
                const int32_t below = (int32_t)kept < last ? (int32_t)kept : last;
                n[j] = within ? below : outside;
                f[j] = (REAL)(kept - below);
            }
            int64_t first = left, end = right; /* those still outside would wait for each other */
            while (first < end && n[first] == outside) first++;
            while (first < end && n[end - 1] == outside) end--;
            for (int64_t j = first; j < end; j++) {
                const REAL *v = y + 4 * j;
                total[n[j]] += WEIGHTS(f[j]) * (PAIR){v[0], v[1], v[2], v[3], v[0], v[1], v[2], v[3]};
            }
        }
    }
    for (int64_t row = 0; row < rows; row++, dst += 4 * L) {
        const PAIR *total = totals + row * (L + 1);
        for (int lane = 0; lane < 4; lane++) dst[lane] = total[0][lane];
        for (int64_t l = 1; l < L; l++)
            for (int lane = 0; lane < 4; lane++) dst[4 * l + lane] = total[l][lane] + total[l - 1][lane + 4];
    }
}

static const loops_t NAME(loops) = {NAME(sums), NAME(spread), NAME(ray_sums), NAME(ray_spread), sizeof(REAL)};

#undef PAIR
#undef WEIGHTS
