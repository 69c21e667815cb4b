/* The floor: the least a server on a Unix socket can do. Bytes in, the same bytes out, one epoll loop.
 *
 * It parses nothing and knows nobody, so what a kernel takes longer is what frames, callers and its language cost.
 *
 *     floor SOCKET      prints "ready", serves until it is ended by a signal
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ROOM = 256 * 1024, EVENTS = 64 };

struct peer {
    int fd;
    size_t begin, end; /* buf[begin..end) is still to be sent back */
    char *buf;         /* only while a reader is slow; else everyone shares one */
};

static char shared[ROOM];

static void die(const char *what)
{
    fprintf(stderr, "floor: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void watch(int epoll, int how, struct peer *peer, unsigned events)
{
    struct epoll_event event = {.events = events, .data.ptr = peer};
    if (epoll_ctl(epoll, how, peer->fd, &event) < 0)
        die("epoll_ctl");
}

static void hang_up(struct peer *peer)
{
    close(peer->fd); /* this also takes it out of the epoll set */
    free(peer->buf);
    free(peer);
}

/* Sends the rest of what a slow reader has not taken, then listens to it again. */
static void resume(int epoll, struct peer *peer)
{
    ssize_t sent = send(peer->fd, peer->buf + peer->begin, peer->end - peer->begin, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) {
        hang_up(peer);
        return;
    }
    peer->begin += sent > 0 ? (size_t)sent : 0;
    if (peer->begin == peer->end) {
        free(peer->buf);
        peer->buf = NULL;
        watch(epoll, EPOLL_CTL_MOD, peer, EPOLLIN);
    }
}

static void echo(int epoll, struct peer *peer)
{
    ssize_t got = recv(peer->fd, shared, ROOM, MSG_DONTWAIT);
    if (got < 0 && errno == EAGAIN)
        return;
    if (got <= 0) {
        hang_up(peer);
        return;
    }
    ssize_t sent = send(peer->fd, shared, (size_t)got, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) {
        hang_up(peer);
        return;
    }
    size_t taken = sent > 0 ? (size_t)sent : 0;
    if (taken == (size_t)got)
        return;
    peer->begin = 0;
    peer->end = (size_t)got - taken;
    peer->buf = malloc(peer->end);
    if (!peer->buf)
        die("malloc");
    memcpy(peer->buf, shared + taken, peer->end);
    watch(epoll, EPOLL_CTL_MOD, peer, EPOLLOUT);
}

static void welcome(int epoll, int listener)
{
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        die("accept");
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer)
        die("calloc");
    peer->fd = fd;
    watch(epoll, EPOLL_CTL_ADD, peer, EPOLLIN);
}

static int listen_at(const char *path)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof at.sun_path) {
        errno = ENAMETOOLONG;
        die(path);
    }
    strcpy(at.sun_path, path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof at) < 0 || listen(fd, 512) < 0)
        die(path);
    return fd;
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: floor SOCKET\n");
        return 2;
    }
    struct peer listener = {.fd = listen_at(argv[1])};
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (epoll < 0)
        die("epoll_create1");
    watch(epoll, EPOLL_CTL_ADD, &listener, EPOLLIN);
    puts("ready");
    fflush(stdout);
    for (;;) {
        struct epoll_event events[EVENTS];
        int n = epoll_wait(epoll, events, EVENTS, -1);
        if (n < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct peer *peer = events[i].data.ptr;
            if (peer == &listener)
                welcome(epoll, listener.fd);
            else if (peer->buf)
                resume(epoll, peer);
            else
                echo(epoll, peer);
        }
    }
}
