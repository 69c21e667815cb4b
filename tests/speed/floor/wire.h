/* Frames as the load sends and judges them: every reply is checked, a wrong one ends the run.
 *
 *     OFFSET  SIZE  FIELD     little-endian, no padding
 *     0       4     magic     0x41474E54
 *     4       4     id        version 1: the caller's, set by the kernel; version 2: the request's, set by the client
 *     8       1     opcode
 *     9       8     length    bytes of body that follow
 */
#ifndef SPEED_WIRE_H
#define SPEED_WIRE_H

#include <stddef.h>
#include <stdint.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "headers are laid over memory as they are on the wire");

enum { HEADER = 17, NOOP = 0x00, SEND = 0x20, RECV = 0x21, HELLO = 0xFE };
enum { ROOM = 1 << 18 };   /* bytes in flight at most: what a socket's buffer can hold, or two writers would block */
enum { PATIENCE = 20 }; /* seconds without a reply after which the run has failed */

struct __attribute__((packed)) header {
    uint32_t magic, id;
    uint8_t opcode;
    uint64_t length;
};

struct how {
    const char *path;
    int version;      /* 1, or 2 after HELLO */
    int echo;         /* the server is the floor: it returns our own ids and knows no HELLO */
    size_t body;      /* bytes in a NOOP */
    uint64_t count;   /* stop after so many replies ... */
    double seconds;   /* ... or so much time, whichever is first */
    uint64_t warmup;  /* replies that come first and are not counted */
    uint64_t interval; /* ns between the moments at which paced requests are due */
};

struct conn {
    int fd;
    uint32_t caller; /* the id which the kernel has given us: in each version 1 reply of this connection */
};

/* Ends the program: a sentence on stderr, {"error": ...} on stdout, status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

uint64_t now_ns(void); /* CLOCK_MONOTONIC */

/* Connects, learns the caller's id with one NOOP and, in version 2, says HELLO. */
struct conn open_conn(const struct how *how);

void put_header(void *at, uint32_t id, uint8_t opcode, uint64_t length);
void check_header(const struct how *how, const struct conn *conn, const void *at, uint32_t request, uint8_t opcode,
                  uint64_t length);

/* A NOOP whose body carries `seq`, so that one request's reply cannot pass for another's. */
size_t put_noop(const struct how *how, void *at, uint32_t request, uint64_t seq);
void check_noop(const struct how *how, const struct conn *conn, const void *at, uint32_t request, uint64_t seq);

void send_all(int fd, const void *from, size_t n);
size_t recv_some(int fd, void *to, size_t room); /* at least one byte */

/* Reads more of a NOOP's reply, of which `have` bytes are there; returns how many now. The header is judged as soon as it
 * has come: of a reply that is too short, the rest never would. */
size_t recv_reply(const struct how *how, const struct conn *conn, void *in, size_t have, uint32_t request);

/* Sends one frame of any size while reading its reply, so neither side waits for the other; returns the reply's length. */
size_t converse(int fd, const void *out, size_t n, void *in, size_t room);

int says_success(const void *body, size_t n);

#endif
