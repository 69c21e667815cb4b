/* The heaviest bodies the wire allows, one after another on one connection: what everybody else has to live with.
 *
 *     noop     16 MiB, the default max_payload, there and back
 *     nested   SEND of 1 MiB, JSON 64 deep throughout: as much nesting as the limit lets pass
 *     wide     SEND of 1 MiB, one array of 350,000 empty objects: the most objects that parsing can make of a MiB
 *
 * What is sent is taken out again with RECV, or the mailbox would be full after a few and the rest be refused unheard.
 */
#define _GNU_SOURCE
#include "heavy.h"
#include "tally.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MIB = 1 << 20, DEEPEST = 64 };

static void *memory(size_t n)
{
    void *at = malloc(n);
    if (!at)
        fail("no memory for %zu bytes", n);
    return at;
}

/* Writes the longest array of nothing but `element`s that fits into `room` bytes; returns its length. */
static size_t fill_array(char *at, size_t room, const char *element)
{
    size_t size = strlen(element), n = 0;
    do { /* "[x" or ",x", and room for the bracket that closes it */
        at[n] = n ? ',' : '[';
        memcpy(at + n + 1, element, size);
        n += 1 + size;
    } while (n + 1 + size + 1 <= room);
    at[n] = ']';
    return n + 1;
}

static size_t put_message(const char *shape, char *at, size_t room)
{
    char nested[2 * DEEPEST + 1] = "";
    int depth = DEEPEST - 2; /* the request's own object and the array around these are the other two */
    memset(nested, '[', (size_t)depth);
    memset(nested + depth, ']', (size_t)depth);
    return fill_array(at, room, strcmp(shape, "nested") == 0 ? nested : "{}");
}

/* Whether the reply gives the message back: equal bytes, save the blanks which JSON may have between tokens. */
static int returns_message(const char *reply, size_t n, const char *message, size_t size)
{
    const char *end = reply + n, *at = memmem(reply, n, "\"message\"", 9);
    if (!at)
        return 0;
    for (at += 9; at < end && (*at == ' ' || *at == ':'); at++)
        ;
    for (size_t i = 0; i < size; at++) {
        if (at >= end)
            return 0;
        if (*at == ' ')
            continue;
        if (*at != message[i++])
            return 0;
    }
    return 1;
}

struct exchange {
    const struct how *how;
    struct conn conn;
    uint8_t *in;
    size_t room;
    uint32_t request;
};

/* One call; dies unless the reply is this call's and says success. */
static size_t call(struct exchange *x, uint8_t opcode, uint8_t *frame, size_t body)
{
    x->request++;
    put_header(frame, x->how->version == 2 ? x->request : 0, opcode, body);
    size_t n = converse(x->conn.fd, frame, HEADER + body, x->in, x->room);
    check_header(x->how, &x->conn, x->in, x->request, opcode, n);
    if (!says_success(x->in + HEADER, n))
        fail("0x%02X was refused: %.*s", opcode, (int)(n < 200 ? n : 200), (const char *)x->in + HEADER);
    return n;
}

static void send_and_take(struct exchange *x, uint8_t *frame, size_t body, const char *message, size_t size)
{
    static const char one[] = "{\"max\": 1, \"timeout\": 0}";
    uint8_t take[64];
    call(x, SEND, frame, body);
    memcpy(take + HEADER, one, sizeof one - 1);
    size_t n = call(x, RECV, take, sizeof one - 1);
    if (!returns_message((const char *)x->in + HEADER, n, message, size))
        fail("RECV did not return the message that was sent");
}

void run_heavy(struct how *how, const char *shape)
{
    int noop = strcmp(shape, "noop") == 0;
    if (!noop && strcmp(shape, "nested") != 0 && strcmp(shape, "wide") != 0)
        fail("no such shape: %s", shape);
    if (!noop && how->echo)
        fail("an echo knows no SEND");
    how->body = noop ? 16 * MIB : MIB;
    struct exchange x = {.how = how, .conn = open_conn(how), .room = HEADER + 17 * MIB, .request = 0};
    x.in = memory(x.room);
    uint8_t *frame = memory(HEADER + how->body);
    char *message = (char *)frame + HEADER;
    size_t size = 0;
    if (!noop) { /* {"to":7,"message":[...]} */
        size_t before = (size_t)sprintf(message, "{\"to\":%u,\"message\":", x.conn.caller);
        message += before;
        size = put_message(shape, message, how->body - before - 1);
        message[size] = '}';
        how->body = before + size + 1;
    }
    struct tally tally = {0};
    for (uint64_t seq = 1, begin = now_ns(); !tally_is_full(how, &tally, begin); seq++) {
        if (noop) {
            x.request++;
            put_noop(how, frame, x.request, seq);
            converse(x.conn.fd, frame, HEADER + how->body, x.in, x.room);
            check_noop(how, &x.conn, x.in, x.request, seq);
        } else
            send_and_take(&x, frame, how->body, message, size);
        uint64_t end = now_ns();
        tally_reply(how, &tally, end, end - begin);
        begin = end;
    }
    tally_print(how, &tally, shape, 1);
}
