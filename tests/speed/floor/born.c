/* An agent whose first act is to note when it began: one line "<CLOCK_MONOTONIC in ns> <pid>", appended to FILE.
 *
 * The clock is the whole machine's, so the note can be compared with the moment its predecessor was killed.
 */
#include <fcntl.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    int fd = argc == 2 ? open(argv[1], O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644) : -1;
    if (fd < 0)
        return 1;
    char line[64];
    int n = snprintf(line, sizeof line, "%lld %d\n", (long long)now.tv_sec * 1000000000LL + now.tv_nsec, (int)getpid());
    if (write(fd, line, (size_t)n) != n) /* one write: a reader sees the whole line or none of it */
        return 1;
    for (;;)
        pause();
}
