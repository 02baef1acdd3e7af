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

/* out (J, 4) of one b and one i, ray by ray; four sums at a time, so that additions need not wait for each other. */
TARGET static void NAME(ray_sums)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t J = job->J, K = job->K, L = job->L, b = item / job->I, i = item % job->I;
    const double *start = job->start + i * J, *step = job->step + i * J;
    const REAL *src = (const REAL *)job->from + b * K * L * 4;
    REAL *out = (REAL *)job->to + item * J * 4;
    REAL *f = on_a_line(scratch);
    int32_t *n = (int32_t *)(f + K);

    for (int64_t j = 0; j < J; j++) {
        int64_t k, end;
        inside_either_way(start[j], step[j], K, L, &k, &end);
        NAME(locate)(n, f, start[j], step[j], k, end, L);
        PAIR sum[4] = {{0}};
        for (; k + 4 <= end; k += 4)
            for (int u = 0; u < 4; u++)
                sum[u] += WEIGHTS(f[k + u]) * *(const PAIR *)(src + 4 * ((k + u) * L + n[k + u]));
        for (; k < end; k++) sum[0] += WEIGHTS(f[k]) * *(const PAIR *)(src + 4 * (k * L + n[k]));
        sum[0] = (sum[0] + sum[1]) + (sum[2] + sum[3]);
        for (int lane = 0; lane < 4; lane++) out[4 * j + lane] = sum[0][lane] + sum[0][lane + 4];
    }
}

/* dst (L, 4) of one b and one k. */
TARGET static void NAME(ray_spread)(const void *job_, int64_t item, void *scratch) {
    const job_t *job = job_;
    const int64_t I = job->I, J = job->J, K = job->K, L = job->L, b = item / K, k = item % K;
    const REAL *y = (const REAL *)job->from + b * I * J * 4;
    REAL *dst = (REAL *)job->to + item * L * 4;
    PAIR *total = on_a_line(scratch);
    REAL *restrict left = (REAL *)(total + L), *restrict right = left + J;
    int32_t *restrict n = (int32_t *)(right + J);
    const int32_t last = (int32_t)L - 2;

    memset(total, 0, (size_t)L * sizeof(PAIR));
    for (int64_t i = 0; i < I; i++, y += 4 * J) {
        const double *start = job->start + i * J, *step = job->step + i * J;
        for (int64_t j = 0; j < J; j++) {
            const double position = start[j] + (double)k * step[j];
            const int within = position >= 0 && position <= (double)(L - 1);
            const double kept = within ? position : 0;
            const int32_t below = (int32_t)kept < last ? (int32_t)kept : last;
            n[j] = below;
            right[j] = (REAL)(kept - below);
            left[j] = within ? 1 - right[j] : 0;
        }
        for (int64_t j = 0; j < J; j++) {
            const REAL *v = y + 4 * j;
            const REAL l = left[j], r = right[j];
            total[n[j]] += (PAIR){l, l, l, l, r, r, r, r} * (PAIR){v[0], v[1], v[2], v[3], v[0], v[1], v[2], v[3]};
        }
    }
    for (int lane = 0; lane < 4; lane++) dst[lane] = total[0][lane];
    for (int64_t l = 1; l < L; l++)
        for (int lane = 0; lane < 4; lane++) dst[4 * l + lane] = total[l][lane] + total[l - 1][lane + 4];
}

static const loops_t NAME(loops) = {NAME(sums), NAME(spread), NAME(ray_sums), NAME(ray_spread), sizeof(REAL)};

#undef PAIR
#undef WEIGHTS
