/* How the load speaks: connecting, sending, and finding fault with what comes back. */
#define _GNU_SOURCE
#include "wire.h"

#include <errno.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static const uint32_t MAGIC = 0x41474E54;

void fail(const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(stderr, "load: %s\n", text);
    fputs("{\"error\": \"", stdout);
    for (const char *c = text; *c; c++) /* a reply may be quoted in it: keep the line JSON */
        if (*c == '"' || *c == '\\')
            printf("\\%c", *c);
        else
            putchar(*c >= ' ' && *c <= '~' ? *c : '?');
    puts("\"}");
    exit(1);
}

uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void put_header(void *at, uint32_t id, uint8_t opcode, uint64_t length)
{
    struct header header = {MAGIC, id, opcode, length};
    memcpy(at, &header, HEADER);
}

void check_header(const struct how *how, const struct conn *conn, const void *at, uint32_t request, uint8_t opcode,
                  uint64_t length)
{
    struct header got;
    memcpy(&got, at, HEADER);
    uint32_t id = how->version == 2 ? request : conn->caller;
    if (got.magic != MAGIC)
        fail("a reply begins with 0x%08X instead of the magic", got.magic);
    if (got.opcode != opcode)
        fail("a reply has opcode 0x%02X, expected 0x%02X", got.opcode, opcode);
    if (got.id != id)
        fail("a reply has id %u, expected %u", got.id, id);
    if (got.length != length)
        fail("a reply has %llu bytes, expected %llu", (unsigned long long)got.length, (unsigned long long)length);
}

static const uint8_t *filling(size_t n)
{
    static uint8_t *bytes;
    if (!bytes) {
        bytes = malloc(n);
        if (!bytes)
            fail("no memory for a body of %zu bytes", n);
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)(i * 37 + 11);
    }
    return bytes;
}

size_t put_noop(const struct how *how, void *at, uint32_t request, uint64_t seq)
{
    uint8_t *out = at;
    put_header(out, how->version == 2 ? request : 0, NOOP, how->body);
    memcpy(out + HEADER, &seq, sizeof seq);
    memcpy(out + HEADER + sizeof seq, filling(how->body), how->body - sizeof seq);
    return HEADER + how->body;
}

void check_noop(const struct how *how, const struct conn *conn, const void *at, uint32_t request, uint64_t seq)
{
    const uint8_t *in = at;
    check_header(how, conn, in, request, NOOP, how->body);
    if (memcmp(in + HEADER, &seq, sizeof seq) != 0)
        fail("a reply carries another request's body");
    if (memcmp(in + HEADER + sizeof seq, filling(how->body), how->body - sizeof seq) != 0)
        fail("a reply's body is not the body that was sent");
}

void send_all(int fd, const void *from, size_t n)
{
    for (size_t done = 0; done < n;) {
        ssize_t sent = send(fd, (const char *)from + done, n - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR)
            fail("sending failed: %s", strerror(errno));
        done += sent > 0 ? (size_t)sent : 0;
    }
}

size_t recv_some(int fd, void *to, size_t room)
{
    for (;;) {
        ssize_t got = recv(fd, to, room, 0);
        if (got > 0)
            return (size_t)got;
        if (got == 0)
            fail("the server closed the connection");
        if (errno == EAGAIN)
            fail("no reply within %d s", PATIENCE);
        if (errno != EINTR)
            fail("receiving failed: %s", strerror(errno));
    }
}

size_t recv_reply(const struct how *how, const struct conn *conn, void *in, size_t have, uint32_t request)
{
    have += recv_some(conn->fd, (char *)in + have, HEADER + how->body - have);
    if (have >= HEADER)
        check_header(how, conn, in, request, NOOP, how->body);
    return have;
}

size_t converse(int fd, const void *out, size_t n, void *in, size_t room)
{
    size_t sent = 0, have = 0, whole = HEADER;
    while (sent < n || have < whole) {
        struct pollfd wait = {.fd = fd, .events = (short)(POLLIN | (sent < n ? POLLOUT : 0))};
        if (poll(&wait, 1, PATIENCE * 1000) == 0)
            fail("no reply within %d s", PATIENCE);
        if (sent < n && (wait.revents & POLLOUT)) {
            ssize_t put = send(fd, (const char *)out + sent, n - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
            if (put < 0 && errno != EAGAIN)
                fail("sending failed: %s", strerror(errno));
            sent += put > 0 ? (size_t)put : 0;
        }
        if (have == whole)
            fail("the reply came before the request was complete: %.*s", (int)(whole - HEADER < 200 ? whole - HEADER : 200),
                 (const char *)in + HEADER);
        if (wait.revents & (POLLIN | POLLHUP)) {
            /* Never past the header before it is known how long the frame is: one request, one reply. */
            have += recv_some(fd, (char *)in + have, whole - have);
            if (have == HEADER && whole == HEADER) {
                struct header header;
                memcpy(&header, in, HEADER);
                if (header.magic != MAGIC || header.length > room - HEADER)
                    fail("a reply's header makes no sense: magic 0x%08X, %llu bytes", header.magic,
                         (unsigned long long)header.length);
                whole += header.length;
            }
        }
    }
    return whole - HEADER;
}

int says_success(const void *body, size_t n)
{
    const char *at = memmem(body, n, "\"success\"", 9);
    if (!at)
        return 0;
    const char *end = (const char *)body + n;
    for (at += 9; at < end && (*at == ' ' || *at == ':'); at++)
        ;
    return end - at >= 4 && memcmp(at, "true", 4) == 0;
}

static void say_hello(const struct how *how, struct conn *conn)
{
    static const char hello[] = "{\"protocol\": 2}";
    uint8_t out[64], in[4096];
    put_header(out, 0, HELLO, sizeof hello - 1);
    memcpy(out + HEADER, hello, sizeof hello - 1);
    size_t n = converse(conn->fd, out, HEADER + sizeof hello - 1, in, sizeof in);
    struct how first = *how;
    first.version = 1; /* request ids begin with the frame after this one */
    check_header(&first, conn, in, 0, HELLO, n);
    if (!says_success(in + HEADER, n))
        fail("HELLO was refused: %.*s", (int)(n < 200 ? n : 200), (const char *)in + HEADER);
}

/* One NOOP in version 1: its reply's header says who the kernel takes us for. */
static uint32_t who_am_i(const struct how *how, struct conn *conn)
{
    struct how first = *how;
    first.version = 1;
    first.body = 8;
    uint8_t out[HEADER + 8], in[HEADER + 4096];
    put_header(out, 0, NOOP, 8);
    memcpy(out + HEADER, "whoami?!", 8);
    converse(conn->fd, out, sizeof out, in, sizeof in);
    struct header header;
    memcpy(&header, in, HEADER);
    if (how->echo && header.id != 0)
        fail("the echo changed the id 0 to %u", header.id);
    if (!how->echo && header.id == 0)
        fail("the kernel gave this caller no id: its reply has id 0");
    conn->caller = header.id;
    check_header(&first, conn, in, 0, NOOP, 8);
    if (memcmp(in + HEADER, "whoami?!", 8) != 0)
        fail("a reply's body is not the body that was sent");
    return header.id;
}

struct conn open_conn(const struct how *how)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(how->path) >= sizeof at.sun_path)
        fail("the socket's path is too long: %s", how->path);
    strcpy(at.sun_path, how->path);
    struct conn conn = {.fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)};
    struct timeval patience = {.tv_sec = PATIENCE};
    if (conn.fd < 0 || setsockopt(conn.fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience) < 0)
        fail("no socket: %s", strerror(errno));
    if (connect(conn.fd, (struct sockaddr *)&at, sizeof at) < 0)
        fail("cannot connect to %s: %s", how->path, strerror(errno));
    conn.caller = who_am_i(how, &conn);
    if (how->version == 2 && !how->echo)
        say_hello(how, &conn);
    return conn;
}
