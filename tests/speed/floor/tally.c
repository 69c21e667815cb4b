/* Latencies are kept one by one and sorted at the end: a histogram's buckets would be our own error to argue about. */
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>

void tally_reply(const struct how *how, struct tally *tally, uint64_t now, uint64_t latency)
{
    if (tally->seen++ < how->warmup)
        return;
    if (!tally->began) /* the first reply after the warm-up starts the clock and is not itself counted */
        tally->began = now;
    else {
        if (tally->n == tally->room) {
            tally->room = tally->room ? 2 * tally->room : 1 << 16;
            tally->ns = realloc(tally->ns, tally->room * sizeof *tally->ns);
            if (!tally->ns)
                fail("no memory for %llu latencies", (unsigned long long)tally->room);
        }
        tally->ns[tally->n++] = latency;
        tally->ended = now;
    }
}

int tally_is_full(const struct how *how, const struct tally *tally, uint64_t now)
{
    if (!tally->began || now < tally->began) /* a moment from before the last reply was heard */
        return 0;
    return tally->n >= how->count || (double)(now - tally->began) >= how->seconds * 1e9;
}

static int in_order(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Nearest rank, in µs. */
static double percentile(const struct tally *tally, double share)
{
    return (double)tally->ns[(uint64_t)(share * (double)(tally->n - 1) + 0.5)] / 1000.0;
}

void tally_print(const struct how *how, struct tally *tally, const char *mode, uint64_t n)
{
    if (!tally->n)
        fail("nothing was counted: too few replies");
    qsort(tally->ns, tally->n, sizeof *tally->ns, in_order);
    double seconds = (double)(tally->ended - tally->began) / 1e9;
    printf("{\"mode\": \"%s\", \"n\": %llu, \"version\": %d, \"body\": %zu, \"replies\": %llu, \"seconds\": %.9f, "
           "\"rate\": %.1f, \"ended_s\": %.6f, \"p50_us\": %.3f, \"p99_us\": %.3f, \"max_us\": %.3f}\n",
           mode, (unsigned long long)n, how->version, how->body, (unsigned long long)tally->n, seconds,
           (double)tally->n / seconds, (double)tally->ended / 1e9, percentile(tally, 0.5), percentile(tally, 0.99), percentile(tally, 1.0));
}
