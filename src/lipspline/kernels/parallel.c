#include "parallel.h"

#include <stdlib.h>

typedef void (*pool_fn)(void (*run)(void *), void *data, unsigned threads, unsigned flags);

static pool_fn pool; /* GOMP_parallel of torch's runtime, or NULL */

void lipspline_use_pool(void *gomp_parallel) { pool = (pool_fn)gomp_parallel; }

struct shared {
    item_fn run;
    const void *job;
    int64_t items, next;
    size_t scratch;
    int failed;
};

static void work(void *data) {
    struct shared *shared = data;
    void *scratch = shared->scratch ? malloc(shared->scratch) : NULL;
    if (shared->scratch && !scratch) {
        __atomic_store_n(&shared->failed, 1, __ATOMIC_RELAXED);
        return;
    }
    int64_t item;
    while ((item = __atomic_fetch_add(&shared->next, 1, __ATOMIC_RELAXED)) < shared->items)
        shared->run(shared->job, item, scratch);
    free(scratch);
}

int lipspline_share(item_fn run, const void *job, int64_t items, size_t scratch, int threads) {
    struct shared shared = {run, job, items, 0, scratch, 0};
    if (threads > items) threads = (int)items;
    if (threads > 1 && pool)
        pool(work, &shared, (unsigned)threads, 0);
    else
        work(&shared);
    return shared.failed ? -1 : 0;
}
