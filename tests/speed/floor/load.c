/* A client that asks as fast as it is answered, checks every answer, and prints one JSON line about it.
 *
 *     load [options] SOCKET rtt            one request at a time on one connection
 *     load [options] SOCKET flight N       N requests outstanding on one connection, one write for all that became free
 *     load [options] SOCKET conns N        N connections, one request in flight on each, one epoll
 *     load [options] SOCKET paced N        N connections take turns, a request is due every so often, see conns.c
 *     load [options] SOCKET heavy SHAPE    the largest bodies, see heavy.c
 *
 *     -2         version 2: HELLO, then request ids           -b BYTES   of a NOOP's body (64)
 *     -e         the server is the floor, an echo             -w N       warm-up replies, not counted (200)
 *     -c N       stop after N replies ...                     -s SECONDS ... or after this time (1)
 *     -i US      paced only: how often (1000)
 */
#define _GNU_SOURCE
#include "conns.h"
#include "heavy.h"
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST = 4096 }; /* requests in flight, or connections */

static void run_rtt(const struct how *how)
{
    static uint8_t out[ROOM], in[ROOM];
    struct conn conn = open_conn(how);
    struct tally tally = {0};
    uint64_t begin = now_ns(), end = begin;
    for (uint64_t seq = 1; !tally_is_full(how, &tally, end); seq++) {
        size_t size = put_noop(how, out, (uint32_t)seq, seq);
        begin = now_ns();
        send_all(conn.fd, out, size);
        for (size_t have = 0; have < size;)
            have = recv_reply(how, &conn, in, have, (uint32_t)seq);
        end = now_ns();
        check_noop(how, &conn, in, (uint32_t)seq, seq);
        tally_reply(how, &tally, end, end - begin);
    }
    tally_print(how, &tally, "rtt", 1);
}

struct slot {
    uint64_t seq, sent; /* seq 0: free */
};

/* Which request a reply is for. Version 1 answers in order; version 2 says it, and may answer in any. */
static uint32_t slot_of(const struct how *how, const uint8_t *frame, uint32_t oldest, uint32_t n)
{
    if (how->version == 1)
        return oldest;
    struct header header;
    memcpy(&header, frame, HEADER);
    if (header.id == 0 || header.id > n)
        fail("a reply has id %u, which no request had", header.id);
    return header.id - 1;
}

static void run_flight(const struct how *how, uint32_t n)
{
    static uint8_t out[ROOM], in[ROOM];
    static struct slot slots[MOST];
    static uint32_t free_slots[MOST];
    struct conn conn = open_conn(how);
    struct tally tally = {0};
    uint64_t seq = 0, now = now_ns();
    uint32_t oldest = 0, waiting = 0, freed = n;
    size_t have = 0, size = HEADER + how->body;
    for (uint32_t i = 0; i < n; i++)
        free_slots[i] = i;
    do {
        size_t bytes = 0;
        for (uint32_t i = 0; i < freed && !tally_is_full(how, &tally, now); i++, waiting++) {
            slots[free_slots[i]] = (struct slot){++seq, now};
            bytes += put_noop(how, out + bytes, free_slots[i] + 1, seq);
        }
        freed = 0;
        send_all(conn.fd, out, bytes);
        have += recv_some(conn.fd, in + have, sizeof in - have);
        now = now_ns();
        size_t used = 0;
        for (; have - used >= size; used += size, waiting--) {
            uint32_t at = slot_of(how, in + used, oldest, n);
            if (!waiting || !slots[at].seq)
                fail("a reply that nobody waits for");
            check_noop(how, &conn, in + used, at + 1, slots[at].seq);
            tally_reply(how, &tally, now, now - slots[at].sent);
            slots[at].seq = 0;
            free_slots[freed++] = at;
            oldest = (oldest + 1) % n;
        }
        have -= used;
        if (have >= HEADER) /* the rest of a wrong one may never come */
            check_header(how, &conn, in + used, slot_of(how, in + used, oldest, n) + 1, NOOP, how->body);
        memmove(in, in + used, have);
    } while (waiting || !tally_is_full(how, &tally, now));
    tally_print(how, &tally, "flight", n);
}

static _Noreturn void usage(void)
{
    fprintf(stderr, "usage: load [-2e] [-b BYTES] [-c N] [-s SECONDS] [-w N] [-i US] SOCKET "
                    "rtt | flight N | conns N | paced N | heavy noop|nested|wide\n");
    exit(2);
}

static struct how options(int argc, char **argv)
{
    struct how how = {.version = 1, .body = 64, .count = UINT64_MAX, .seconds = 1.0, .warmup = 200, .interval = 1000000};
    for (int option; (option = getopt(argc, argv, "2eb:c:s:w:i:")) != -1;)
        switch (option) {
        case '2': how.version = 2; break;
        case 'e': how.echo = 1; break;
        case 'b': how.body = strtoul(optarg, NULL, 10); break;
        case 'c': how.count = strtoul(optarg, NULL, 10); break;
        case 's': how.seconds = strtod(optarg, NULL); break;
        case 'w': how.warmup = strtoul(optarg, NULL, 10); break;
        case 'i': how.interval = strtoul(optarg, NULL, 10) * 1000; break;
        default: usage();
        }
    if (how.body < sizeof(uint64_t) || how.body > ROOM - HEADER)
        fail("a body has 8 to %d bytes: it carries a number, and a request must fit in a socket's buffer", ROOM - HEADER);
    return how;
}

int main(int argc, char **argv)
{
    struct how how = options(argc, argv);
    if (argc - optind < 2)
        usage();
    how.path = argv[optind];
    const char *mode = argv[optind + 1], *more = argc - optind > 2 ? argv[optind + 2] : NULL;
    uint32_t n = more ? (uint32_t)strtoul(more, NULL, 10) : 0;
    prctl(PR_SET_TIMERSLACK, 1UL); /* else a paced request is up to 50 µs late by our own doing */
    if (strcmp(mode, "rtt") == 0)
        run_rtt(&how);
    else if (strcmp(mode, "heavy") == 0 && more)
        run_heavy(&how, more);
    else if (!n || n > MOST)
        usage();
    else if (strcmp(mode, "flight") == 0 && n * (HEADER + how.body) <= ROOM)
        run_flight(&how, n);
    else if (strcmp(mode, "conns") == 0)
        run_conns(&how, n);
    else if (strcmp(mode, "paced") == 0)
        run_paced(&how, n);
    else
        usage();
    return 0;
}
