/* A wire of fixed latency between two network namespaces.
 *
 *     link NETNS_A NETNS_B ONE_WAY_MICROSECONDS
 *
 * Makes a TAP device `wire0` in each namespace and carries every frame from one to the other, that much later.
 * The ends of a TCP connection are in the two namespaces, so handshakes, slow start and windows behave as on a real
 * link; for kernels without netem. Offloads are on: the stack hands over segments of up to 64 KiB, which keeps the
 * wire from being the bottleneck. Prints "ready" and runs until killed.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

enum { LARGEST = 66 << 10, FRAMES = 16384 }; /* frames under way, per direction */

struct frame { long due; int length; char *data; };
struct direction { int from, to; unsigned head, tail; struct frame ring[FRAMES]; };

static long now(void) /* microseconds */
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000L + t.tv_nsec / 1000;
}

static int open_end(const char *netns)
{
    char path[256];
    snprintf(path, sizeof path, "/run/netns/%s", netns);
    int ns = open(path, O_RDONLY | O_CLOEXEC);
    if (ns < 0 || setns(ns, CLONE_NEWNET)) err(1, "%s", path);
    close(ns);
    int tap = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    struct ifreq request = { .ifr_flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR };
    strcpy(request.ifr_name, "wire0");
    if (tap < 0 || ioctl(tap, TUNSETIFF, &request)) err(1, "tap device in %s", netns);
    if (ioctl(tap, TUNSETOFFLOAD, TUN_F_CSUM | TUN_F_TSO4)) err(1, "offload in %s", netns);
    return tap;
}

/* Take what the sender has, as far as there is room: a full wire drops nothing, it makes the device queue. */
static void take(struct direction *d, long delay)
{
    while (d->head - d->tail < FRAMES) {
        struct frame *f = &d->ring[d->head % FRAMES];
        f->length = read(d->from, f->data, LARGEST);
        if (f->length <= 0) return;
        f->due = now() + delay;
        d->head++;
    }
}

static void deliver(struct direction *d)
{
    for (long t = now(); d->tail != d->head; d->tail++) {
        struct frame *f = &d->ring[d->tail % FRAMES];
        if (f->due > t) return;
        if (write(d->to, f->data, f->length) < 0) { /* the receiver's device is down or full: lost, as on a wire */ }
    }
}

int main(int argc, char **argv)
{
    if (argc != 4) errx(2, "usage: link NETNS_A NETNS_B ONE_WAY_MICROSECONDS");
    long delay = atol(argv[3]);
    int a = open_end(argv[1]), b = open_end(argv[2]);
    static struct direction ways[2];
    for (int w = 0; w < 2; w++) {
        ways[w].from = w ? b : a;
        ways[w].to = w ? a : b;
        for (int i = 0; i < FRAMES; i++)
            if (!(ways[w].ring[i].data = malloc(LARGEST))) err(1, "memory");
    }
    puts("ready");
    fflush(stdout);
    for (;;) {
        long wait = 1000000;
        for (int w = 0; w < 2; w++)
            if (ways[w].tail != ways[w].head) {
                long left = ways[w].ring[ways[w].tail % FRAMES].due - now();
                if (left < wait) wait = left < 0 ? 0 : left;
            }
        struct pollfd ends[2];
        for (int w = 0; w < 2; w++) {
            int room = ways[w].head - ways[w].tail < FRAMES;
            ends[w] = (struct pollfd){ .fd = ways[w].from, .events = room ? POLLIN : 0 };
        }
        struct timespec timeout = { wait / 1000000, wait % 1000000 * 1000 };
        if (ppoll(ends, 2, &timeout, NULL) < 0) err(1, "poll");
        for (int w = 0; w < 2; w++) {
            if (ends[w].revents & POLLIN) take(&ways[w], delay);
            deliver(&ways[w]);
        }
    }
}
