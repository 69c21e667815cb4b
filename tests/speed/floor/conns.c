/* Many connections, one request in flight on each, one epoll loop.
 *
 *     conns     each asks again as soon as it was answered: how much the server can do
 *     paced     they take turns, one request is due every interval: how long a caller waits who asks now and then
 *
 * A paced latency counts from when its request was due, not from when it could be sent. A client that waits for its
 * reply before it looks at the clock again asks least while the server stalls, and its percentiles hide the stall.
 */
#define _GNU_SOURCE
#include "conns.h"
#include "tally.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

struct client {
    struct conn conn;
    int waits;       /* for a reply */
    uint64_t seq;    /* of the request under way */
    uint64_t since;  /* its latency counts from here */
    uint64_t due;    /* paced: when the next request is */
    size_t have;
    uint8_t *in;
};

struct crowd {
    const struct how *how;
    struct client *clients;
    uint32_t n, waiting;
    uint64_t seq, step; /* step: ns between the requests of one client; 0: not paced */
    int epoll, timer;
    struct tally tally;
};

static void ask(struct crowd *crowd, struct client *client, uint64_t since)
{
    static uint8_t out[ROOM];
    client->seq = ++crowd->seq;
    client->since = since;
    client->due += crowd->step;
    client->have = 0;
    client->waits = 1;
    crowd->waiting++;
    send_all(client->conn.fd, out, put_noop(crowd->how, out, (uint32_t)client->seq, client->seq));
}

static void hear(struct crowd *crowd, struct client *client)
{
    client->have = recv_reply(crowd->how, &client->conn, client->in, client->have, (uint32_t)client->seq);
    if (client->have < HEADER + crowd->how->body)
        return;
    uint64_t now = now_ns();
    check_noop(crowd->how, &client->conn, client->in, (uint32_t)client->seq, client->seq);
    tally_reply(crowd->how, &crowd->tally, now, now - client->since);
    client->waits = 0;
    crowd->waiting--;
    if (tally_is_full(crowd->how, &crowd->tally, now))
        return;
    if (!crowd->step)
        ask(crowd, client, now);
    else if (client->due <= now) /* it came due while its predecessor was under way */
        ask(crowd, client, client->due);
}

static void set_timer(const struct crowd *crowd, uint64_t at)
{
    struct itimerspec when = {.it_value = {(time_t)(at / 1000000000u), (long)(at % 1000000000u)}};
    if (timerfd_settime(crowd->timer, TFD_TIMER_ABSTIME, &when, NULL) < 0)
        fail("timerfd_settime: %s", strerror(errno));
}

/* Lets everyone ask whose turn it is; returns when the next turn comes. */
static uint64_t take_turns(struct crowd *crowd, uint64_t turn, uint32_t *whose)
{
    for (uint64_t now = now_ns(); turn <= now; turn += crowd->how->interval) {
        struct client *client = &crowd->clients[*whose];
        *whose = (*whose + 1) % crowd->n;
        if (!client->waits && client->due <= now)
            ask(crowd, client, client->due);
    }
    return turn;
}

static void gather(struct crowd *crowd)
{
    for (uint32_t i = 0; i < crowd->n; i++) {
        struct client *client = &crowd->clients[i];
        client->conn = open_conn(crowd->how);
        client->in = malloc(HEADER + crowd->how->body);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = client};
        if (!client->in || epoll_ctl(crowd->epoll, EPOLL_CTL_ADD, client->conn.fd, &event) < 0)
            fail("connection %u: %s", i, strerror(errno));
        for (uint32_t j = 0; j < i && !crowd->how->echo; j++)
            if (crowd->clients[j].conn.caller == client->conn.caller)
                fail("two connections are the same caller: %u", client->conn.caller);
    }
}

static void run(struct crowd *crowd)
{
    crowd->clients = calloc(crowd->n, sizeof *crowd->clients);
    crowd->epoll = epoll_create1(EPOLL_CLOEXEC);
    crowd->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC);
    struct epoll_event tick = {.events = EPOLLIN | EPOLLET, .data.ptr = NULL};
    if (!crowd->clients || crowd->epoll < 0 || epoll_ctl(crowd->epoll, EPOLL_CTL_ADD, crowd->timer, &tick) < 0)
        fail("no memory, epoll or timer: %s", strerror(errno));
    gather(crowd);
    uint64_t now = now_ns(), turn = now;
    uint32_t whose = 0;
    for (uint32_t i = 0; i < crowd->n; i++)
        if (crowd->step)
            crowd->clients[i].due = now + i * crowd->how->interval;
        else
            ask(crowd, &crowd->clients[i], now_ns());
    for (;;) {
        int full = tally_is_full(crowd->how, &crowd->tally, now);
        if (full && !crowd->waiting)
            return;
        if (crowd->step && !full)
            set_timer(crowd, turn = take_turns(crowd, turn, &whose));
        struct epoll_event events[64];
        int ready = epoll_wait(crowd->epoll, events, 64, PATIENCE * 1000);
        now = now_ns();
        if (ready == 0)
            fail("no reply within %d s", PATIENCE);
        for (int i = 0; i < ready; i++)
            if (events[i].data.ptr)
                hear(crowd, events[i].data.ptr);
    }
}

void run_conns(const struct how *how, uint32_t n)
{
    struct crowd crowd = {.how = how, .n = n};
    run(&crowd);
    tally_print(how, &crowd.tally, "conns", n);
}

void run_paced(const struct how *how, uint32_t n)
{
    struct crowd crowd = {.how = how, .n = n, .step = n * how->interval};
    run(&crowd);
    tally_print(how, &crowd.tally, "paced", n);
}
