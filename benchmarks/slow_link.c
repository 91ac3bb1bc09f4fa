/* A slow link between network namespaces: an Ethernet switch in user space.
 *
 *     slow_link DELAY_US RATE_MBIT_PER_S MTU NAMESPACE...
 *
 * Makes a TAP device lk0 with the address 10.78.0.(i + 1)/24 in each namespace and passes frames
 * between them: each sender's at RATE, and DELAY later. A sender whose frames wait longer than
 * BACKLOG_NS is not read for a while, so that TCP sees a full queue and not a loss. Prints "ready"
 * and runs until it is killed.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { MOST_PORTS = 16, QUEUE = 1 << 16, BURST = 32, MAC = 6 };
static const uint64_t SECOND_NS = 1000000000ull;
static const uint64_t BACKLOG_NS = 20000000ull;

struct frame {
    uint64_t due_ns;
    int length;
    int receiver; /* -1: all others */
    unsigned char *bytes;
};

struct port {
    int device;
    unsigned char mac[MAC]; /* of who sent here last */
    uint64_t busy_until_ns; /* when the last byte that was sent has left */
    unsigned first, last;   /* of the queue: frames from this sender, in order */
    struct frame queue[QUEUE];
};

static struct port ports[MOST_PORTS];
static int num_ports;

static void die(const char *what) {
    perror(what);
    exit(1);
}

static uint64_t now_ns(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * SECOND_NS + time.tv_nsec;
}

static int open_device(const char *name, int number, int mtu, int home) {
    char path[256], command[256];
    snprintf(path, sizeof path, "/var/run/netns/%s", name);
    int there = open(path, O_RDONLY | O_CLOEXEC);
    if (there < 0 || setns(there, CLONE_NEWNET)) die(path);
    close(there);
    int device = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    if (device < 0) die("/dev/net/tun");
    struct ifreq request = {0};
    request.ifr_flags = IFF_TAP | IFF_NO_PI;
    strcpy(request.ifr_name, "lk0");
    if (ioctl(device, TUNSETIFF, &request)) die("TUNSETIFF");
    snprintf(command, sizeof command,
             "ip link set lk0 mtu %d txqueuelen 2000 up && ip addr add 10.78.0.%d/24 dev lk0", mtu,
             number + 1);
    if (system(command)) die(command);
    if (setns(home, CLONE_NEWNET)) die("setns");
    return device;
}

/* Hand over what is due; when the next frame is due, 0 for never. */
static uint64_t deliver(uint64_t now) {
    uint64_t next = 0;
    for (int sender = 0; sender < num_ports; sender++) {
        struct port *from = &ports[sender];
        for (; from->first != from->last; from->first++) {
            struct frame *frame = &from->queue[from->first % QUEUE];
            if (frame->due_ns > now) {
                if (!next || frame->due_ns < next) next = frame->due_ns;
                break;
            }
            for (int to = 0; to < num_ports; to++)
                if (to != sender && (frame->receiver < 0 || frame->receiver == to))
                    if (write(ports[to].device, frame->bytes, frame->length) < 0 && errno != EAGAIN)
                        die("write");
            free(frame->bytes);
        }
    }
    return next;
}

static void collect(int sender, uint64_t delay_ns, double bytes_per_ns) {
    static unsigned char bytes[1 << 16];
    struct port *from = &ports[sender];
    for (int count = 0; count < BURST; count++) {
        int length = read(from->device, bytes, sizeof bytes);
        if (length <= 2 * MAC) return;
        memcpy(from->mac, bytes + MAC, MAC);
        int receiver = -1;
        for (int to = 0; to < num_ports; to++)
            if (to != sender && !memcmp(ports[to].mac, bytes, MAC)) receiver = to;
        uint64_t now = now_ns();
        uint64_t start = from->busy_until_ns > now ? from->busy_until_ns : now;
        from->busy_until_ns = start + (uint64_t)(length / bytes_per_ns);
        if (from->last - from->first >= QUEUE) continue;
        struct frame *frame = &from->queue[from->last++ % QUEUE];
        *frame = (struct frame){from->busy_until_ns + delay_ns, length, receiver, malloc(length)};
        memcpy(frame->bytes, bytes, length);
    }
}

int main(int count, char **words) {
    if (count < 6 || count - 4 > MOST_PORTS) {
        fprintf(stderr, "slow_link DELAY_US RATE_MBIT_PER_S MTU NAMESPACE NAMESPACE...\n");
        return 2;
    }
    uint64_t delay_ns = strtoull(words[1], NULL, 10) * 1000;
    double bytes_per_ns = strtod(words[2], NULL) * 1e6 / 8 / 1e9;
    num_ports = count - 4;
    int home = open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < num_ports; i++)
        ports[i].device = open_device(words[4 + i], i, atoi(words[3]), home);
    /* Frames must not wait for a core; where this is not allowed they may. */
    struct sched_param priority = {.sched_priority = 2};
    sched_setscheduler(0, SCHED_RR, &priority);
    int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    printf("ready\n");
    fflush(stdout);
    for (;;) {
        uint64_t now = now_ns(), next = deliver(now);
        struct itimerspec alarm = {0};
        alarm.it_value.tv_sec = next / SECOND_NS;
        alarm.it_value.tv_nsec = next % SECOND_NS;
        timerfd_settime(timer, TFD_TIMER_ABSTIME, &alarm, NULL);
        struct pollfd waits[MOST_PORTS + 1];
        int timeout_ms = -1;
        for (int i = 0; i < num_ports; i++) {
            int is_full = ports[i].busy_until_ns > now + BACKLOG_NS;
            waits[i] = (struct pollfd){ports[i].device, is_full ? 0 : POLLIN, 0};
            if (is_full) timeout_ms = 1;
        }
        waits[num_ports] = (struct pollfd){timer, POLLIN, 0};
        if (poll(waits, num_ports + 1, timeout_ms) < 0 && errno != EINTR) die("poll");
        uint64_t expired;
        if (waits[num_ports].revents && read(timer, &expired, sizeof expired) < 0 &&
            errno != EAGAIN)
            die("timer");
        for (int i = 0; i < num_ports; i++)
            if (waits[i].revents & POLLIN) collect(i, delay_ns, bytes_per_ns);
    }
}
