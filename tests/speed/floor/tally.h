/* What was measured: the latency of every counted reply, and the one JSON line made of them. */
#ifndef SPEED_TALLY_H
#define SPEED_TALLY_H

#include "wire.h"

struct tally {
    uint64_t *ns, n, room;
    uint64_t seen;         /* replies, those of the warm-up included */
    uint64_t began, ended; /* of the counted part */
};

void tally_reply(const struct how *how, struct tally *tally, uint64_t now, uint64_t latency);
int tally_is_full(const struct how *how, const struct tally *tally, uint64_t now);

/* Prints the line; `mode` and `n` (in flight, connections) say what was measured. */
void tally_print(const struct how *how, struct tally *tally, const char *mode, uint64_t n);

#endif
